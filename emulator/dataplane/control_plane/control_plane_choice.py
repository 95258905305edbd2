"""The control plane that a user requests: ``ebgp:bfd=on,interval=300ms,multiplier=3``.

It is written in the topology's profile, so it comes with the topology.  Times are of this machine:
FRR reads the machine's clock, which no dilation slows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from emulator.dataplane.switch.balancing import PRELOADED_METHODS
from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.errors import Misfit, UserError
from topologies.advice import near
from topologies.model import Topology
from topologies.profile.fabric_keys import BFD_INTERVAL, BFD_MULTIPLIER
from topologies.units import UnitError, parse_time_ns

STATIC, EBGP, IBGP, EVPN = "static", "ebgp", "ibgp", "evpn"
DEFAULT = STATIC
#: Those in which every link between switches has a session of BGP.
EXTERNAL = frozenset({EBGP, EVPN})
NS_PER_MS, NS_PER_S = 10**6, 10**9
#: What FRR takes (``receive-interval``, ``detect-multiplier``, ``timers bgp``, ``dead-interval``).
INTERVAL_MS = range(BFD_INTERVAL.minimum // NS_PER_MS, BFD_INTERVAL.maximum // NS_PER_MS + 1)
MULTIPLIER = range(BFD_MULTIPLIER.minimum, BFD_MULTIPLIER.maximum + 1)
HOLD_S = range(3, 65_536)
OF_BFD = frozenset({"interval", "multiplier"})
PER_SWITCH, PER_TIER = "switch", "tier"
#: Of ``--convergence``: where the time of new routes comes from.
COMPUTED, MEASURED = "computed", "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """The routing protocols that all switches of a fabric run.

    With ``bfd`` a neighbour is gone after ``multiplier`` packets, ``interval_ms`` apart, that did
    not come; without, when it has been silent for ``hold_s`` (BGP's hold time, OSPF's dead
    interval).  ``summaries``: switches advertise the topology's summaries, not the subnets in them.
    ``unnumbered``: sessions run between IPv6 link-local addresses and carry IPv4 (RFC 8950).
    ``systems`` is who shares an autonomous system: nobody, or the switches of a tier as in RFC
    7938.
    """

    name: str
    bfd: bool = True
    interval_ms: int = 300
    multiplier: int = 3
    hold_s: int = 9
    summaries: bool = True
    unnumbered: bool = False
    systems: str = PER_SWITCH

    @property
    def detection_s(self) -> float:
        """Return the silence after which a neighbour counts as dead (s of this machine)."""
        return self.interval_ms * self.multiplier / 1000 if self.bfd else self.hold_s

    @property
    def spec(self) -> str:
        """The choice as :func:`parse` reads it, complete."""
        parts = {
            "bfd": _written(self.bfd),
            "interval": f"{self.interval_ms}ms",
            "multiplier": str(self.multiplier),
            "hold": f"{self.hold_s}s",
            "summaries": _written(self.summaries),
            "unnumbered": _written(self.unnumbered),
            "as": self.systems,
        }
        stated = (key for key in PARAMETERS[self.name] if self.bfd or key not in OF_BFD)
        kept = (f"{key}={parts[key]}" for key in stated)
        return f"{self.name}:{','.join(kept)}"


def parse(text: str) -> ControlPlane | None:
    """The control plane ``NAME[:PARAMETER=VALUE,...]``; None: ``static``, no protocol at all.

    Raises UserError, one sentence, for anything that cannot be.
    """
    name, _, rest = (part.strip() for part in text.strip().partition(":"))
    if name not in PARAMETERS:
        raise UserError(f"there is no control plane {name!r}{near(name, PARAMETERS)}")
    settings: dict[str, Any] = {}
    written: set[str] = set()
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not (key and equals and value):
            raise UserError(f"{item!r} in control plane {text!r} is not param=value, as in bfd=off")
        if key not in PARAMETERS[name]:
            if not PARAMETERS[name]:
                raise UserError(f"the control plane {name} takes no parameters: leave {key} out")
            hint = near(key, PARAMETERS[name])
            raise UserError(f"the control plane {name} has no parameter {key!r}{hint}")
        if key in written:
            raise UserError(f"{key} is given twice in control plane {text!r}: keep one of them")
        written.add(key)
        field, read = READERS[key]
        settings[field] = read(key, value)
    if name == STATIC:
        return None
    chosen = ControlPlane(name=name, **settings)
    if not chosen.bfd and (stated := written & OF_BFD):
        raise UserError(
            f"{min(stated)} says nothing with bfd=off: leave it out, or set hold instead"
        )
    return chosen


def of(topology: Topology) -> ControlPlane | None:
    """Return what the switches of ``topology`` speak; None where routes are static."""
    return parse(topology.profile.control_plane)


def chosen(topology: Topology, text: str | None) -> Topology:
    """``topology`` with the control plane ``text``, or its own if that is None.

    Raises UserError for a control plane that cannot be.
    """
    if text is None:
        of(topology)
        return topology
    plane = parse(text)
    spec = STATIC if plane is None else plane.spec
    profile = dataclasses.replace(topology.profile, control_plane=spec)
    return dataclasses.replace(topology, profile=profile)


def check_switch(plane: ControlPlane, switch: SwitchChoice | None) -> None:
    """Raise UserError for a switch that needs its routes beforehand."""
    if switch is not None and switch.method in PRELOADED_METHODS:
        raise UserError(
            f"balance={switch.balance} takes the next hops of every route from the topology, and "
            f"{plane.name} changes them: take another balance, such as packet, or the control "
            f"plane {STATIC}"
        )


def describe() -> str:
    """The control planes and their parameters, for --help."""
    planes = "\n".join(f"  {name:<30}{meaning}" for name, meaning in MEANINGS.items())
    lines = "\n".join(
        f"  {key + '=' + values:<30}{meaning}" for key, (values, meaning) in DESCRIBED.items()
    )
    return (
        f"Control planes:\n{planes}\nParameters of a control plane:\n{lines}\n"
        "  FRR's timers run in this machine's time.  In a lab a failure is found sooner than in a\n"
        "  real fabric, by as much as time is dilated; in a run new routes come after the fabric\n"
        "  time that --convergence says."
    )


def _written(value: bool) -> str:
    return "on" if value else "off"


def _on_or_off(key: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise UserError(f"{key} is {value!r}: the control plane takes {key}=on or {key}=off")
    return value == "on"


def _whole(unit_ns: int, unit: str, allowed: range) -> Callable[[str, str], int]:
    """A reader of times that are so many whole ``unit``."""

    def read(key: str, value: str) -> int:
        try:
            ns = parse_time_ns(value)
        except UnitError as error:
            raise UserError(f"{key} of the control plane: {error}") from None
        if ns % unit_ns or ns // unit_ns not in allowed:
            raise Misfit(
                f"{key} is {value}: FRR takes whole {unit}, {allowed[0]} to {allowed[-1]}", key
            )
        return ns // unit_ns

    return read


def _multiplier(key: str, value: str) -> int:
    if not value.isdecimal() or int(value) not in MULTIPLIER:
        raise Misfit(f"{key} is {value!r}: FRR takes {MULTIPLIER[0]} to {MULTIPLIER[-1]}", key)
    return int(value)


def _systems(key: str, value: str) -> str:
    if value not in (PER_SWITCH, PER_TIER):
        raise UserError(f"{key} is {value!r}: one AS per {PER_SWITCH}, or per {PER_TIER}")
    return value


READERS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "bfd": ("bfd", _on_or_off),
    "interval": ("interval_ms", _whole(NS_PER_MS, "milliseconds", INTERVAL_MS)),
    "multiplier": ("multiplier", _multiplier),
    "hold": ("hold_s", _whole(NS_PER_S, "seconds", HOLD_S)),
    "summaries": ("summaries", _on_or_off),
    "unnumbered": ("unnumbered", _on_or_off),
    "as": ("systems", _systems),
}
_DETECTION = ("bfd", "interval", "multiplier", "hold")
#: The parameters of each control plane.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    STATIC: (),
    EBGP: (*_DETECTION, "summaries", "unnumbered", "as"),
    IBGP: _DETECTION,
    EVPN: _DETECTION,
}
MEANINGS: Mapping[str, str] = {
    STATIC: "no protocol: every shortest path, computed from the topology",
    EBGP: "FRR: BGP between neighbours (RFC 7938), an AS per switch",
    IBGP: "FRR: OSPF for loopbacks, BGP of one AS, reflected by the highest tier",
    EVPN: "FRR: as ebgp, and who is behind which tunnel of a stretched rail (RFC 8365)",
}
DESCRIBED: Mapping[str, tuple[str, str]] = {
    "bfd": ("on|off", "BFD on the links between switches; default on"),
    "interval": ("TIME", "between two BFD packets; default 300ms"),
    "multiplier": ("N", "BFD packets to miss; default 3"),
    "hold": ("TIME", "silence that ends a BGP session or OSPF adjacency; default 9s"),
    "summaries": ("on|off", "ebgp: tell others of the topology's summaries only; default on"),
    "unnumbered": ("on|off", "ebgp: sessions over IPv6 link-local addresses; default off"),
    "as": ("switch|tier", "ebgp: one AS for each switch, or spines share one; default switch"),
}
