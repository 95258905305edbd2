"""The queueing of one emulated switch in the terms that switch operating systems have in common.

The emulator has two queues of a port, or three: control, trimmed packets where they wait apart,
and all data.  They become traffic classes: data has the PFC priority, or :data:`DATA_CLASS` without
PFC, and control one above.  All code points are mapped, as in the emulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from emulator.dataplane.switch.bpf.layout import CODE_POINTS, Queue, TrafficClass
from emulator.dataplane.switch.parameters import LOSSLESS_CLASSES, ClassRules
from emulator.dataplane.switch.pause import PauseRules
from emulator.dataplane.switch.switch_fitting import FittedSwitch
from emulator.dataplane.switch.switch_profile import Profile
from emulator.errors import UserError
from topologies.ethernet import HEADER_OCTETS
from topologies.model import CableEnd, Node, Role, Topology
from topologies.units import format_size

#: Traffic classes without PFC: data as RoCE guides have it, trimmed packets, control.
DATA_CLASS, TRIMMED_CLASS, CONTROL_CLASS = 3, 5, 6
HIGHEST_CLASS = 7
#: In front of every name that a configuration makes up: nobody has tried it on a switch.
UNVERIFIED = "uetemu_unverified"
_IPV4_HEADER = 20


@dataclass(frozen=True, kw_only=True)
class EmulatedPort:
    """A port in the emulator and its name in the configuration."""

    emulated: str
    name: str
    faces_nic: bool
    profile: Profile
    rules: ClassRules
    marks: bool
    pause: PauseRules | None


@dataclass(frozen=True, kw_only=True)
class PortGroup:
    """Ports that mark alike; ``rules`` None: they do not mark."""

    name: str
    ports: Sequence[EmulatedPort]
    rules: ClassRules | None

    @property
    def probability(self) -> int:
        """Return the marking probability just below ``kmax_bytes`` in whole per cent."""
        return max(1, round(100 * self.rules.pmax)) if self.rules is not None else 0


@dataclass(frozen=True, kw_only=True)
class EmulatedQos:
    """The switch ``node``.

    ``data_class`` names the emulator's class whose thresholds are taken.  ``classes`` has the
    traffic class of each code point; ``data``, ``control`` and ``trimmed`` are those of the queues.
    """

    node: str
    title: str
    ports: Sequence[EmulatedPort]
    data_class: str
    data: int
    control: int
    trimmed: int | None
    classes: Mapping[int, int]
    pause: PauseRules | None

    @property
    def profile(self) -> Profile:
        return self.ports[0].profile

    @property
    def trim_dscp(self) -> int | None:
        """Return the code point of trimmed packets; None where nothing is trimmed."""
        return self.profile.code_points.trimmed if self.profile.trims else None

    @property
    def trim_octets(self) -> int:
        """Octets of a trimmed frame: headers of Ethernet and IPv4, and what is left behind them."""
        return HEADER_OCTETS + _IPV4_HEADER + self.profile.trim_size

    @property
    def groups(self) -> list[PortGroup]:
        """Return the ports by how they mark, in the order of their first ports."""
        found: dict[ClassRules | None, list[EmulatedPort]] = {}
        for port in self.ports:
            marks = port.marks and port.rules.kmax_bytes is not None
            found.setdefault(_marking(port.rules) if marks else None, []).append(port)
        many = len(found) > 1
        return [
            PortGroup(
                name=f"{UNVERIFIED}_{number}" if many else UNVERIFIED, ports=ports, rules=rules
            )
            for number, (rules, ports) in enumerate(found.items(), 1)
        ]

    def code_points(self) -> Mapping[int, Sequence[int]]:
        """Return the code points of each traffic class."""
        return {
            number: [dscp for dscp in range(CODE_POINTS) if self.classes[dscp] == number]
            for number in sorted(set(self.classes.values()))
        }

    def lost(self) -> Iterator[str]:
        """Yield sentences about emulated values that no operating system here can express."""
        rules, profile = self.ports[0].rules, self.profile
        depths = [f"drops beyond {format_size(rules.limit_bytes)}"] if rules.limit_bytes else []
        if rules.trim_bytes:
            depths.insert(0, f"trims beyond {format_size(rules.trim_bytes)}")
        if depths:
            yield (
                f"Queue {self.data} {' and '.join(depths)}: buffers are shared by a chip's own "
                "rules, so that its buffer profiles have to be set by hand."
            )
        if self.pause is not None:
            yield (
                f"PFC asks for a pause at {format_size(self.pause.xoff_bytes)}, ends it at "
                f"{format_size(self.pause.xon_bytes)} and keeps a headroom of "
                f"{format_size(self.pause.headroom_bytes)}: these go into the chip's buffer "
                "profile."
            )
        others = [name for name in LOSSLESS_CLASSES if getattr(profile, name) != rules]
        if others:
            yield (
                f"Thresholds are those of {self.data_class}; {' and '.join(others)} have others in "
                "the same queue, and a switch has one set for each queue."
            )
        if profile.data_share:
            yield (
                f"Data own {profile.data_share:.0%} of each link in the emulator; here control is "
                "served first without a limit."
            )
        last = profile.code_points.trimmed_last_hop
        if profile.trims and last is not None:
            yield (
                f"Ports that face NICs write code point {last} into packets that they trim; here "
                f"all ports write {self.trim_dscp}."
            )
        for group in self.groups:
            if group.rules is not None and group.probability != 100 * group.rules.pmax:
                yield f"The marking probability {group.rules.pmax} is rounded to per cent."
        yield (
            "The emulator counts octets on the wire (38 more than the IP packet); chips count "
            "cells of their own size. Load balancing, pipeline latency and the link layer (LLR, "
            "CBFC) are not part of this."
        )


def _marking(rules: ClassRules) -> ClassRules:
    """Return what of ``rules`` is about marks."""
    return ClassRules(kmin_bytes=rules.kmin_bytes, kmax_bytes=rules.kmax_bytes, pmax=rules.pmax)


def emulated_qos(
    topology: Topology,
    fitted: FittedSwitch,
    *,
    node: Node,
    names: Sequence[str],
    data_class: str,
    title: str,
) -> EmulatedQos:
    """Return the queueing of ``node``, whose ports are called ``names``.

    UserError where it has more ports than names, or no traffic class is left for control.
    """
    if len(names) < len(node.ports):
        raise UserError(
            f"{node.name} has {len(node.ports)} ports and {len(names)} names; give one for each"
        )
    ports = []
    for port, name in zip(node.ports, names, strict=False):
        end = CableEnd(node.name, port.name)
        cable = topology.link_at(end)
        profile = fitted.profile(cable)
        faces_nic = topology.node(topology.far_end(end).node).role in (Role.GPU, Role.NIC)
        ports.append(
            EmulatedPort(
                emulated=str(end),
                name=name,
                faces_nic=faces_nic,
                profile=profile,
                rules=getattr(profile, data_class),
                marks=profile.last_hop_ecn or not faces_nic,
                pause=fitted.pause(cable),
            )
        )
    pause = next((port.pause for port in ports if port.pause is not None), None)
    profile = ports[0].profile
    data = DATA_CLASS if pause is None else pause.priority
    if data >= HIGHEST_CLASS:
        raise UserError(
            f"PFC has priority {data}, and no traffic class is above it for control packets; take "
            f"pfc_priority=0 to {HIGHEST_CLASS - 1}"
        )
    control = max(CONTROL_CLASS, data + 1)
    apart = profile.trims and profile.trimmed_queue == "medium"
    trimmed = None if not profile.trims else max(TRIMMED_CLASS, data) if apart else control
    by_queue = {Queue.HIGH: control, Queue.MEDIUM: trimmed or control, Queue.LOW: data}
    classes = {
        dscp: by_queue[profile.queue(TrafficClass(number))]
        for dscp, number in enumerate(profile.classes())
    }
    return EmulatedQos(
        node=node.name,
        title=title,
        ports=ports,
        data_class=data_class,
        data=data,
        control=control,
        trimmed=trimmed,
        classes=classes,
        pause=pause,
    )


#: What every configuration says of itself.
WARNING = "Made from an emulated fabric and not verified on hardware: read it before you load it."


@dataclass(frozen=True)
class NosConfig:
    """A configuration, and sentences about what it does not express or leaves to the reader."""

    text: str
    notes: Sequence[str]


@dataclass(frozen=True)
class NosFormat:
    """An operating system by ``name``: ``port`` names its ports by their number from 0."""

    name: str
    title: str
    port: Callable[[int], str]
    write: Callable[[EmulatedQos], NosConfig]


#: The formats by name, in the order of their modules; each registers itself.
FORMATS: dict[str, NosFormat] = {}


def register(one: NosFormat) -> NosFormat:
    """Enter ``one`` into the registry; ValueError if its name is taken."""
    if one.name in FORMATS:
        raise ValueError(f"there are two formats with the name {one.name!r}")
    FORMATS[one.name] = one
    return one


def ports_note(qos: EmulatedQos) -> str:
    """Return the sentence that says which port is which."""
    first, last = qos.ports[0], qos.ports[-1]
    return (
        f"{len(qos.ports)} ports: {first.name} is {first.emulated}, and so on to {last.name}, "
        f"which is {last.emulated}; --ports gives other names."
    )
