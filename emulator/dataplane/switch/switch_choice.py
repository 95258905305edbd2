"""The switch that a user requests: ``shallow:balance=packet,trim=off,data.kmin_bytes=20KiB``.

A profile of :mod:`emulator.dataplane.switch.switch_profile`, and what shall be different.
:data:`PARAMETERS` is the table of all that can be: to add one, add an entry there, and its field in
the choice that it belongs to.  Thresholds are octets, or multiples of the fabric's bandwidth-delay
product (``0.2bdp``), which only a topology has: see
:mod:`emulator.dataplane.switch.switch_fitting`.

Link layer retry (UES 5.1) and credit-based flow control (UES 5.2) are off unless a user says
``llr=on`` or ``cbfc=on``.  They hold at both ends of every cable that a switch is at.  Their
defaults are those of a conformance test's model of UES 1.0.3 where there are any.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from emulator.dataplane.kernel.shaping import LARGEST_DATA_SHARE
from emulator.dataplane.switch.balancing import METHODS, number_of
from emulator.dataplane.switch.bpf.layout import CODE_POINTS, Balancing
from emulator.dataplane.switch.switch_profile import (
    CLASS_NAMES,
    CLASS_QUEUES,
    DSCP,
    PROFILES,
    ClassRules,
)
from emulator.errors import Misfit, UserError
from topologies.advice import meant
from topologies.units import UnitError, parse_size, parse_time_ns
from uet.wire.codes import MIN_TRIM_SIZE

DEFAULT = "shallow"
NONE = "none"
#: The profile whose data class is not to lose anything: PFC is for it.
LOSSLESS = "lossless"
PRIORITIES = range(8)  # IEEE 802.1Q
OF_BDP = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*bdp", re.IGNORECASE)
#: What ``trim=on`` sets where the profile does not trim (UES 4.1, in units of the BDP).
TRIM_DATA, TRIM_RETRANSMISSION = Fraction(1), Fraction(3, 2)
TRIMMING = ("data.trim_bytes", "retransmission.trim_bytes")
#: What holds of packets that are trimmed.
OF_TRIMMING = ("trim_size", "trimmed_queue")
TRIM, LATENCY, LLR, CBFC = "trim", "latency", "llr", "cbfc"
LONGEST_LATENCY_NS = 1_000_000
#: Frames that may be outstanding: by default, and at most.
OUTSTANDING_FRAMES, MOST_OUTSTANDING = 2047, 524_288
REPLAY_TIMER_NS = 65_535
#: A count of replays that stands for any number.
UNLIMITED_REPLAYS = 255
CELL_OCTETS, SMALLEST_CELL, LARGEST_CELL = 64, 32, 2048
#: Octets that a frame counts beside its own, FCS included.
FRAME_OVERHEAD, LEAST_OVERHEAD, MOST_OVERHEAD = -4, -16, 127
CREDIT_TIMER_NS = 10_000


@dataclass(frozen=True, slots=True)
class OfBdp:
    """A depth as a multiple of the bandwidth-delay product of the fabric."""

    multiple: Fraction

    def __str__(self) -> str:
        return f"{float(self.multiple):.9f}".rstrip("0").rstrip(".") + "bdp"

    def octets(self, bdp_bytes: int) -> int:
        return round(self.multiple * bdp_bytes)


# ---------------------------------------------------------------------- values

Reader = Callable[[str, str], Any]


def _read(key: str, value: str, reader: Callable[[str], int]) -> int:
    try:
        return reader(value)
    except UnitError as error:
        raise Misfit(f"{key} of the switch: {error}", key) from None


def _time(key: str, value: str) -> int:
    return _read(key, value, parse_time_ns)


def _time_or_off(key: str, value: str) -> int:
    return 0 if value == "off" else _time(key, value)


def _latency(key: str, value: str) -> int:
    latency_ns = _time(key, value)
    if latency_ns > LONGEST_LATENCY_NS:
        raise Misfit(
            f"{key} of the switch is {value}: a pipeline takes {LONGEST_LATENCY_NS / 1e6:g} ms "
            "at most",
            key,
        )
    return latency_ns


def _timer(key: str, value: str) -> int:
    timer_ns = _time(key, value)
    if timer_ns <= 0:
        raise Misfit(f"{key} of the switch is {value}: a timer runs for longer than 0", key)
    return timer_ns


def _octets(key: str, value: str) -> int:
    return _read(key, value, parse_size)


def _depth(key: str, value: str) -> int | OfBdp:
    if match := OF_BDP.fullmatch(value):
        return OfBdp(Fraction(match[1]))
    try:
        return parse_size(value)
    except UnitError as error:
        raise Misfit(f"{key} of the switch: {error}, or 0.2bdp", key) from None


def _depth_or_none(key: str, value: str) -> int | OfBdp | None:
    return None if value == NONE else _depth(key, value)


def _number(least: int, most: int, hint: str = "") -> Reader:
    """A whole number of ``least`` to ``most``."""

    def read(key: str, value: str) -> int:
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and least <= int(value) <= most):
            raise Misfit(f"{key} is {value!r}: give a number of {least} to {most}{hint}", key)
        return int(value)

    return read


def _replays(key: str, value: str) -> int | None:
    if value in ("unlimited", str(UNLIMITED_REPLAYS)):
        return None
    replays: int = _number(1, UNLIMITED_REPLAYS, ", or unlimited")(key, value)
    return replays


def _priority(key: str, value: str) -> int:
    if value not in map(str, PRIORITIES):
        raise Misfit(f"{key} is {value!r}: give one of {PRIORITIES[0]} to {PRIORITIES[-1]}", key)
    return int(value)


def _float(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def _chance(key: str, value: str) -> float:
    chance = _float(value)
    if not 0 < chance <= 1:
        raise UserError(f"{key} is {value!r}: a marking probability is above 0, at most 1")
    return chance


def _share(key: str, value: str) -> float:
    share = _float(value)
    if not 0 <= share <= LARGEST_DATA_SHARE:
        raise UserError(
            f"{key} is {value!r}: data own a share of 0 to {LARGEST_DATA_SHARE:g} of the link"
        )
    return share


def _among(words: Iterable[str], what: str) -> Reader:
    """One of ``words``; ``what`` takes them."""
    known = tuple(words)

    def read(key: str, value: str) -> str:
        if value not in known:
            raise Misfit(f"{key} is {value!r}: {what} {' or '.join(known)}", key)
        return value

    return read


def _switch(key: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise UserError(f"{key} is {value!r}: a switch takes {key}=on or {key}=off")
    return value == "on"


def _written(value: object, of_time: bool = False) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return NONE if value is None else f"{value}ns" if of_time else str(value)


# ---------------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: its ``values`` and what it means, for people, and what reads a value.

    ``field`` is that of its choice.  It is written where it has not its default, or, if there is
    one, where the field ``beside`` has not.
    """

    values: str
    read: Reader
    field: str = ""
    beside: str = ""
    meaning: str = ""


