"""Which congestion control the queue pairs of an endpoint have."""

from __future__ import annotations

from emulator.rocev2.config import HcaConfig
from emulator.rocev2.pacing import NotificationPoint, Pacer


class Congestion:
    """Opens the two sides of congestion control for each queue pair."""

    def __init__(self, config: HcaConfig) -> None:
        self._config = config

    def open(self, now: int) -> tuple[Pacer | None, NotificationPoint | None]:
        """The sender's and the receiver's side for a new queue pair; ``None`` limits nothing."""
        return None, None
