"""The account of every frame that went into a node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Account:
    """The account of every frame that went into a node."""

    injected: int = 0
    delivered: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, object]:
        """Return the account for a result file."""
        return {
            "injected": self.injected,
            "delivered": self.delivered,
            "dropped": dict(sorted(self.dropped.items())),
        }
