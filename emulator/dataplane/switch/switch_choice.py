"""The switch that a user requests: ``shallow:balance=packet,trim=off,data.kmin_bytes=20KiB``.

A profile of :mod:`emulator.dataplane.switch.switch_profile`, and what shall be different.
Thresholds are octets, or multiples of the fabric's bandwidth-delay product (``0.2bdp``), which only
a topology has: see :mod:`emulator.dataplane.switch.switch_fitting`.
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
from emulator.dataplane.switch.balancing import METHODS
from emulator.dataplane.switch.bpf.layout import CODE_POINTS, Balancing
from emulator.dataplane.switch.link.link_choice import (
    DESCRIBED_LINKS,
    LINK_PARAMETERS,
    CbfcChoice,
    LlrChoice,
    link_choices,
)
from emulator.dataplane.switch.switch_profile import (
    CLASS_NAMES,
    CLASS_QUEUES,
    DSCP,
    MIN_TRIM_SIZE,
    PROFILES,
    ClassRules,
)
from emulator.errors import Misfit, UserError
from topologies.advice import meant
from topologies.units import UnitError, parse_size, parse_time_ns

DEFAULT = "shallow"
NONE = "none"
#: The profile whose data class is not to lose anything: PFC is for it.
LOSSLESS = "lossless"
PAUSING = (
    *("xoff", "xon", "headroom", "pfc_priority", "pfc_response"),
    *("pfc_watchdog", "pfc_watchdog_action", "pfc_deadlock"),
)
PRIORITIES = range(8)  # IEEE 802.1Q
WATCHDOG_ACTIONS = ("drop", "forward")
DEADLOCKS = ("refuse", "allow")
OF_BDP = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*bdp", re.IGNORECASE)
#: What ``trim=on`` sets where the profile does not trim (UES 4.1, in units of the BDP).
TRIM_DATA, TRIM_RETRANSMISSION = Fraction(1), Fraction(3, 2)
TRIMMING = ("data.trim_bytes", "retransmission.trim_bytes")
#: What holds of packets that are trimmed.
OF_TRIMMING = ("trim_size", "trimmed_queue")
TRIM, LATENCY = "trim", "latency"
LONGEST_LATENCY_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class OfBdp:
    """A depth as a multiple of the bandwidth-delay product of the fabric."""

    multiple: Fraction

    def __str__(self) -> str:
        return f"{float(self.multiple):.9f}".rstrip("0").rstrip(".") + "bdp"

    def octets(self, bdp_bytes: int) -> int:
        return round(self.multiple * bdp_bytes)


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

    def written(self) -> dict[str, str]:
        """Return the parameters in the form that :func:`parse` reads."""
        depths = {"xoff": self.xoff, "xon": self.xon, "headroom": self.headroom}
        parts = {key: str(depth) for key, depth in depths.items() if depth is not None}
        if self.pfc_priority is not None:
            parts["pfc_priority"] = str(self.pfc_priority)
        if self.pfc_watchdog_ns:
            parts["pfc_watchdog"] = f"{self.pfc_watchdog_ns}ns"
            parts["pfc_watchdog_action"] = self.pfc_watchdog_action
        if self.pfc_response_ns:
            parts["pfc_response"] = f"{self.pfc_response_ns}ns"
        if self.pfc_deadlock != "refuse":
            parts["pfc_deadlock"] = self.pfc_deadlock
        return {"pfc": "on"} | parts


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
        if self.flowlet_gap_ns and self.method is not Balancing.FLOWLET:
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
    def method(self) -> Balancing:
        return METHODS[self.balance]

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
        parts = {"balance": self.balance}
        if self.flowlet_gap_ns:
            parts["flowlet_gap"] = f"{self.flowlet_gap_ns}ns"
        if self.latency_ns:
            parts[LATENCY] = f"{self.latency_ns}ns"
        if self.profile == LOSSLESS:
            parts |= {"pfc": "off"} if self.pausing is None else self.pausing.written()
        for link in (self.llr, self.cbfc):
            parts |= {} if link is None else link.written()
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
    llr, cbfc = link_choices(written)
    return SwitchChoice(
        name=text.strip(),
        profile=profile,
        balance=written.pop("balance", "flow"),
        flowlet_gap_ns=_read("flowlet_gap", written.pop("flowlet_gap", "0"), parse_time_ns),
        latency_ns=parse_latency(written.pop(LATENCY, "0")),
        llr=llr,
        cbfc=cbfc,
        pausing=_pausing(profile, written, credited=cbfc is not None),
        changes=_changes(profile, written),
    )


def _pausing(profile: str, written: dict[str, str], *, credited: bool) -> PauseChoice | None:
    """Takes what is about PFC out of ``written``: on by default where it keeps data from loss."""
    default = "on" if profile == LOSSLESS and not credited else "off"
    pfc = _switch("pfc", written.pop("pfc", default))
    given = {key: written.pop(key) for key in PAUSING if key in written}
    if not pfc:
        if given:
            key = next(iter(given))
            if credited:
                raise UserError(f"{key} is PFC's, and cbfc=on takes its place: keep one of them")
            raise UserError(
                f"{key} says nothing without priority flow control: "
                + ("say pfc=on" if profile == LOSSLESS else f"take the switch {LOSSLESS}")
                + ", or leave it out"
            )
        return None
    action = given.pop("pfc_watchdog_action", "drop")
    if action not in WATCHDOG_ACTIONS:
        raise UserError(
            f"pfc_watchdog_action is {action!r}: the watchdog takes {' or '.join(WATCHDOG_ACTIONS)}"
        )
    deadlock = given.pop("pfc_deadlock", "refuse")
    if deadlock not in DEADLOCKS:
        raise UserError(f"pfc_deadlock is {deadlock!r}: a switch takes {' or '.join(DEADLOCKS)}")
    watchdog = given.pop("pfc_watchdog", "off")
    response = given.pop("pfc_response", "0")
    priority = given.pop("pfc_priority", None)
    if priority is not None and priority not in map(str, PRIORITIES):
        raise UserError(
            f"pfc_priority is {priority!r}: give one of {PRIORITIES[0]} to {PRIORITIES[-1]}"
        )
    return PauseChoice(
        **{name: _depth(name, value) for name, value in given.items()},
        pfc_priority=None if priority is None else int(priority),
        pfc_watchdog_ns=0 if watchdog == "off" else _read("pfc_watchdog", watchdog, parse_time_ns),
        pfc_watchdog_action=action,
        pfc_deadlock=deadlock,
        pfc_response_ns=_read("pfc_response", response, parse_time_ns),
    )


def parse_latency(text: str) -> int:
    """The value of :data:`LATENCY`, in ns.  Raises UserError for anything else."""
    latency_ns = _read(LATENCY, text, parse_time_ns)
    if latency_ns > LONGEST_LATENCY_NS:
        raise Misfit(
            f"{LATENCY} of the switch is {text}: a pipeline takes {LONGEST_LATENCY_NS / 1e6:g} ms "
            "at most",
            LATENCY,
        )
    return latency_ns


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
    lines = (f"  {name + '=' + values:<33}{text}" for name, (values, text) in DESCRIBED.items())
    return "\n".join((*lines, *(f"  {line}" for line in EXPLAINED)))


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return NONE if value is None else str(value)


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


def _read(key: str, value: str, reader: Callable[[str], int]) -> int:
    try:
        return reader(value)
    except UnitError as error:
        raise Misfit(f"{key} of the switch: {error}", key) from None


def _depth(key: str, value: str) -> int | OfBdp:
    if match := OF_BDP.fullmatch(value):
        return OfBdp(Fraction(match[1]))
    try:
        return parse_size(value)
    except UnitError as error:
        raise Misfit(f"{key} of the switch: {error}, or 0.2bdp", key) from None


def _depth_or_none(key: str, value: str) -> int | OfBdp | None:
    return None if value == NONE else _depth(key, value)


def _octets(key: str, value: str) -> int:
    return _read(key, value, parse_size)


def _chance(key: str, value: str) -> float:
    chance = _number(value)
    if not 0 < chance <= 1:
        raise UserError(f"{key} is {value!r}: a marking probability is above 0, at most 1")
    return chance


def _share(key: str, value: str) -> float:
    share = _number(value)
    if not 0 <= share <= LARGEST_DATA_SHARE:
        raise UserError(
            f"{key} is {value!r}: data own a share of 0 to {LARGEST_DATA_SHARE:g} of the link"
        )
    return share


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def _switch(key: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise UserError(f"{key} is {value!r}: a switch takes {key}=on or {key}=off")
    return value == "on"


def _queue(key: str, value: str) -> str:
    if value not in ("high", "medium"):
        raise UserError(f"{key} is {value!r}: trimmed packets go to the queue high or medium")
    return value


def _class_queue(key: str, value: str) -> str:
    if value not in CLASS_QUEUES:
        raise Misfit(f"{key} is {value!r}: queues are {' or '.join(CLASS_QUEUES)}", key)
    return value


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


_RULES: Mapping[str, Callable[[str, str], Any]] = {
    "kmin_bytes": _depth,
    "kmax_bytes": _depth_or_none,
    "pmax": _chance,
    "trim_bytes": _depth_or_none,
    "limit_bytes": _depth_or_none,
}
#: What can be changed in a profile, with its reader.
CHANGES: dict[str, Callable[[str, str], Any]] = {
    "trim_size": _octets,
    "trimmed_queue": _queue,
    "data_share": _share,
    "last_hop_ecn": _switch,
}
CHANGES |= {f"{name}.{rule}": reader for name in CLASS_NAMES for rule, reader in _RULES.items()}
CHANGES |= {f"{DSCP}{number}": _class_queue for number in range(CODE_POINTS)}
PARAMETERS = (
    *("balance", "flowlet_gap", LATENCY, TRIM, "pfc", *PAUSING),
    *LINK_PARAMETERS,
    *CHANGES,
)

MEANINGS: Mapping[str, str] = {
    "shallow": "trims beyond one BDP, drops beyond two",
    "deep": "drops beyond five BDP",
    "lossless": "marks, pauses who sends too much (PFC), never drops data",
    NONE: "no ASIC: plain queues of the kernel, no marks",
}
DESCRIBED: Mapping[str, tuple[str, str]] = {
    "balance": ("METHOD", f"the next hop of a packet: {', '.join(METHODS)}; default flow"),
    "flowlet_gap": ("TIME", "balance=flowlet: pause that ends a burst; default one base RTT"),
    LATENCY: ("TIME", "of the pipeline, before a frame is queued; virtual clock only; default 0"),
    TRIM: ("on|off", "cut packets that find no room, or drop them at the limit"),
    "trim_size": (
        "SIZE",
        "octets of IP payload that trimming leaves; default 24, more if secured",
    ),
    "trimmed_queue": ("high|medium", "where trimmed packets wait; default high, with control"),
    "data_share": ("0..0.5", "of the link, that control cannot take from data; default 0.05"),
    "last_hop_ecn": ("on|off", "ports that face a NIC mark, or leave that hop to RCCC"),
    "pfc": ("on|off", "lossless: pause the other end of a cable whose buffer fills; default on"),
    "xoff": ("DEPTH", "buffer held by a port from which it pauses; default 0.5bdp"),
    "xon": ("DEPTH", "and down to which it lets go on; default two frames below xoff"),
    "headroom": ("DEPTH", "kept free beyond xoff; default what rate, cable and MTU ask for"),
    "pfc_priority": ("0..7", "that PAUSE frames name; default: the class selector of data's DSCP"),
    "pfc_response": ("TIME", "that devices take to obey, beside cables and frames; default 0"),
    "pfc_watchdog": ("TIME|off", "pause on end by a NIC that is taken for a storm; default off"),
    "pfc_watchdog_action": ("drop|forward", "what becomes of that queue then; default drop"),
    "pfc_deadlock": ("refuse|allow", "fabrics whose routes have a circle; default refuse"),
    **DESCRIBED_LINKS,
    "CLASS.kmin_bytes": ("DEPTH", "queue from which packets are marked (ECN); default 0.2bdp"),
    "CLASS.kmax_bytes": ("DEPTH|none", "queue from which all are; default 0.8bdp"),
    "CLASS.pmax": ("0..1", "share marked just below that; default 1"),
    "CLASS.trim_bytes": ("DEPTH|none", "queue from which packets are trimmed"),
    "CLASS.limit_bytes": ("DEPTH|none", "queue from which packets are dropped"),
    "dscp.N": ("high|low", "the queue of code point N: with control, served first, or with data"),
}
EXPLAINED = (
    f"CLASS is one of {', '.join(CLASS_NAMES)}.",
    "Endpoints of a lab repeat with the code point of data: those are no class retransmission.",
    "DEPTH is a size (20KiB) or a multiple of slowest link x base RTT (0.2bdp).",
)
