"""The congestion controls of RoCEv2 by name: those of its ``rate_controls``, and users' own.

A control enters itself by ``RATE_CONTROLS.register`` with its name, which is the value of ``cc``
from the command line to the endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emulator.rocev2.congestion.pacing import Notifier, Pacer
from topologies.registry import Registry, parameter_fields
from uet.congestion.congestion_parameters import ParameterError, Parameters


@dataclass(frozen=True, kw_only=True)
class RateControl:
    """A congestion control by its ``name``; ``meaning`` is for people.

    ``open`` makes the sender's and the receiver's side of a new queue pair from its parameters, an
    :class:`~emulator.rocev2.config.HcaConfig` and the time (ns); ``None`` does nothing.
    ``parameters`` is the class of those that users set as ``NAME.PARAMETER``.  A control that has
    sets of them makes them by ``tune`` from the config, and raises
    :class:`~uet.congestion.congestion_parameters.ParameterError` for what cannot be.
    """

    name: str
    meaning: str
    open: Callable[[Any, Any, int], tuple[Pacer | None, Notifier | None]]
    #: Whether the receiver sends CNPs.
    notifies: bool
    parameters: type[Parameters] | None = None
    tune: Callable[[Any], Any] | None = None

    def tuned(self, config: Any) -> Any:
        """Return the parameters for the adapter with ``config``; ParameterError as above."""
        if self.tune is not None:
            return self.tune(config)
        known = [field.name for field in parameter_fields(self.parameters)]
        for name in config.cc_parameters:
            if name not in known:
                raise ParameterError(
                    f"{self.name} has no parameter {name!r}; it has {', '.join(known) or 'none'}"
                )
        return None if self.parameters is None else self.parameters(**config.cc_parameters)


RATE_CONTROLS: Registry[RateControl] = Registry(
    "congestion control of RoCEv2", "emulator.rocev2.congestion.rate_controls"
)
