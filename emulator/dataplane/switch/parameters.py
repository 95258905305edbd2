"""The parameters of the emulated switch: one table, which everybody else reads.

A parameter is a field of the class of its mechanism, made by :func:`parameter`: what it takes and
means, its default, and the member of the program's settings that has it.  To add one, add its field
here, its ``member`` in C (``bpf/asic.h``, behind those of its class) if the program reads it, and
what acts on it.

A user writes it ``NAME=VALUE``.  Depths are octets, or multiples of the fabric's bandwidth-delay
product (``0.2bdp``), which only a topology has: see
:mod:`emulator.dataplane.switch.switch_fitting`.

Link layer retry (UES 5.1) and credit-based flow control (UES 5.2) are off unless a user says
``llr=on`` or ``cbfc=on``.  They hold at both ends of every cable that a switch is at.  Their
defaults are those of a conformance test's model of UES 1.0.3 where there are any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

from emulator.dataplane.kernel.shaping import DATA_SHARE, LARGEST_DATA_SHARE
from emulator.dataplane.switch.balancing import METHODS
from emulator.errors import Misfit, UserError
from topologies.ethernet import FCS_OCTETS, FRAMING_OCTETS
from topologies.profile.fabric_keys import CODE_POINTS
from topologies.units import UnitError, parse_size, parse_time_ns
from uet.wire.codes import MIN_TRIM_SIZE

NONE = "none"
LATENCY = "latency"
MARK_ON, ARRIVAL, DEPARTURE = "mark_on", "arrival", "departure"
#: Mechanisms; the words turn them on.
ECN, TRIM, PFC, LLR, CBFC = "ecn", "trim", "pfc", "llr", "cbfc"
POOL, ALPHA = "pool", "alpha"
CLASS_NAMES = ("data", "retransmission", "untrimmed", "trimmed", "control")
#: What shares the queue that a pause stops.
LOSSLESS_CLASSES = ("data", "retransmission", "untrimmed")
#: Where packets of a code point can be made to wait; the parameters for it begin so.
CLASS_QUEUES = ("high", "low")
DSCP = "dscp."
OF_BDP = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*bdp", re.IGNORECASE)
LONGEST_LATENCY_NS = 1_000_000
#: Frames that may be outstanding, at most.
MOST_OUTSTANDING = 524_288
#: The deepest queue: the kernel counts its octets in 32 bits, and its queue is twice the model's.
DEEPEST = 2**31 - 1
#: The largest pool: times the largest alpha it still fits the program's 64 bits.
LARGEST_POOL = 2**36


@dataclass(frozen=True, slots=True)
class OfBdp:
    """A depth as a multiple of the bandwidth-delay product of the fabric."""

    multiple: Fraction

    def __str__(self) -> str:
        return f"{float(self.multiple):.9f}".rstrip("0").rstrip(".") + "bdp"

    def octets(self, bdp_bytes: int) -> int:
        return round(self.multiple * bdp_bytes)


def in_octets(value: Any, bdp_bytes: int) -> Any:
    """Return ``value``, a depth as octets."""
    return value.octets(bdp_bytes) if isinstance(value, OfBdp) else value


#: Where marks begin, where all are marked, and where pauses begin, if nobody says otherwise.
KMIN, KMAX, XOFF = OfBdp(Fraction(1, 5)), OfBdp(Fraction(4, 5)), OfBdp(Fraction(1, 2))


# ---------------------------------------------------------------------- kinds of values


#: What most refusals begin with.
IS = "{key} is {value!r}: "


@dataclass(frozen=True, slots=True)
class Kind:
    """What a parameter takes: ``values`` for people, and ``parse``, which reads one.

    ``refusal`` is what users are told where that raises ValueError, or the value does not fit; of
    quantities UnitError says it.
    """

    values: str
    parse: Callable[[str], Any]
    refusal: str = ""
    fits: Callable[[Any], bool] | None = None
    error: Callable[..., UserError] = Misfit

    def read(self, key: str, text: str) -> Any:
        """Return the value of parameter ``key``.  Raises UserError if ``text`` is none."""
        try:
            value = self.parse(text)
        except UnitError as error:
            raise Misfit(f"{key} of the switch: {error}", key) from None
        except ValueError:
            raise self._refused(key, text) from None
        if self.fits is not None and not self.fits(value):
            raise self._refused(key, text)
        return value

    def check(self, key: str, value: Any) -> None:
        """Raise UserError for a ``value``, made in Python, that :meth:`read` never returns."""
        if self.fits is not None:
            with suppress(TypeError):
                if self.fits(value):
                    return
            raise self._refused(key, value)
        if not (self.refusal or (value is None and self.values.endswith(NONE))):
            check_whole(key, value)

    def _refused(self, key: str, value: object) -> UserError:
        blamed = (key,) if self.error is Misfit else ()
        return self.error(self.refusal.format(key=key, value=value), *blamed)


def check_whole(name: str, value: object) -> None:
    """Raise UserError unless ``value`` is a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"{name} is {value!r}: give a whole number")