_METHODS = ", ".join(METHODS)
# fmt: off
#: Of a switch itself (:class:`SwitchChoice`).
OWN: Mapping[str, Parameter] = {
    "balance": Parameter("METHOD", lambda _, value: value, "balance",
        meaning=f"the next hop of a packet: {_METHODS}; default flow"),
    "flowlet_gap": Parameter("TIME", _time, "flowlet_gap_ns",
        meaning="balance=flowlet: pause that ends a burst; default one base RTT"),
    LATENCY: Parameter("TIME", _latency, "latency_ns",
        meaning="of the pipeline, before a frame is queued; virtual clock only; default 0"),
}
#: Changes of the profile: the names of its fields.
OF_PROFILE: Mapping[str, Parameter] = {
    "trim_size": Parameter("SIZE", _octets,
        meaning="octets of IP payload that trimming leaves; default 24, more if secured"),
    "trimmed_queue": Parameter(
        "high|medium", _among(("high", "medium"), "trimmed packets go to the queue"),
        meaning="where trimmed packets wait; default high, with control"),
    "data_share": Parameter("0..0.5", _share,
        meaning="of the link, that control cannot take from data; default 0.05"),
    "last_hop_ecn": Parameter("on|off", _switch,
        meaning="ports that face a NIC mark, or leave that hop to RCCC"),
}
#: Priority flow control (:class:`PauseChoice`).
PFC: Mapping[str, Parameter] = {
    "xoff": Parameter("DEPTH", _depth, "xoff",
        meaning="buffer held by a port from which it pauses; default 0.5bdp"),
    "xon": Parameter("DEPTH", _depth, "xon",
        meaning="and down to which it lets go on; default two frames below xoff"),
    "headroom": Parameter("DEPTH", _depth, "headroom",
        meaning="kept free beyond xoff; default what rate, cable and MTU ask for"),
    "pfc_priority": Parameter("0..7", _priority, "pfc_priority",
        meaning="that PAUSE frames name; default: the class selector of data's DSCP"),
    "pfc_watchdog": Parameter("TIME|off", _time_or_off, "pfc_watchdog_ns",
        meaning="pause on end by a NIC that is taken for a storm; default off"),
    "pfc_watchdog_action": Parameter(
        "drop|forward", _among(("drop", "forward"), "the watchdog takes"),
        "pfc_watchdog_action", beside="pfc_watchdog_ns",
        meaning="what becomes of that queue then; default drop"),
    "pfc_response": Parameter("TIME", _time, "pfc_response_ns",
        meaning="that devices take to obey, beside cables and frames; default 0"),
    "pfc_deadlock": Parameter(
        "refuse|allow", _among(("refuse", "allow"), "a switch takes"), "pfc_deadlock",
        meaning="fabrics whose routes have a circle; default refuse"),
}
#: Link layer retry (:class:`LlrChoice`).
OF_LLR: Mapping[str, Parameter] = {
    "llr_buffer": Parameter("SIZE", _octets, "buffer_bytes",
        meaning="of a port's replay buffer; default what rate and cable ask for"),
    "llr_frames": Parameter(f"1..{MOST_OUTSTANDING}", _number(1, MOST_OUTSTANDING), "frames",
        meaning=f"outstanding; default {OUTSTANDING_FRAMES}"),
    "llr_timer": Parameter("TIME", _timer, "timer_ns",
        meaning=f"without an ACK, before a replay; default {REPLAY_TIMER_NS}ns"),
    "llr_replays": Parameter("N|unlimited", _replays, "replays",
        meaning="in a row before a port sends without retry; default unlimited"),
}
#: Credit-based flow control (:class:`CbfcChoice`).
OF_CBFC: Mapping[str, Parameter] = {
    "cbfc_buffer": Parameter("SIZE", _octets, "buffer_bytes",
        meaning="that a port receives data into; default what rate and cable ask for"),
    "cbfc_cell": Parameter(
        f"{SMALLEST_CELL}..{LARGEST_CELL}", _number(SMALLEST_CELL, LARGEST_CELL), "cell_bytes",
        meaning=f"octets of a credit; default {CELL_OCTETS}"),
    "cbfc_overhead": Parameter(
        f"{LEAST_OVERHEAD}..{MOST_OVERHEAD}", _number(LEAST_OVERHEAD, MOST_OVERHEAD),
        "overhead_bytes",
        meaning=f"octets that a frame counts beside its own; default {FRAME_OVERHEAD}"),
    "cbfc_timer": Parameter("TIME", _timer, "timer_ns",
        meaning=f"between repairs of lost credits; default {CREDIT_TIMER_NS // 1000}us"),
}
#: Of each traffic class: fields of :class:`ClassRules`.
OF_CLASS: Mapping[str, Parameter] = {
    "kmin_bytes": Parameter("DEPTH", _depth,
        meaning="queue from which packets are marked (ECN); default 0.2bdp"),
    "kmax_bytes": Parameter("DEPTH|none", _depth_or_none,
        meaning="queue from which all are; default 0.8bdp"),
    "pmax": Parameter("0..1", _chance,
        meaning="share marked just below that; default 1"),
    "trim_bytes": Parameter("DEPTH|none", _depth_or_none,
        meaning="queue from which packets are trimmed"),
    "limit_bytes": Parameter("DEPTH|none", _depth_or_none,
        meaning="queue from which packets are dropped"),
}
OF_DSCP = Parameter("high|low", _among(CLASS_QUEUES, "queues are"),
    meaning="the queue of code point N: with control, served first, or with data")
