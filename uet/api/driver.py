"""Drivers, which move frames and time while an application waits.

Nothing here runs by itself (``FI_PROGRESS_MANUAL``): operations post and return, and whoever reads
or waits on a completion queue or counter drives the endpoint.  :class:`uet.api.loopback.Loopback`
joins domains of one process in virtual time; one over a real interface belongs to who owns sockets
and clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from uet.api.domain import Domain


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The start values of a FEP, so that nothing of an earlier one at its address recurs.

    ``seed`` and ``first_counter`` are those of :class:`uet.fep.FabricEndpoint`.
    """

    seed: int | None = None
    first_counter: int


class Driver(Protocol):
    """Carries frames between a domain's FEP and the network, and supplies the time."""

    def beginning(self) -> Beginning:
        """Return how a domain that is made now begins.

        ``seed`` is ``None``, which takes the operating system's randomness, unless the driver
        simulates.  ``first_counter`` is beyond what any earlier domain has reached: a clock's.
        """

    @property
    def now(self) -> int:
        """Fabric time in ns."""

    def attach(self, domain: Domain) -> None:
        """Serve ``domain`` from now on; ``ValueError`` if that cannot be."""

    def detach(self, domain: Domain) -> None:
        """Serve it no more."""

    def progress(self, timeout: int | None) -> bool:
        """Wait at most ``timeout`` ns (``None``: as long as it takes) for something, and do it.

        True: something has happened, be it :meth:`interrupt`, and it is worth looking again.
        False: the time is over, or nothing will ever happen.
        """

    def poll(self) -> bool:
        """Do what can be done without waiting; whether that was anything."""

    def interrupt(self) -> None:
        """Make a :meth:`progress` that waits, or else the next one, return."""


def wait_until(driver: Driver, condition: Callable[[], bool], timeout: int | None) -> bool:
    """Drive until ``condition()``, for at most ``timeout`` ns; whether it holds."""
    end = None if timeout is None else driver.now + timeout
    while not condition():
        left = None
        if end is not None:
            left = end - driver.now
            if left < 0:
                return False
        if not driver.progress(left):
            return condition()
    return True
