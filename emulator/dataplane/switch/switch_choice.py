"""The switch that a user requests: ``shallow:balance=packet,trim=off,data.kmin_bytes=20KiB``.

A profile of :mod:`emulator.dataplane.switch.switch_profile`, and what shall be different: any of
:mod:`emulator.dataplane.switch.parameters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from emulator.dataplane.switch import parameters as table
from emulator.dataplane.switch.balancing import METHODS, Balancing, number_of
from emulator.dataplane.switch.parameters import (
    CBFC,
    CHANGES,
    LLR,
    LOSSLESS_CLASSES,
    PARAMETERS,
    PFC,
    POOL,
    TRIM,
    Parameter,
)
from emulator.dataplane.switch.switch_profile import PAUSING, POOLS, PROFILES
from emulator.errors import UserError
from topologies.advice import meant
from uet.wire.codes import MIN_TRIM_SIZE

DEFAULT = "shallow"
NONE = "none"
#: The profile whose data class is not to lose anything, with a buffer for each port.
LOSSLESS = "lossless"
#: What ``trim=on`` sets where the profile does not trim (UES 4.1, in units of the BDP).
TRIMMING = {
    "data.trim_bytes": table.OfBdp(Fraction(1)),
    "retransmission.trim_bytes": table.OfBdp(Fraction(3, 2)),
}
EXPLAINED = (
    f"CLASS is one of {', '.join(table.CLASS_NAMES)}.",
    "Endpoints of a lab repeat with the code point of data: those are no class retransmission.",
    "DEPTH is a size (20KiB) or a multiple of slowest link x base RTT (0.2bdp).",
)
MEANINGS: Mapping[str, str] = {
    "shallow": "trims beyond one BDP, drops beyond two",
    "deep": "drops beyond five BDP",
    "lossless": "marks, pauses who sends too much (PFC), never drops data",
    "th5": "lossless, 167 MB shared by all ports, as Broadcom's Tomahawk 5",
    "spectrum": "lossless, 158 MB shared by all ports, as NVIDIA's Spectrum-4",
    "jericho": "drops, 8 GB shared by all ports, as Broadcom's Jericho 2",
    NONE: "no ASIC: plain queues of the kernel, no marks",
}


def _parts(choice: object, parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """Return what ``choice`` has of ``parameters`` beside its defaults, as users write it."""
    usual = {one.name: one.default for one in fields(choice)}  # type: ignore[arg-type]
    said = {name for name, default in usual.items() if getattr(choice, name) != default}
    return {
        key: table.written(getattr(choice, one.field), "ns" if one.field.endswith("_ns") else "")
        for key, one in parameters.items()
        if (one.beside or one.field) in said
    }


def _pool_parts(profile: str, pool: table.PoolChoice | None) -> dict[str, str]:
    """Return what ``pool`` has beside that of the switch ``profile``, as users write it."""
    usual = POOLS.get(profile)
    if pool is None:
        return {} if usual is None else {POOL: NONE}
    return {
        key: table.written(getattr(pool, one.field))
        for key, one in table.OF_POOL.items()
        if usual is None or getattr(pool, one.field) != getattr(usual, one.field)
        if (key, getattr(pool, one.field)) != ("headroom_pool", None)
    }


def _fields(parameters: Mapping[str, Parameter], stated: dict[str, str]) -> dict[str, Any]:
    """Take what is about ``parameters`` out of ``stated``; return it as fields of a choice."""
    return {
        one.field: one.kind.read(key, stated.pop(key))
        for key, one in parameters.items()
        if key in stated
    }


@dataclass(frozen=True, kw_only=True)
class SwitchChoice(table.SwitchParameters):
    """Parameters that go together; raises UserError for others."""

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
        if self.pausing is not None and self.profile not in PAUSING:
            raise UserError(
                f"pfc=on pauses a lossless class, and the switch {self.profile} has none: "
                f"take {LOSSLESS}"
            )
        if self.cbfc is not None and self.profile not in PAUSING:
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
        for key, one in CHANGES.items():
            if one.of == TRIM and key in self.changes and not self.trims:
                raise UserError(
                    f"{key} says nothing of the switch {self.profile} without trimming: "
                    "say trim=on, or leave it out"
                )
        self._check_pool()
        object.__setattr__(self, "changes", MappingProxyType(dict(self.changes)))

    def _check_pool(self) -> None:
        """Refuse what is said of a pool that is not there, and of one twice."""
        alphas = [key for key, one in CHANGES.items() if one.of == POOL and key in self.changes]
        pausing = self.pausing
        if pausing is not None:
            if pausing.pfc_alpha is not None:
                alphas.append("pfc_alpha")
                if pausing.xoff is not None:
                    raise UserError(
                        "xoff and pfc_alpha both say where a port pauses: keep one of them"
                    )
            if pausing.xon is not None and (
                pausing.xon_offset is not None or (self.pool is not None and pausing.xoff is None)
            ):
                raise UserError(
                    "xon is a depth, and below an XOFF that follows the pool, or beside "
                    "xon_offset, it says nothing: leave it out, or set xoff"
                )
        kept = self.pool is not None and self.pool.headroom_pool_bytes is not None
        if kept and (pausing is None or pausing.xoff is not None):
            raise UserError(
                "headroom_pool says nothing where no port's XOFF follows the pool: leave it out"
            )
        if self.pool is None and alphas:
            raise UserError(
                f"{alphas[0]} says nothing without a pool: add pool=SIZE, or leave it out"
            )
        if self.pausing is not None or self.cbfc is not None:
            for key in alphas:
                if key.partition(".")[0] in LOSSLESS_CLASSES:
                    raise UserError(
                        f"{key} says nothing of packets that are never dropped: set pfc_alpha, or "
                        "take pfc=off"
                    )

    @property
    def method(self) -> int:
        return number_of(self.balance)

    @property
    def virtual_only(self) -> bool:
        """Return whether the switch takes the virtual clock of a run."""
        parts = (self.llr, self.cbfc, self.pool)
        departing = self.mark_on == table.DEPARTURE
        return departing or bool(self.latency_ns) or any(part is not None for part in parts)

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
        parts = {"balance": self.balance} | _parts(self, table.OWN)
        if self.profile in PAUSING:
            parts[PFC] = table.written(self.pausing is not None)
        for name, choice, parameters in (
            (PFC, self.pausing, table.OF_PFC),
            (LLR, self.llr, table.OF_LLR),
            (CBFC, self.cbfc, table.OF_CBFC),
        ):
            if choice is not None:
                parts |= {name: "on"} | _parts(choice, parameters)
        parts |= _pool_parts(self.profile, self.pool)
        parts |= {key: table.written(value) for key, value in self.changes.items()}
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
    stated: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not (key and equals and value):
            raise UserError(f"{item!r} in switch {text!r} is not param=value, such as trim=off")
        if key not in PARAMETERS:
            known = sorted(PARAMETERS, key=CHANGES.__contains__)
            raise UserError(f"a switch has no parameter {key!r}{_near(key, known)}")
        if key in stated:
            raise UserError(f"{key} is given twice in switch {text!r}: keep one of them")
        stated[key] = value
    llr = _link_layer(LLR, table.LlrChoice, table.OF_LLR, stated)
    cbfc = _link_layer(CBFC, table.CbfcChoice, table.OF_CBFC, stated)
    pausing = _pausing(profile, stated, credited=cbfc is not None)
    return SwitchChoice(
        name=text.strip(),
        profile=profile,
        **_fields(table.OWN, stated),
        llr=llr,
        cbfc=cbfc,
        pool=_pool(profile, stated, pausing),
        pausing=pausing,
        changes=_changes(profile, stated),
    )


def _link_layer(
    name: str, choice: type, parameters: Mapping[str, Parameter], stated: dict[str, str]
) -> Any:
    """Take what is about ``name`` out of ``stated``, and return its ``choice``; None: it is off."""
    on = table.ON_OFF.read(name, stated.pop(name, "off"))
    for key in parameters:
        if key in stated and not on:
            raise UserError(f"{key} says nothing without {name}=on: add that, or leave it out")
    return choice(**_fields(parameters, stated)) if on else None


def _pool(
    profile: str, stated: dict[str, str], pausing: table.PauseChoice | None
) -> table.PoolChoice | None:
    """Take what is about the pool out of ``stated``, and return it; None: there is none."""
    usual = POOLS.get(profile)
    given = _fields(table.OF_POOL, stated)
    if given.get("pool_bytes", usual) is None:
        given.pop("pool_bytes", None)
        for key, one in table.OF_POOL.items():
            if one.field in given:
                raise UserError(
                    f"{key} says nothing without a pool: add pool=SIZE, or leave it out"
                )
        return None
    if usual is None:
        return table.PoolChoice(**given)
    if pausing is None or pausing.xoff is not None:
        usual = replace(usual, headroom_pool_bytes=None)
    return replace(usual, **given)


def _pausing(profile: str, stated: dict[str, str], *, credited: bool) -> table.PauseChoice | None:
    """Takes what is about PFC out of ``stated``: on by default where it keeps data from loss."""
    default = "on" if profile in PAUSING and not credited else "off"
    if table.ON_OFF.read(PFC, stated.pop(PFC, default)):
        return table.PauseChoice(**_fields(table.OF_PFC, stated))
    for key in table.OF_PFC:
        if key not in stated:
            continue
        if credited:
            raise UserError(f"{key} is PFC's, and cbfc=on takes its place: keep one of them")
        raise UserError(
            f"{key} says nothing without priority flow control: "
            + ("say pfc=on" if profile in PAUSING else f"take the switch {LOSSLESS}")
            + ", or leave it out"
        )
    return None


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
    lines = (
        f"  {name + '=' + values:<33}{text}" for name, (values, text) in table.described().items()
    )
    return "\n".join((*lines, *(f"  {line}" for line in EXPLAINED)))


def _changes(profile: str, stated: dict[str, str]) -> dict[str, Any]:
    """Return what is left of ``stated``: changes of the profile."""
    changes: dict[str, Any] = {}
    if TRIM in stated:
        trim = stated.pop(TRIM)
        on = table.ON_OFF.read(TRIM, trim)
        for key in TRIMMING:
            if key in stated and on is (stated[key] == NONE):
                raise UserError(
                    f"trim={trim} and {key}={stated[key]} contradict each other: "
                    "leave one of them out"
                )
        if not on:
            changes = dict.fromkeys(TRIMMING)
        elif profile != DEFAULT:
            changes = dict(TRIMMING)
    return changes | {key: CHANGES[key].kind.read(key, value) for key, value in stated.items()}


def _near(name: str, known: Iterable[str]) -> str:
    """Return a hint to ``known`` names, with the parameters of classes listed once."""
    names = list(known)
    listed = [name for name in names if "." not in name]
    if len(listed) < len(names):
        listed.append(f"{{{'|'.join(table.CLASS_NAMES)}}}.{{{'|'.join(table.OF_CLASS)}}}")
        listed.append(f"{table.DSCP}N")
    return f"{meant(name, names)}; known are {', '.join(listed)}"
