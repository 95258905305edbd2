"""The congestion controls of RoCEv2 by name: those of its ``rate_controls``, and users' own.

A control enters itself by ``RATE_CONTROLS.register`` with its name, which is the value of ``cc``
from the command line to the endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emulator.rocev2.congestion.pacing import Notifier, Pacer
from topologies.registry import Registry


@dataclass(frozen=True, kw_only=True)
class RateControl:
    """A congestion control by its ``name``; ``meaning`` is for people.

    ``tuned`` makes its parameters from an :class:`~emulator.rocev2.config.HcaConfig`, and
    raises :class:`~uet.congestion.congestion_parameters.ParameterError` for what cannot be.
    ``open`` makes the sender's and the receiver's side of a new queue pair from them, the config
    and the time (ns); ``None`` does nothing.
    """

    name: str
    meaning: str
    tuned: Callable[[Any], Any]
    open: Callable[[Any, Any, int], tuple[Pacer | None, Notifier | None]]
    #: Whether the receiver sends CNPs.
    notifies: bool


RATE_CONTROLS: Registry[RateControl] = Registry(
    "congestion control of RoCEv2", "emulator.rocev2.congestion.rate_controls"
)