# fmt: on
#: What can be changed in a profile, with its reader.
CHANGES: Mapping[str, Reader] = {
    **{key: parameter.read for key, parameter in OF_PROFILE.items()},
    **{f"{name}.{rule}": one.read for name in CLASS_NAMES for rule, one in OF_CLASS.items()},
    **{f"{DSCP}{number}": OF_DSCP.read for number in range(CODE_POINTS)},
}
PARAMETERS = (*OWN, TRIM, "pfc", *PFC, LLR, *OF_LLR, CBFC, *OF_CBFC, *CHANGES)


def _described(parameters: Mapping[str, Parameter], of: str = "") -> dict[str, tuple[str, str]]:
    return {f"{of}{key}": (one.values, one.meaning) for key, one in parameters.items()}


#: The values of each parameter and what it means.
DESCRIBED: Mapping[str, tuple[str, str]] = {
    **_described(OWN),
    TRIM: ("on|off", "cut packets that find no room, or drop them at the limit"),
    **_described(OF_PROFILE),
    "pfc": ("on|off", "lossless: pause the other end of a cable whose buffer fills; default on"),
    **_described(PFC),
    LLR: ("on|off", "cables replay frames that bit errors took (UES 5.1); virtual clock only"),
    **_described(OF_LLR),
    CBFC: ("on|off", "lossless: credits in place of pauses (UES 5.2); virtual clock only"),
    **_described(OF_CBFC),
    **_described(OF_CLASS, "CLASS."),
    f"{DSCP}N": (OF_DSCP.values, OF_DSCP.meaning),
}
EXPLAINED = (
    f"CLASS is one of {', '.join(CLASS_NAMES)}.",
    "Endpoints of a lab repeat with the code point of data: those are no class retransmission.",
    "DEPTH is a size (20KiB) or a multiple of slowest link x base RTT (0.2bdp).",
)
MEANINGS: Mapping[str, str] = {
    "shallow": "trims beyond one BDP, drops beyond two",
    "deep": "drops beyond five BDP",
    "lossless": "marks, pauses who sends too much (PFC), never drops data",
    NONE: "no ASIC: plain queues of the kernel, no marks",
}


