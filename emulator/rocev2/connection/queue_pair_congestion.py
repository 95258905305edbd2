"""The congestion control of an endpoint's queue pairs, chosen by name."""

from __future__ import annotations

from emulator.rocev2.congestion.pacing import Notifier, Pacer
from emulator.rocev2.congestion.rate_controls import RATE_CONTROLS
from emulator.rocev2.hca_config import HcaConfig


class QueuePairCongestion:
    """Opens the two sides of congestion control for each queue pair."""

    def __init__(self, config: HcaConfig) -> None:
        self._control = RATE_CONTROLS[config.cc]
        self._parameters = self._control.parameters(config)
        self._config = config

    def open(self, now: int) -> tuple[Pacer | None, Notifier | None]:
        """Return the sender's and the receiver's side for a new queue pair."""
        return self._control.open(self._parameters, self._config, now)
