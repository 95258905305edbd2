"""No congestion control: a queue pair sends as fast as the port."""

from __future__ import annotations

from typing import Any

from emulator.rocev2.congestion.rate_registry import RATE_CONTROLS, RateControl


def _open(parameters: None, config: Any, now: int) -> tuple[None, None]:
    return None, None


RATE_CONTROLS.register(
    RateControl(name="none", meaning="as fast as the port", open=_open, notifies=False)
)