def written(value: object, unit: str = "") -> str:
    """Return ``value`` as users write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return NONE if value is None else f"{value}{unit}"


def _or(word: str, value: Any, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: value if text == word else parse(text)


def _depth(text: str) -> int | OfBdp:
    if match := OF_BDP.fullmatch(text):
        return OfBdp(Fraction(match[1]))
    try:
        return parse_size(text)
    except UnitError as error:
        raise UnitError(f"{error}, or 0.2bdp") from None


def _whole(text: str) -> int:
    if not re.fullmatch("-?[0-9]+", text):
        raise ValueError(text)
    return int(text)


def _number(least: int, most: int) -> Kind:
    """A whole number of ``least`` to ``most``."""
    refusal = f"{IS}give a number of {least} to {most}"
    return Kind(f"{least}..{most}", _whole, refusal, range(least, most + 1).__contains__)


def _words(what: str, *known: str) -> Kind:
    """One of the words ``known``; ``what`` takes them."""
    return Kind("|".join(known), str, f"{IS}{what} {' or '.join(known)}", known.__contains__)


# ---------------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: what it takes, what it means, and what is ``said`` of its default.

    ``of`` is its mechanism, where that is not all that its class is about, and ``field`` that of
    its class.  It is written where it has not its default, or, if there is one, where the field
    ``beside`` has not.  ``member`` of the program's settings has it, in a format of the module
    ``struct``.
    """

    kind: Kind
    meaning: str
    said: str = ""
    of: str = ""
    field: str = ""
    beside: str = ""
    member: tuple[str, str] | None = None


def parameter(default: Any, kind: Kind, meaning: str, said: str | None = None, **more: Any) -> Any:
    """Return the field of a parameter; ``said`` is its default for people, "" if none is said."""
    shown = more.pop("repr", True)
    said = written(default) if said is None else said
    entry = Parameter(kind, meaning, said and f"; default {said}", **more)
    return field(default=default, metadata={"entry": entry}, repr=shown)


def _of(mechanism: type, prefix: str = "", ends: str = "_(ns|bytes)$") -> dict[str, Parameter]:
    """Return the parameters of ``mechanism`` by the names that users write."""
    return {
        prefix + re.sub(ends, "", one.name): replace(one.metadata["entry"], field=one.name)
        for one in fields(mechanism)
        if one.metadata
    }


# fmt: off
SIZE, TIME = Kind("SIZE", parse_size), Kind("TIME", parse_time_ns)
DEPTH, DEPTH_OR_NONE = Kind("DEPTH", _depth), Kind("DEPTH|none", _or(NONE, None, _depth))
TIMER = Kind("TIME", parse_time_ns,
    "{key} of the switch is {value}: a timer runs for longer than 0", lambda ns: ns > 0)
ON_OFF = Kind("on|off", lambda text: bool(("off", "on").index(text)),
    f"{IS}a switch takes {{key}}=on or {{key}}=off", error=UserError)
