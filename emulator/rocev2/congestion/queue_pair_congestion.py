"""The congestion control of an endpoint's queue pairs, chosen by name."""

from __future__ import annotations

from emulator.rocev2.congestion.dcqcn import NotificationPoint, ReactionPoint
from emulator.rocev2.congestion.pacing import Notifier, Pacer
from emulator.rocev2.hca_config import HcaConfig


class Congestion:
    """Opens the two sides of congestion control for each queue pair."""

    def __init__(self, config: HcaConfig) -> None:
        self._parameters = config.reaction()
        self._line_rate = config.line_rate
        self._burst = config.pacing_burst

    def open(self, now: int) -> tuple[Pacer | None, Notifier | None]:
        """The sender's and the receiver's side for a new queue pair; ``None`` does nothing."""
        parameters = self._parameters
        if parameters is None:
            return None, None
        limiter = ReactionPoint(parameters, self._line_rate, now)
        return Pacer(limiter, self._burst), NotificationPoint(parameters.cnp_interval)
