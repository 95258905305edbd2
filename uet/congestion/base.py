"""What the delivery sublayer asks of congestion control, and the registry of algorithms.

One context serves all PDCs between two endpoints in one traffic class (UES 3.6, CCC).  Sizes are
nominal packet sizes in octets (UES 3.6.12), times ns.
"""

from __future__ import annotations

import abc
from collections.abc import Callable


class CongestionControl(abc.ABC):
    """Decides whether a packet may leave now."""

    @abc.abstractmethod
    def room(self) -> int:
        """How many octets may be sent now (may be negative)."""

    @property
    @abc.abstractmethod
    def window_octets(self) -> int:
        """How many octets may be in flight."""

    @abc.abstractmethod
    def on_send(self, size: int, now: int) -> None:
        """A packet, new or retransmitted, goes out."""

    @abc.abstractmethod
    def on_delivered(self, size: int, now: int) -> None:
        """The destination has received ``size`` octets that were in flight."""

    @abc.abstractmethod
    def on_lost(self, size: int, now: int) -> None:
        """``size`` octets in flight are taken to be lost: refused (NACK), inferred or timed out."""

    def want_ack(self, trigger: int) -> bool:
        """Whether the window is too small to wait until ``trigger`` octets are coalesced."""
        return False

    def on_credit(self, context: int, credit: int, now: int) -> None:  # noqa: B027
        """A CREDIT packet: cumulative credit in units of 256 octets, modulo 2^24 (UES 3.6.14).

        Only credit-based algorithms do something with it.
        """

    def on_credit_request(self, context: int, target: int, now: int) -> None:  # noqa: B027
        """A CREDIT_REQ packet: what the source would like to have been granted (UES 3.6.14)."""

    def next_deadline(self) -> int | None:
        """When :meth:`room` may grow without any feedback, or ``None``."""
        return None


_REGISTRY: dict[str, Callable[[int], CongestionControl]] = {}


def register(name: str, factory: Callable[[int], CongestionControl]) -> None:
    """Offer ``name``; ``factory`` takes the bandwidth-delay product in octets."""
    _REGISTRY[name] = factory


def create(name: str, bdp: int) -> CongestionControl:
    """A context of the algorithm ``name``; ``ValueError`` lists the known ones."""
    try:
        return _REGISTRY[name](bdp)
    except KeyError:
        raise ValueError(
            f"unknown congestion control {name!r}; choose one of {', '.join(sorted(_REGISTRY))}"
        ) from None
