"""Switch profiles as an engineer writes them: thresholds in octets, times in fabric ns.

A :class:`Profile` is the same for all ports of a switch; :func:`port_settings` makes of it what one
port's program reads, and is the only place that applies the dilation.  Octets are counted as on the
wire: 38 more than the IP packet (Ethernet header, preamble, FCS, inter-packet gap).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from emulator.dataplane.clock import Dilation
from emulator.dataplane.kernel.shaping import CONTROL_CLASS, DATA_CLASS, DSCP_ROUTING
from emulator.dataplane.switch.balancing import KERNEL, Balancing, LoadBalancing
from emulator.dataplane.switch.bpf.layout import (
    ALPHA_SHIFT,
    BINS,
    CLASS,
    CODE_POINTS,
    PORT_HEAD,
    RATE_SHIFT,
    SHARE_SHIFT,
    SLOPE_SHIFT,
    TAIL,
    TAIL_AT,
    WHOLE,
    Queue,
    TrafficClass,
    pack,
)
from emulator.dataplane.switch.parameters import (
    CLASS_NAMES,
    CLASS_QUEUES,
    DSCP,
    KMAX,
    KMIN,
    OF_CLASS,
    OF_PROFILE,
    ClassRules,
    PoolChoice,
    PortRules,
    check_whole,
    numbers_of,
)
from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.errors import Misfit, UserError
from topologies.ethernet import PACKET_OVERHEAD_OCTETS
from uet.wire.codes import DSCP_CONTROL, DSCP_DATA, MIN_TRIM_SIZE

LARGEST_HOST_RATE = 2 ** (28 - RATE_SHIFT) * 8e9  # bit/s; 68 s of it still fit 64 bits
SMALLEST_HOST_RATE = 8e9 / 2**RATE_SHIFT * 100  # bit/s; below, rounding would exceed 1 %
SEED_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePoints:
    """DSCP by role (UES 4.1).  The operator chooses them; all others are untrimmed data.

    ``trimmed_last_hop`` is written instead of ``trimmed`` by a port that faces a NIC; None: the
    same code point everywhere.  ``routing`` is what routing protocols have (CS6, RFC 4594):
    they are queued with control, or a full port would lose its neighbour.
    """

    data: int = DSCP_DATA
    retransmission: int | None = None
    control: int = DSCP_CONTROL
    trimmed: int | None = None
    trimmed_last_hop: int | None = None
    routing: int | None = DSCP_ROUTING

    def __post_init__(self) -> None:
        taken: dict[int, str] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            if value is None:
                continue
            check_whole(f"code_points.{part.name}", value)
            if not 0 <= value < CODE_POINTS:
                raise UserError(f"the code point for {part.name} is {value}: a DSCP is 0 to 63")
            if value in taken:
                raise UserError(
                    f"{part.name} and {taken[value]} have the same code point {value}: "
                    "a switch tells them apart by nothing else"
                )
            taken[value] = part.name

    def classes(self) -> bytes:
        """The traffic class of each of the 64 code points."""
        table = bytearray([TrafficClass.UNTRIMMED] * CODE_POINTS)
        for value, traffic_class in (
            (self.data, TrafficClass.DATA),
            (self.retransmission, TrafficClass.RETRANSMISSION),
            (self.control, TrafficClass.CONTROL),
            (self.trimmed, TrafficClass.TRIMMED),
            (self.trimmed_last_hop, TrafficClass.TRIMMED),
            (self.routing, TrafficClass.CONTROL),
        ):
            if value is not None:
                table[value] = traffic_class
        return bytes(table)


NO_RULES = ClassRules()
TRIMMED_NAMES = ("data", "retransmission")
PLAIN_NAMES = ("mtu", *OF_PROFILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(PortRules):
    """A switch.  ``mtu`` is the largest IP packet, ``trim_size`` the IP payload trimming leaves.

    Data of all kinds share the low queue; control packets have the high one.
    """

    mtu: int
    code_points: CodePoints = CodePoints()
    data: ClassRules = NO_RULES
    retransmission: ClassRules = NO_RULES
    untrimmed: ClassRules = NO_RULES
    trimmed: ClassRules = NO_RULES
    control: ClassRules = NO_RULES
    #: by code point, one of CLASS_QUEUES: with control, or with data
    queues: Mapping[int, str] = field(default_factory=dict)
    #: skb->priority by queue: the class of the HTB below that serves it
    htb_classes: Mapping[Queue, int] = field(
        default_factory=lambda: {
            Queue.HIGH: CONTROL_CLASS,
            Queue.MEDIUM: CONTROL_CLASS,
            Queue.LOW: DATA_CLASS,
        }
    )

    def __post_init__(self) -> None:
        check_whole("mtu", self.mtu)
        for key, one in OF_PROFILE.items():
            one.kind.check(key, getattr(self, one.field))
        frame = self.mtu + PACKET_OVERHEAD_OCTETS
        for name in CLASS_NAMES:
            _check_class(name, getattr(self, name), frame)
        for name in ("trimmed", "control", "untrimmed"):
            if getattr(self, name).trim_bytes is not None:
                raise UserError(
                    f"{name}.trim_bytes is set, but UES 4.1 trims neither control nor trimmed "
                    "packets nor data that forbids it: leave it out"
                )
        if self.trims and self.code_points.trimmed is None:
            raise UserError(
                "the switch trims but no code point says so: set code_points.trimmed, and the "
                "same in the endpoints (dscp_trimmed)"
            )
        if not MIN_TRIM_SIZE <= self.trim_size < self.mtu:
            raise UserError(
                f"trim_size is {self.trim_size}: UES 4.1 leaves at least {MIN_TRIM_SIZE} octets of "
                f"IP payload, and less than the MTU of {self.mtu}"
            )
        self._check_queues()

    def _check_queues(self) -> None:
        for point, queue in self.queues.items():
            if not 0 <= point < CODE_POINTS or queue not in CLASS_QUEUES:
                raise UserError(
                    f"queues has code point {point} in {queue!r}: code points are 0 to "
                    f"{CODE_POINTS - 1}, queues {' or '.join(CLASS_QUEUES)}"
                )
            if self.trims and point in (
                self.code_points.trimmed,
                self.code_points.trimmed_last_hop,
            ):
                raise Misfit(
                    f"code point {point} is what this switch writes into packets that it trims, "
                    "whose queue is trimmed_queue: leave it out, or take trim=off",
                    f"{DSCP}{point}",
                )

    def classes(self) -> bytes:
        """The traffic class of each of the 64 code points.

        A code point that is to wait with control is control. One that is to wait with data keeps
        its class where that does, and is untrimmed data else.
        """
        table = bytearray(self.code_points.classes())
        for point, queue in self.queues.items():
            if queue == "high":
                table[point] = TrafficClass.CONTROL
            elif self.queue(TrafficClass(table[point])) is not Queue.LOW:
                table[point] = TrafficClass.UNTRIMMED
        return bytes(table)

    @property
    def trims(self) -> bool:
        return any(getattr(self, name).trim_bytes is not None for name in TRIMMED_NAMES)

    def without_trimming(self) -> Profile:
        """Return this switch as one that only drops, for ports where packets are in tunnels.

        No switch can cut a packet inside a tunnel: the end of the tunnel has to refuse the packet
        around it.
        """
        kept = {name: replace(getattr(self, name), trim_bytes=None) for name in TRIMMED_NAMES}
        return replace(self, **kept)

    def scaled(self, share: float) -> Profile:
        """Return this switch with ``share`` of all thresholds; what is queued is whole frames."""
        frame = self.mtu + PACKET_OVERHEAD_OCTETS

        def part(depth: int | None, least: int) -> int | None:
            return None if depth is None else max(least, round(share * depth))

        kept = {}
        for name in CLASS_NAMES:
            rules: ClassRules = getattr(self, name)
            kept[name] = replace(
                rules,
                kmin_bytes=round(share * rules.kmin_bytes),
                kmax_bytes=part(rules.kmax_bytes, 1),
                trim_bytes=part(rules.trim_bytes, frame),
                limit_bytes=part(rules.limit_bytes, frame),
            )
        return replace(self, **kept)  # type: ignore[arg-type]

    def rules(self, traffic_class: TrafficClass) -> ClassRules:
        if traffic_class is TrafficClass.OTHER:
            return NO_RULES
        rules: ClassRules = getattr(self, traffic_class.name.lower())
        return rules

    def queue(self, traffic_class: TrafficClass) -> Queue:
        if traffic_class is TrafficClass.TRIMMED:
            return Queue[self.trimmed_queue.upper()]
        return Queue.HIGH if traffic_class is TrafficClass.CONTROL else Queue.LOW

    @property
    def bin_shift(self) -> int:
        """A bin of the histograms is ``2 ** bin_shift`` octets; the last one has all beyond."""
        largest = BINS
        for traffic_class in TrafficClass:
            rules = self.rules(traffic_class)
            # a queue without a limit may well grow past what it marks at
            unlimited = 4 * max(rules.kmax_bytes or 0, rules.trim_bytes or 0)
            largest = max(largest, unlimited if rules.limit_bytes is None else rules.limit_bytes)
        return (largest - 1).bit_length() - (BINS - 1).bit_length()


def named(
    name: str,
    *,
    bdp_bytes: int,
    mtu: int,
    code_points: CodePoints | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Profile:
    """Profile ``name`` for a plane whose slowest port carries ``bdp_bytes`` in a base RTT.

    ``changes`` override any parameter by its name: ``{"trim_size": 64, "data.kmin_bytes": 9000,
    "code_points.trimmed": 10}``.  Raises UserError for an unknown name or a value that cannot be.

    ``shallow``
        trims; thresholds as UEC recommends them in units of the BDP.
    ``deep``
        marks alike, drops at five BDP, never trims.
    ``lossless``
        marks alike, never trims, and has no limit of its own: what it is named after takes PFC
        (:mod:`emulator.dataplane.switch.cable_fitting`).  Without, unless congestion control
        keeps queues short, the port's buffer (:mod:`emulator.dataplane.switch.switch_fitting`) is
        full, and drops.
    ``th5``, ``spectrum``, ``jericho``
        mark alike and have no limit of their own: their ports share :data:`POOLS`.
    """
    if name not in PROFILES:
        raise UserError(f"there is no switch profile {name!r}: choose {', '.join(PROFILES)}")
    parts: dict[str, Any] = dict.fromkeys(CLASS_NAMES, NO_RULES)
    parts |= PROFILES[name](bdp_bytes) | {"code_points": code_points or CodePoints()}
    flat: dict[str, Any] = {"mtu": mtu}
    inner: dict[str, dict[str, Any]] = {}
    queues: dict[int, str] = {}
    for key, value in (changes or {}).items():
        part, dot, parameter = key.partition(".")
        if dot and part in parts:
            inner.setdefault(part, {})[parameter] = value
        elif key in PLAIN_NAMES:
            flat[key] = value
        elif f"{part}{dot}" == DSCP:
            queues[int(parameter)] = value
        else:
            choice = ", ".join((*PLAIN_NAMES, *(f"{part}.*" for part in parts)))
            raise UserError(f"a switch profile has no {key!r}: it has {choice}")
    for part, values in inner.items():
        known = [parameter.name for parameter in fields(parts[part])]
        for parameter in values:
            if parameter not in known:
                raise UserError(f"{part} has no {parameter!r}: it has {', '.join(known)}")
        parts[part] = replace(parts[part], **values)
    return Profile(**(parts | flat), queues=queues)


def _shallow(bdp: int) -> dict[str, ClassRules]:
    data = replace(_marking(bdp), trim_bytes=bdp, limit_bytes=2 * bdp)
    small = ClassRules(limit_bytes=bdp)
    return {
        "data": data,
        "retransmission": replace(data, trim_bytes=round(1.5 * bdp)),
        "untrimmed": replace(data, trim_bytes=None),
        "trimmed": small,
        "control": small,
    }


def _deep(bdp: int) -> dict[str, ClassRules]:
    data = replace(_marking(bdp), limit_bytes=5 * bdp)
    small = ClassRules(limit_bytes=bdp)
    return {
        "data": data,
        "retransmission": data,
        "untrimmed": data,
        "trimmed": small,
        "control": small,
    }


def _lossless(bdp: int) -> dict[str, ClassRules]:
    return dict.fromkeys(("data", "retransmission", "untrimmed"), _marking(bdp))


def _marking(bdp: int) -> ClassRules:
    return ClassRules(kmin_bytes=KMIN.octets(bdp), kmax_bytes=KMAX.octets(bdp))


PROFILES: Mapping[str, Callable[[int], dict[str, ClassRules]]] = {
    "shallow": _shallow,
    "deep": _deep,
    "lossless": _lossless,
    "th5": _lossless,
    "spectrum": _lossless,
    "jericho": _lossless,
}
#: Those whose data class is not to lose anything, by PFC or credits, unless a user turns it off.
PAUSING = frozenset({"lossless", "th5", "spectrum"})
#: Packet memory that all ports share; README.md has the source of each number.
POOLS: Mapping[str, PoolChoice] = {
    "th5": PoolChoice(pool_bytes=167_546_528, reserved_bytes=1778, headroom_pool_bytes=29_423_360),
    "spectrum": PoolChoice(pool_bytes=158_229_504, reserved_bytes=0),
    "jericho": PoolChoice(pool_bytes=8 * 2**30, reserved_bytes=0),
}


def port_settings(  # noqa: PLR0913  each is a field of what it makes
    profile: Profile,
    *,
    rate_bps: float,
    dilation: float,
    seed: int,
    faces_nic: bool = False,
    faults: Faults = NONE,
    balancing: LoadBalancing = KERNEL,
    measured: bool = False,
    peer: int = 0,
    timed: bool = True,
    marking: bool = True,
) -> bytes:
    """Return what one port of a switch does, as its program reads it.

    ``rate_bps`` is the link's in the fabric, before ``faults`` reduce it; ``seed`` (any integer)
    fixes all that the port draws; ``balancing`` is that of the switch, for what arrives at this
    port.

    Queues are as deep as an ideal link leaves them, or, if ``measured``, as the kernel's own are:
    then the port at the other end of the cable has to report what arrives. It gets the index of
    this one as ``peer`` (a NIC's port by :func:`arrival_settings`).  Not for ports whose cable
    delay is netem's, which would be part of the queue.

    ``timed`` is False where the clock is virtual: nobody goes by the rate then, which may be any.
    ``marking`` is False where packets are not marked as they come.
    """
    rate_bps *= faults.rate
    host_rate = Dilation(dilation).host_bps(rate_bps)
    if timed and not SMALLEST_HOST_RATE <= host_rate <= LARGEST_HOST_RATE:
        raise UserError(
            f"a link of {rate_bps:g} bit/s at dilation {dilation:g} runs at {host_rate:g} bit/s "
            f"here: choose a dilation for which that is {SMALLEST_HOST_RATE:g} to "
            f"{LARGEST_HOST_RATE:g}"
        )
    points = profile.code_points
    trimmed = points.trimmed or 0
    if faces_nic and points.trimmed_last_hop is not None:
        trimmed = points.trimmed_last_hop
    rate = max(1, round(host_rate / 8e9 * 2**RATE_SHIFT))  # 0 would be a port without a rate
    head = PORT_HEAD.pack(rate, seed & SEED_MASK)
    marks = marking and (profile.last_hop_ecn or not faces_nic)
    queued = profile.scaled(faults.rate) if faults.scaled else profile
    classes = (_packed_class(queued, traffic_class, marks) for traffic_class in TrafficClass)
    numbers = numbers_of(profile, OF_PROFILE) | {
        "class_of": profile.classes(),
        "trimmed_dscp": trimmed,
        "bin_shift": profile.bin_shift,
        "balancing": balancing.method,
        "switch_number": balancing.switch,
        "native_protocol": balancing.native_protocol,
        "measured": measured,
        "peer": peer,
        "low_share": round(profile.data_share * 2**SHARE_SHIFT),
        "switch_seed": balancing.seed & SEED_MASK,
        "flowlet_gap": round(Dilation(dilation).host_ns(balancing.flowlet_gap_ns)),
    }
    tail = pack(TAIL, **numbers)
    return b"".join((head, *classes, faults.packed(), tail))


def arrival_settings(peer: int) -> bytes:
    """Return settings for a port of a GPU that report arrivals to port ``peer``, which measures."""
    return bytes(TAIL_AT) + pack(TAIL, class_of=b"", balancing=Balancing.KERNEL, peer=peer)


def _packed_class(profile: Profile, traffic_class: TrafficClass, marks: bool) -> bytes:
    rules, queue = profile.rules(traffic_class), profile.queue(traffic_class)
    span = (rules.kmax_bytes or 0) - rules.kmin_bytes
    slope = round(rules.pmax * WHOLE * 2**SLOPE_SHIFT / span) if span > 0 else 0
    numbers = numbers_of(rules, OF_CLASS)
    numbers |= {"mark_slope": slope, "priority": profile.htb_classes[queue], "queue": queue}
    if traffic_class is TrafficClass.OTHER:  # its queue is accounted for as a whole
        numbers["alpha"] = profile.untrimmed.alpha or 0
    numbers["alpha"] = round(numbers["alpha"] * (1 << ALPHA_SHIFT))
    if not marks:
        numbers |= {"mark_all": 0, "mark_slope": 0}
    return pack(CLASS, **numbers)


def _check_class(name: str, rules: ClassRules, frame: int) -> None:
    for what, one in OF_CLASS.items():
        one.kind.check(f"{name}.{what}", getattr(rules, what))
    kmin, kmax = rules.kmin_bytes, rules.kmax_bytes
    trim, limit = rules.trim_bytes, rules.limit_bytes
    if kmin < 0:
        raise UserError(f"{name}.kmin_bytes is {kmin}: a queue holds 0 octets or more")
    if kmax is not None and kmin > kmax:
        raise Misfit(
            f"{name}.kmin_bytes is {kmin}, above {name}.kmax_bytes of {kmax}: marking starts at "
            "the lower one",
            f"{name}.kmin_bytes",
            f"{name}.kmax_bytes",
        )
    for what, depth in (("trim_bytes", trim), ("limit_bytes", limit)):
        if depth is not None and depth < frame:
            raise Misfit(
                f"{name}.{what} is {depth}, less than one frame of the MTU ({frame} octets on the "
                "wire): nothing could ever be queued",
                f"{name}.{what}",
                "mtu",
            )
    if kmax is not None and kmax < 1:
        raise Misfit(
            f"{name}.kmax_bytes is {kmax}: set it above 0, or to none not to mark",
            f"{name}.kmax_bytes",
        )
    if trim is not None and limit is not None and trim > limit:
        raise Misfit(
            f"{name}.trim_bytes is {trim}, above {name}.limit_bytes of {limit}: packets would be "
            "dropped before they are trimmed",
            f"{name}.trim_bytes",
            f"{name}.limit_bytes",
        )
