"""The congestion controls of sources by name: those of :mod:`uet.congestion.controls`, and users'.

A control enters itself by ``CONTROLS.register`` with its name, which is the value of ``cc`` from
the command line to the context, and with what opens its limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from topologies.registry import Registry
from uet.congestion.congestion_parameters import PathParameters
from uet.congestion.context import Window
from uet.congestion.receiver_credit import CreditSource

P = TypeVar("P", bound=PathParameters)


@dataclass(frozen=True)
class Tuning:
    """Parameters of all congestion controls on one path, by the name of the control.

    ``fixed_window`` is the window (octets) of a control without any other.
    """

    by_name: Mapping[str, PathParameters]
    fixed_window: int

    def of(self, name: str, kind: type[P]) -> P:
        """Return the parameters of the control ``name``, which are of ``kind``."""
        parameters = self.by_name[name]
        assert isinstance(parameters, kind)
        return parameters


@dataclass(frozen=True, kw_only=True)
class CongestionControl:
    """A congestion control of sources (UES 3.6), by its ``name``; ``meaning`` is for people.

    ``window`` opens the limit of octets in flight, for a new peer at a time (ns), ``credit`` the
    state of receiver credit; one of them is there.  ``parameters`` is the class of its own
    parameters, which users set as ``NAME.PARAMETER``; ``reads`` are the controls whose parameters
    it works with, where not its own.  An ``adaptive`` one changes its window with what it measures.
    """

    name: str
    meaning: str
    window: Callable[[Tuning, int], Window] | None = None
    credit: Callable[[Tuning], CreditSource] | None = None
    parameters: type[PathParameters] | None = None
    reads: tuple[str, ...] = ()
    adaptive: bool = False

    def takes(self, name: str) -> bool:
        """Return whether the parameters of the control ``name`` have an effect on this one."""
        return name in (self.reads or (self.name,))


CONTROLS: Registry[CongestionControl] = Registry("congestion control", "uet.congestion.controls")


def tuned_controls() -> dict[str, type[PathParameters]]:
    """Return the classes of parameters that congestion controls have, by the control's name."""
    return {name: one.parameters for name, one in CONTROLS.items() if one.parameters is not None}