def _parts(
    choice: SwitchChoice | PauseChoice | LlrChoice | CbfcChoice, parameters: Mapping[str, Parameter]
) -> dict[str, str]:
    """Return what ``choice`` has of ``parameters`` beside its defaults, as users write it."""
    usual = {one.name: one.default for one in fields(choice)}
    said = {name for name, default in usual.items() if getattr(choice, name) != default}
    return {
        key: _written(getattr(choice, one.field), one.field.endswith("_ns"))
        for key, one in parameters.items()
        if (one.beside or one.field) in said
    }


def _fields(parameters: Mapping[str, Parameter], written: dict[str, str]) -> dict[str, Any]:
    """Take what is about ``parameters`` out of ``written``; return it as fields of a choice."""
    return {
        one.field: one.read(key, written.pop(key))
        for key, one in parameters.items()
        if key in written
    }


# ---------------------------------------------------------------------- choices


@dataclass(frozen=True, kw_only=True)
class PauseChoice:
    """Priority flow control of the switch.

    None: what the fabric needs (:mod:`emulator.dataplane.switch.switch_fitting`).

    ``pfc_priority`` is the one that PAUSE frames name for the lossless class.
    ``pfc_watchdog_ns`` (fabric time) is how long a NIC may pause its switch on end, 0 for ever;
    ``pfc_response_ns`` how long devices take to obey, beside cables and frames.
    ``pfc_deadlock`` is for routes by which packets can wait for each other in a circle.
    """

    xoff: int | OfBdp | None = None
    xon: int | OfBdp | None = None
    headroom: int | OfBdp | None = None
    pfc_priority: int | None = None
    pfc_watchdog_ns: int = 0
    pfc_watchdog_action: str = "drop"
    pfc_response_ns: int = 0
    pfc_deadlock: str = "refuse"


