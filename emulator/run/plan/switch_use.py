"""Parameters of the switch that cannot have an effect in a run, which are refused.

A switch treats packets by class, and each transport sends packets of some classes only: marks for a
class that nobody sends would be silent.  A switch may have the same for several classes, so that it
suits several transports.  In a lab users send what they want; nothing is refused there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from emulator.dataplane.switch.bpf.layout import TrafficClass
from emulator.dataplane.switch.code_points import LAB
from emulator.dataplane.switch.switch_choice import OF_TRIMMING, TRIM, SwitchChoice
from emulator.dataplane.switch.switch_profile import CLASS_NAMES, DSCP, TRIMMED_NAMES, named
from emulator.errors import UserError
from emulator.run.plan.stages import StageChoice
from emulator.transports.transport_choice import TransportChoice

#: What of a class is about marks alone.
MARKS = ("kmin_bytes", "kmax_bytes", "pmax")


class Used(Protocol):
    """A transport on a switch."""

    @property
    def transport(self) -> TransportChoice: ...

    @property
    def switch(self) -> SwitchChoice | None: ...


def check_use(asked: str | None, stages: Sequence[Used]) -> None:
    """Raise UserError for a parameter of the user's switch ``asked`` that no stage has a use for.

    The stages are those that run on it.
    """
    switches = [(one.transport, one.switch) for one in stages if one.switch is not None]
    if asked is None or not switches:
        return
    useless: dict[str, tuple[str, str]] = {}
    used = set()
    for key, value in StageChoice.parse(asked).options:
        reasons = [_useless(key, value, *one) for one in switches]
        if all(reasons):
            useless[f"{key}={value}"] = _kind(key), str(reasons[0])
        else:
            used.add(_kind(key))
    for parameter, (kind, reason) in useless.items():
        if kind not in used:
            raise UserError(f"{parameter} of the switch has no effect here: {reason}")


def _kind(key: str) -> str:
    """Return what ``key`` has in common with the same of other classes, or code points."""
    name, dot, rule = key.partition(".")
    return name if f"{name}{dot}" == DSCP else rule or name


def _useless(key: str, value: str, transport: TransportChoice, switch: SwitchChoice) -> str | None:
    """Return why ``key`` has no effect, and what would do; None if it can have one."""
    classes = _classes(switch, transport.code_points)
    marked = _classes(switch, (point for point, ecn in transport.code_points.items() if ecn))
    data = [name for name in CLASS_NAMES[:3] if name in classes]
    trimmed = switch.trims and not classes.isdisjoint(TRIMMED_NAMES)
    if trimmed:
        classes, marked = classes | {"trimmed"}, marked | {"trimmed"}
    whose = f"transport {transport.name}"
    instead = " or ".join(data)
    name, dot, rule = key.partition(".")
    if f"{name}{dot}" == DSCP:
        written = {LAB.trimmed, LAB.trimmed_last_hop} if trimmed else set()
        if int(rule) in {*transport.code_points, *written}:
            return None
        points = ", ".join(map(str, sorted(transport.code_points)))
        return f"packets of {whose} have the code points {points}"
    if dot and name not in classes:
        if name == "trimmed":
            return f"no packet of {whose} is trimmed on this switch"
        return f"{whose} sends no packet of class {name}; write {instead}.{rule}"
    if dot and rule in MARKS and name not in marked:
        return (
            f"packets of class {name} that {whose} sends are not ECN-capable; write "
            f"{instead}.{rule}"
        )
    if (key in OF_TRIMMING or (key == TRIM and value == "on")) and not trimmed:
        return f"no packet of {whose} is trimmed on this switch; its data are of class {instead}"
    return None


def _classes(switch: SwitchChoice, code_points: Iterable[int]) -> set[str]:
    """Return the names of the classes that packets of ``code_points`` have."""
    moved = {key: queue for key, queue in switch.changes.items() if key.startswith(DSCP)}
    profile = named(switch.profile, bdp_bytes=1 << 20, mtu=1500, code_points=LAB, changes=moved)
    table = profile.classes()
    return {TrafficClass(table[point]).name.lower() for point in code_points}
