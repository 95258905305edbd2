"""What several processes of a run know of their own ports, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

T = TypeVar("T")


class JoinedPorts(Protocol):
    """Every process calls the same method at the same time, each with what it has itself.

    The one that reports has the whole.
    """

    def mine(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` (``node:port``) whose node this process has; all at its end."""

    def by_name(self, names: Sequence[str], own: Mapping[str, T]) -> dict[str, T]:
        """Return for each of ``names`` (``node:port``) what its node's process has in ``own``."""

    def rows(self, names: Sequence[str], own: NDArray[Any]) -> NDArray[Any]:
        """Return for each of ``names`` the row that its node's process has in ``own``."""