@dataclass(frozen=True, kw_only=True)
class LlrChoice:
    """Link layer retry.

    ``buffer_bytes`` of a replay buffer: None for what the cable needs.  ``replays`` is how often in
    a row a frame is replayed before the link gives up, None without a limit.
    """

    buffer_bytes: int | None = None
    frames: int = OUTSTANDING_FRAMES
    timer_ns: int = REPLAY_TIMER_NS
    replays: int | None = None


@dataclass(frozen=True, kw_only=True)
class CbfcChoice:
    """Credit-based flow control of the data class.

    ``buffer_bytes`` of a port's receive buffer: None for what the cable needs.  ``cell_bytes`` is
    what a credit stands for, ``overhead_bytes`` what each frame counts beside its octets.
    """

    buffer_bytes: int | None = None
    cell_bytes: int = CELL_OCTETS
    overhead_bytes: int = FRAME_OVERHEAD
    timer_ns: int = CREDIT_TIMER_NS


@dataclass(frozen=True, kw_only=True)
class SwitchChoice:
    """The behaviour that all switches of a lab share.

    ``name`` is the choice as the user wrote it.  ``balance`` is one of
    :data:`~emulator.dataplane.switch.balancing.METHODS`; ``flowlet_gap_ns`` (fabric time) is for
    flowlets, 0 stands for one base RTT of the fabric.  ``latency_ns`` is that of the switch's
    pipeline, from a frame's last octet to its admission.  ``changes`` are overrides of
    :func:`emulator.dataplane.switch.switch_profile.named`: by parameter, where a depth may be an
    :class:`OfBdp`. ``pausing`` is priority flow control, ``llr`` and ``cbfc`` the link layer of the
    cables; None without.
    """

    name: str
    profile: str
    balance: str = "flow"
    flowlet_gap_ns: int = 0
    latency_ns: int = field(default=0, repr=False)  # runs without have the keys that they had
    changes: Mapping[str, Any] = field(default_factory=dict)
    pausing: PauseChoice | None = None
    llr: LlrChoice | None = field(default=None, repr=False)  # the same as latency_ns
    cbfc: CbfcChoice | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise UserError(f"there is no switch {self.profile!r}{_near(self.profile, PROFILES)}")
        if self.balance not in METHODS:
            raise UserError(
                f"the switch has no load balancing {self.balance!r}{_near(self.balance, METHODS)}"
            )
        if self.flowlet_gap_ns < 0:
            raise UserError(f"flowlet_gap is {self.flowlet_gap_ns} ns: a pause is not negative")
        if self.flowlet_gap_ns and self.method != Balancing.FLOWLET:
            raise UserError(
                f"flowlet_gap says nothing with balance={self.balance}: "
                "say balance=flowlet, or leave it out"
            )
        if self.pausing is not None and self.profile != LOSSLESS:
            raise UserError(
                f"pfc=on pauses a lossless class, and the switch {self.profile} has none: "
                f"take {LOSSLESS}"
            )
        if self.cbfc is not None and self.profile != LOSSLESS:
            raise UserError(
                f"cbfc=on gives credits to a lossless class, and the switch {self.profile} has "
                f"none: take {LOSSLESS}"
            )
        if self.cbfc is not None and self.pausing is not None:
            raise UserError(
                "cbfc=on and pfc=on both keep the data class from loss: keep one of them"
            )
        for key in self.changes:
            if key not in CHANGES:
                raise UserError(f"a switch has no parameter {key!r}{_near(key, CHANGES)}")
        for key in OF_TRIMMING:
            if key in self.changes and not self.trims:
                raise UserError(
                    f"{key} says nothing of the switch {self.profile} without trimming: "
                    "say trim=on, or leave it out"
                )
        object.__setattr__(self, "changes", MappingProxyType(dict(self.changes)))

    @property
    def method(self) -> int:
        return number_of(self.balance)

    @property
    def virtual_only(self) -> bool:
        """Return whether the switch takes the virtual clock of a run."""
        return bool(self.latency_ns) or self.llr is not None or self.cbfc is not None

    @property
    def trims(self) -> bool:
        """Return whether a data packet that finds its queue full is cut to its headers."""
        rules = PROFILES[self.profile](1)
        key = "data.trim_bytes"
        return self.changes.get(key, rules["data"].trim_bytes) is not None

    def leaving(self, octets: int) -> SwitchChoice:
        """Return this choice with at least ``octets`` of IP payload left in trimmed packets.

        The user's choice of ``trim_size`` stays.
        """
        if not self.trims or octets <= MIN_TRIM_SIZE or "trim_size" in self.changes:
            return self
        return replace(self, changes={**self.changes, "trim_size": octets})

    @property
    def spec(self) -> str:
        """The choice as :func:`parse` reads it, complete whoever made it."""
        parts = {"balance": self.balance} | _parts(self, OWN)
        if self.profile == LOSSLESS:
            parts["pfc"] = _written(self.pausing is not None)
        for name, choice, parameters in (
            ("pfc", self.pausing, PFC),
            (LLR, self.llr, OF_LLR),
            (CBFC, self.cbfc, OF_CBFC),
        ):
            if choice is not None:
                parts |= {name: "on"} | _parts(choice, parameters)
        parts |= {key: _written(value) for key, value in self.changes.items()}
        return f"{self.profile}:{','.join(f'{key}={value}' for key, value in parts.items())}"