#: The name of a load balancing, which the choice looks up.
METHOD = Kind("METHOD", str)
#: More is no bound: a queue so deep does not fit what is free.
LARGEST_ALPHA = 128
ALPHAS = Kind(f"0..{LARGEST_ALPHA}", float,
    f"{IS}alpha, times what is free in the pool, is above 0, at most {LARGEST_ALPHA}",
    lambda x: x is None or 0 < x <= LARGEST_ALPHA, UserError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRules:
    """The treatment of packets of one class by the depth of their queue in octets.

    ECN-capable packets are marked with a probability that grows from 0 at ``kmin_bytes`` to
    ``pmax`` at ``kmax_bytes`` and is 1 from there on; None never marks.  A packet that would make
    the queue deeper than ``trim_bytes`` is trimmed, deeper than ``limit_bytes`` dropped; None
    never does.  Of the pool that ports share, the queue takes ``alpha`` times what is free; None:
    there is no pool, or the port that packets came in by accounts for them.
    """

    kmin_bytes: int = parameter(0, DEPTH,
        "queue from which packets are marked (ECN)", f"{KMIN}", of=ECN, member=("mark_from", "Q"))
    kmax_bytes: int | None = parameter(None, DEPTH_OR_NONE,
        "queue from which all are", f"{KMAX}", of=ECN, member=("mark_all", "Q"))
    pmax: float = parameter(1.0, Kind("0..1", float,
        f"{IS}a marking probability is above 0, at most 1", lambda x: 0 < x <= 1, UserError),
        "share marked just below that", "1", of=ECN, member=("mark_slope", "Q"))
    trim_bytes: int | None = parameter(None, DEPTH_OR_NONE,
        "queue from which packets are trimmed", "", member=("trim_above", "Q"))
    limit_bytes: int | None = parameter(None, DEPTH_OR_NONE,
        "queue from which packets are dropped", "", member=("limit", "Q"))
    alpha: float | None = parameter(None, ALPHAS,
        "pool: their queue takes so many times what is free of it", "1", of=POOL,
        member=("alpha", "Q"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRules:
    """What holds for all classes.

    ``trimmed_queue`` is ``"high"``, as the two classes of the HTB have it, or ``"medium"``.

    Queues are served in strict priority, but for ``data_share``, the share of the link that the low
    queue owns: data must not starve under trimmed packets and control.  The HTB below needs the
    same value (:func:`emulator.dataplane.kernel.shaping.rate_requests`) if it is not its default.

    Without ``last_hop_ecn`` RCCC looks after the queues that face a NIC itself (UES 3.6.14).
    """

    trim_size: int = parameter(MIN_TRIM_SIZE, SIZE,
        "octets of IP payload that trimming leaves", f"{MIN_TRIM_SIZE}, more if secured",
        of=TRIM, member=("trim_payload", "I"))
    trimmed_queue: str = parameter("high",
        _words("trimmed packets go to the queue", "high", "medium"),
        "where trimmed packets wait", "high, with control", of=TRIM)
    data_share: float = parameter(DATA_SHARE, Kind(f"0..{LARGEST_DATA_SHARE}", float,
        f"{IS}data own a share of 0 to {LARGEST_DATA_SHARE:g} of the link",
        lambda share: 0 <= share <= LARGEST_DATA_SHARE, UserError),
        "of the link, that control cannot take from data", member=("low_share", "Q"))
    last_hop_ecn: bool = parameter(True, ON_OFF,
        "ports that face a NIC mark, or leave that hop to RCCC", "")


@dataclass(frozen=True, kw_only=True)
class PauseChoice:
    """Priority flow control of the switch.

    None: what the fabric needs (:mod:`emulator.dataplane.switch.switch_fitting`).

    ``pfc_priority`` is the one that PAUSE frames name for the lossless class.
    ``pfc_watchdog_ns`` (fabric time) is how long a NIC may pause its switch on end, 0 for ever.
    """

    xoff: int | OfBdp | None = parameter(None, DEPTH,  # noqa: RUF009  it makes a field
        "buffer held by a port from which it pauses", f"{XOFF}", member=("xoff", "Q"))
    xon: int | OfBdp | None = parameter(None, DEPTH,  # noqa: RUF009  it makes a field
        "and down to which it lets go on", "two frames below xoff", member=("xon", "Q"))
    headroom: int | OfBdp | None = parameter(None, DEPTH,  # noqa: RUF009  it makes a field
        "kept free beyond xoff", "what rate, cable and MTU ask for", member=("ceiling", "Q"))
    pfc_alpha: float | None = parameter(None, ALPHAS,
        "pool: a port pauses from so many times what is free of it, in place of xoff", "1",
        member=("alpha", "Q"))
    xon_offset: int | OfBdp | None = parameter(None, DEPTH,  # noqa: RUF009  it makes a field
        "a port lets go on so far below where it pauses, in place of xon", "two frames")
    pfc_priority: int | None = parameter(None, Kind(
        "0..7", [*map(str, range(8))].index, f"{IS}give one of 0 to 7"),  # IEEE 802.1Q
        "that PAUSE frames name; default: the class selector of data's DSCP", "")
    pfc_watchdog_ns: int = parameter(0, Kind("TIME|off", _or("off", 0, parse_time_ns)),
        "pause on end by a NIC that is taken for a storm", "off")
    pfc_watchdog_action: str = parameter("drop",
        _words("the watchdog takes", "drop", "forward"),
        "what becomes of that queue then", beside="pfc_watchdog_ns")
    pfc_response_ns: int = parameter(0, TIME,
        "that devices take to obey, beside cables and frames")
    pfc_deadlock: str = parameter("refuse", _words("a switch takes", "refuse", "allow"),
        "fabrics whose routes have a cyclic buffer dependency")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChoice:
    """Packet memory that all ports of a switch share, in place of a buffer for each.

    ``reserved_bytes`` are those of each queue of a port, and of each port for what PFC accounts for
    where it came in.  ``headroom_pool_bytes`` None: as much as all ports need together.
    """

    pool_bytes: int = parameter(0, Kind("SIZE|none", _or(NONE, None, parse_size),
        f"{IS}a pool has more than 0 and at most {LARGEST_POOL} octets",
        lambda size: size is None or 0 < size <= LARGEST_POOL),
        "packet memory of a switch that its ports share; runs alone", "a buffer for each port")
    reserved_bytes: int = parameter(0, SIZE,
        "pool: octets of it that each queue of a port has for itself", "0")
    headroom_pool_bytes: int | None = parameter(None, SIZE,
        "pool: headroom of all ports together", "the sum of what they need")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlrChoice:
    """Link layer retry.

    ``buffer_bytes`` of a replay buffer: None for what the cable needs.  ``replays`` is how often in
    a row a frame is replayed before the link gives up, None without a limit.
    """

    buffer_bytes: int | None = parameter(None, SIZE,
        "of a port's replay buffer", "what rate and cable ask for")
    frames: int = parameter(2047, _number(1, MOST_OUTSTANDING), "outstanding")
    timer_ns: int = parameter(65_535, TIMER, "without an ACK, before a replay", "65535ns")
    replays: int | None = parameter(None, Kind("N|unlimited",
        _or("unlimited", None, _or("255", None, _whole)),
        f"{IS}give a number of 1 to 255, or unlimited", lambda n: n is None or 0 < n < 255),
        "in a row before a port sends without retry", "unlimited")


@dataclass(frozen=True, slots=True, kw_only=True)
class CbfcChoice:
    """Credit-based flow control of the data class.

    ``buffer_bytes`` of a port's receive buffer: None for what the cable needs.  ``cell_bytes`` is
    what a credit stands for, ``overhead_bytes`` what each frame counts beside its octets, FCS
    included.
    """

    buffer_bytes: int | None = parameter(None, SIZE,
        "that a port receives data into", "what rate and cable ask for")
    cell_bytes: int = parameter(64, _number(32, 2048), "octets of a credit")
    overhead_bytes: int = parameter(-4, _number(-16, 127),
        "octets that a frame counts beside its own")
    timer_ns: int = parameter(10_000, TIMER, "between repairs of lost credits", "10us")

    def cells_of(self, octets: int) -> int:
        """Return the cells of a frame that takes ``octets`` on the wire."""
        counted = octets - FRAMING_OCTETS + FCS_OCTETS + self.overhead_bytes
        return max(1, -(-counted // self.cell_bytes))


@dataclass(frozen=True, kw_only=True)
class SwitchParameters:
    """The behaviour that all switches of a lab share.

    ``name`` is the choice as the user wrote it.  ``balance`` is one of
    :data:`~emulator.dataplane.switch.balancing.METHODS`; ``flowlet_gap_ns`` (fabric time) is for
    flowlets, 0 stands for one base RTT of the fabric.  ``latency_ns`` is that of the switch's
    pipeline, from a frame's last octet to its admission.  ``changes`` are overrides of
    :func:`emulator.dataplane.switch.switch_profile.named`: by parameter, where a depth may be an
    :class:`OfBdp`. ``pausing`` is priority flow control, ``llr`` and ``cbfc`` the link layer of the
    cables, ``pool`` the memory that ports share; None without.
    """

    name: str
    profile: str
    balance: str = parameter("flow", METHOD,
        "the next hop of a packet", member=("balancing", "I"))
    flowlet_gap_ns: int = parameter(0, TIME,
        "balance=flowlet: pause that ends a burst", "one base RTT", member=("flowlet_gap", "Q"))
    latency_ns: int = parameter(0, Kind("TIME", parse_time_ns,
        f"{{key}} of the switch is {{value}}: a pipeline takes {LONGEST_LATENCY_NS / 1e6:g} ms at "
        "most", lambda ns: ns <= LONGEST_LATENCY_NS),
        "of the pipeline, before a frame is queued; virtual clock only",
        repr=False)  # runs without have the keys that they had
    mark_on: str = parameter(ARRIVAL,
        _words("packets are marked on", ARRIVAL, DEPARTURE),
        "packets are marked (ECN) as they come into their queue, or by what waits behind them as "
        "they leave it; departure: virtual clock only", repr=False)  # the same
    changes: Mapping[str, Any] = field(default_factory=dict)
    pausing: PauseChoice | None = None
    llr: LlrChoice | None = field(default=None, repr=False)  # the same as latency_ns
    cbfc: CbfcChoice | None = field(default=None, repr=False)
    pool: PoolChoice | None = field(default=None, repr=False)


# fmt: on
OWN, OF_PROFILE, OF_CLASS = _of(SwitchParameters), _of(PortRules), _of(ClassRules, ends="$")
OF_DSCP = Parameter(
    _words("queues are", *CLASS_QUEUES),
    "the queue of code point N: with control, served first, or with data",
    member=("class_of", f"{CODE_POINTS}s"),
)
OF_PFC, OF_LLR, OF_CBFC = _of(PauseChoice), _of(LlrChoice, "llr_"), _of(CbfcChoice, "cbfc_")
OF_POOL = _of(PoolChoice)
#: What can be changed in a profile.
CHANGES: Mapping[str, Parameter] = {
    **OF_PROFILE,
    **{f"{name}.{rule}": one for name in CLASS_NAMES for rule, one in OF_CLASS.items()},
    **{f"{DSCP}{number}": OF_DSCP for number in range(CODE_POINTS)},
}
PARAMETERS: Mapping[str, Parameter] = {
    **OWN,
    TRIM: Parameter(ON_OFF, "cut packets that find no room, or drop them at the limit"),
    **OF_PROFILE,
    PFC: Parameter(
        ON_OFF, "lossless: pause the other end of a cable whose buffer fills", "; default on"
    ),
    **OF_PFC,
    LLR: Parameter(
        ON_OFF, "cables replay frames that bit errors took (UES 5.1); virtual clock only"
    ),
    **OF_LLR,
    CBFC: Parameter(ON_OFF, "lossless: credits in place of pauses (UES 5.2); virtual clock only"),
    **OF_CBFC,
    **OF_POOL,
    **CHANGES,
}


def described() -> dict[str, tuple[str, str]]:
    """Return the values of each parameter and what it means; those of classes are once there."""
    once = {name: one for name, one in PARAMETERS.items() if "." not in name}
    once |= {f"CLASS.{rule}": one for rule, one in OF_CLASS.items()} | {f"{DSCP}N": OF_DSCP}
    listed = {METHOD: f": {', '.join(METHODS)}"}  # users may have added some
    return {
        name: (one.kind.values, one.meaning + listed.get(one.kind, "") + one.said)
        for name, one in once.items()
    }


def numbers_of(rules: object, table: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return what ``rules`` has of ``table`` by member of the program's settings; none is 0."""
    return {one.member[0]: getattr(rules, one.field) or 0 for one in table.values() if one.member}


def members(*tables: Mapping[str, Parameter]) -> dict[str, str]:
    """Return the members of the program's settings that have parameters, with their formats."""
    return dict(one.member for table in tables for one in table.values() if one.member)
