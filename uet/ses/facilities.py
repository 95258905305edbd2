"""The state that both sides of SES share with their endpoint."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from uet.config import FepConfig
from uet.ses.memory.registered_memory import MemoryTable
from uet.timekeeper import Timekeeper
from uet.transport import Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Facilities:
    """``complete`` takes what has ended, ``counters`` count by name."""

    config: FepConfig
    memory: MemoryTable
    complete: Callable[[Completion], None]
    counters: dict[str, int]
    rng: random.Random
    time: Timekeeper = field(default_factory=Timekeeper)
