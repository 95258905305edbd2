"""How much slower than a real one each network of machines runs on this machine.

These networks carry kernel TCP and real daemons, so their time is the host's, stretched by a
dilation of their own: a cable of 100 Gb/s at a dilation of 20 passes 5 Gb/s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from emulator.errors import UserError
from topologies.advice import near
from topologies.model import BACKEND, FRONTEND, MANAGEMENT, STORAGE, Topology

#: Host seconds per second of the network: as slow as two processor cores keep up with.
DEFAULTS: Mapping[str, float] = {FRONTEND: 20.0, STORAGE: 100.0, MANAGEMENT: 1.0}


def dilations(topology: Topology, words: Iterable[str]) -> dict[str, float]:
    """Return the dilation of each network of ``topology``, with those that ``words`` set.

    A word is ``NETWORK=NUMBER``.  Raises UserError for a network that is not there or a number that
    cannot be.
    """
    found = {one.network: DEFAULTS[one.network] for one in topology.networks}
    for word in words:
        name, equals, number = (part.strip() for part in word.partition("="))
        if not equals:
            raise UserError(f"{word!r} is not NETWORK=NUMBER, such as {FRONTEND}=50")
        if name not in found:
            if name == BACKEND:
                raise UserError("the dilation of the backend is set by --dilation")
            known = near(name, found) if found else ": the topology has no other networks"
            raise UserError(f"there is no network {name!r}{known}")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise UserError(f"the dilation of {name} is {number!r}; it is a number above 0")
        found[name] = value
    return found
