"""The registry of RoCEv2's congestion controls, in which each enters itself.

A control is a module of :mod:`emulator.rocev2.congestion.rate_controls`.  It calls
:func:`register` with its name, which is the value of ``cc`` from the command line to the endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emulator.rocev2.congestion.pacing import Notifier, Pacer


@dataclass(frozen=True, kw_only=True)
class RateControl:
    """A congestion control by its ``name``; ``meaning`` is for people.

    ``parameters`` makes its parameters from an :class:`~emulator.rocev2.hca_config.HcaConfig`, and
    raises :class:`~uet.congestion.congestion_parameters.ParameterError` for what cannot be.
    ``open`` makes the sender's and the receiver's side of a new queue pair from them, the config
    and the time (ns); ``None`` does nothing.
    """

    name: str
    meaning: str
    parameters: Callable[[Any], Any]
    open: Callable[[Any, Any, int], tuple[Pacer | None, Notifier | None]]
    #: Whether the receiver sends CNPs.
    notifies: bool


#: All controls by name, in the order of their modules.
RATE_CONTROLS: dict[str, RateControl] = {}


def register(control: RateControl) -> RateControl:
    """Enter ``control`` into the registry; ValueError if its name is taken."""
    if control.name in RATE_CONTROLS:
        raise ValueError(f"there are two congestion controls with the name {control.name!r}")
    RATE_CONTROLS[control.name] = control
    return control
