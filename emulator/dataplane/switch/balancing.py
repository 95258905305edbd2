"""Load balancing: the ways in which a switch chooses among equal next hops.

``flow``
    one hop per flow: addresses, protocol, and ports or entropy, hashed with the switch's seed.
``flowlet``
    a new hop when a flow has paused for longer than a gap.
``packet``
    a random hop for each packet.
``round-robin``
    each packet to a destination takes the next hop.
``least-loaded``
    the hop whose egress queues hold the fewest octets, ties broken in turn.

The last two need the candidates (:func:`emulator.dataplane.switch.bpf.port_program.set_route`).
All but ``flow`` and, if its gap exceeds the difference between paths, ``flowlet`` reorder whatever
passes: ROD PDCs and TCP included.  ``kernel`` leaves the choice to the kernel's own hash.  The
choice is among routed next hops; a bridge has none.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator.dataplane.switch.bpf.layout import Balancing
from emulator.errors import UserError
from uet.wire.codes import NATIVE_PROTOCOL

METHODS = {method.name.lower().replace("_", "-"): method for method in Balancing}
#: Methods whose candidates are loaded before anything is sent.
PRELOADED_METHODS = frozenset({Balancing.ROUND_ROBIN, Balancing.LEAST_LOADED})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancing:
    """One switch's way.  ``switch`` numbers the switches of a lab from 0.

    ``seed`` should differ between switches, or all tiers choose alike and paths stay unused.
    ``flowlet_gap_ns`` is fabric time.
    """

    method: Balancing
    switch: int = 0
    seed: int = 0
    flowlet_gap_ns: int = 0
    native_protocol: int = NATIVE_PROTOCOL

    def __post_init__(self) -> None:
        if self.method is Balancing.FLOWLET and self.flowlet_gap_ns <= 0:
            raise UserError("flowlets need a gap: set flowlet_gap_ns, some base RTTs, above 0")


KERNEL = LoadBalancing(method=Balancing.KERNEL)