def parse(text: str) -> SwitchChoice:
    """The switch ``PROFILE[:PARAMETER=VALUE,...]``.

    Raises UserError, one sentence, for anything that cannot be in any fabric;
    :func:`emulator.dataplane.switch.switch_fitting.fit` refuses what cannot be in a given one.
    """
    profile, _, rest = text.strip().partition(":")
    if profile == NONE:
        raise UserError(f"switch {text!r}: {NONE} is no ASIC and takes no parameters; write {NONE}")
    if profile not in PROFILES:
        raise UserError(f"there is no switch {profile!r}{_near(profile, (*PROFILES, NONE))}")
    written: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not (key and equals and value):
            raise UserError(f"{item!r} in switch {text!r} is not param=value, such as trim=off")
        if key not in PARAMETERS:
            raise UserError(f"a switch has no parameter {key!r}{_near(key, PARAMETERS)}")
        if key in written:
            raise UserError(f"{key} is given twice in switch {text!r}: keep one of them")
        written[key] = value
    llr, cbfc = (
        _link_layer(name, parameters, written)
        for name, parameters in ((LLR, OF_LLR), (CBFC, OF_CBFC))
    )
    return SwitchChoice(
        name=text.strip(),
        profile=profile,
        **_fields(OWN, written),
        llr=None if llr is None else LlrChoice(**llr),
        cbfc=None if cbfc is None else CbfcChoice(**cbfc),
        pausing=_pausing(profile, written, credited=cbfc is not None),
        changes=_changes(profile, written),
    )


def _link_layer(
    name: str, parameters: Mapping[str, Parameter], written: dict[str, str]
) -> dict[str, Any] | None:
    """Take what is about ``name`` out of ``written``, and return its fields; None: it is off."""
    on = _switch(name, written.pop(name, "off"))
    for key in parameters:
        if key in written and not on:
            raise UserError(f"{key} says nothing without {name}=on: add that, or leave it out")
    return _fields(parameters, written) if on else None


def _pausing(profile: str, written: dict[str, str], *, credited: bool) -> PauseChoice | None:
    """Takes what is about PFC out of ``written``: on by default where it keeps data from loss."""
    default = "on" if profile == LOSSLESS and not credited else "off"
    if _switch("pfc", written.pop("pfc", default)):
        return PauseChoice(**_fields(PFC, written))
    for key in PFC:
        if key not in written:
            continue
        if credited:
            raise UserError(f"{key} is PFC's, and cbfc=on takes its place: keep one of them")
        raise UserError(
            f"{key} says nothing without priority flow control: "
            + ("say pfc=on" if profile == LOSSLESS else f"take the switch {LOSSLESS}")
            + ", or leave it out"
        )
    return None


def parse_latency(text: str) -> int:
    """The value of :data:`LATENCY`, in ns.  Raises UserError for anything else."""
    return _latency(LATENCY, text)


def requested(text: str) -> SwitchChoice | None:
    """Return the choice that ``text`` names; ``none`` gives None: the kernel's own queues alone.

    See :func:`parse` for the form.
    """
    return None if text.strip() == NONE else parse(text)


def describe() -> str:
    """The profiles, and the parameters of :func:`describe_options`, for --help."""
    profiles = "\n".join(f"  {name:<33}{meaning}" for name, meaning in MEANINGS.items())
    return f"Switches:\n{profiles}\nParameters of a switch:\n{describe_options()}"


def describe_options() -> str:
    """The parameters of a switch and their values, a line each, for --help."""
    methods = ", ".join(METHODS)  # those of users may have come since this module was loaded
    lines = (
        f"  {name + '=' + values:<33}{text.replace(_METHODS, methods)}"
        for name, (values, text) in DESCRIBED.items()
    )
    return "\n".join((*lines, *(f"  {line}" for line in EXPLAINED)))


def _changes(profile: str, written: Mapping[str, str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    rest = dict(written)
    if TRIM in rest:
        trim = rest.pop(TRIM)
        if trim not in ("on", "off"):
            raise UserError(f"trim is {trim!r}: a switch takes trim=on or trim=off")
        for key in TRIMMING:
            if key in rest and (trim == "off") is not (rest[key] == NONE):
                raise UserError(
                    f"trim={trim} and {key}={rest[key]} contradict each other: "
                    "leave one of them out"
                )
        if trim == "off":
            changes |= dict.fromkeys(TRIMMING)
        elif profile != DEFAULT:
            changes |= dict(
                zip(TRIMMING, (OfBdp(TRIM_DATA), OfBdp(TRIM_RETRANSMISSION)), strict=True)
            )
    return changes | {key: CHANGES[key](key, value) for key, value in rest.items()}


def _near(name: str, known: Iterable[str]) -> str:
    names = list(known)
    return f"{meant(name, names)}; known are {_brief(names)}"


def _brief(names: Iterable[str]) -> str:
    """Return ``names`` with the parameters of classes listed once."""
    listed = [name for name in names if "." not in name]
    if len(listed) < len(list(names)):
        rules = "|".join(part.name for part in fields(ClassRules))
        listed.append(f"{{{'|'.join(CLASS_NAMES)}}}.{{{rules}}}")
        listed.append(f"{DSCP}N")
    return ", ".join(listed)
