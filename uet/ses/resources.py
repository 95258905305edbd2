"""The resources of an endpoint that requests are addressed to (UES 3.4.1).

A resource is found by {JobID, PIDonFEP, resource index} in relative addressing, and by {PIDonFEP,
resource index} in absolute addressing. There the JobID authorises but does not address.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

from uet.ses.address import Address
from uet.ses.arrival import RequestArrival
from uet.ses.matching import ReceiveQueue
from uet.wire import headers
from uet.wire.codes import ReturnCode

_GENERATIONS: Final = 0xFF
_SOM: Final = headers.SES_STD_SOM
_GENERATION_SHIFT: Final = _SOM.shift("ri_generation")


class ResourceError(ValueError):
    """A resource cannot be added, or is not there."""


class Resource:
    """A resource index: its receives, and the generations that guard them.

    A generation belongs to the ordered stream of one peer.  It is disabled when a message of that
    stream finds no receive, so that none that follows can overtake it; the next one begins when a
    receive is posted.  Other peers, and what is not ordered, go on.

    ``addressing`` is the addressing word of a request that may pass, in the generation 0 that all
    streams begin with, -1 while none may.
    """

    __slots__ = ("_disabled", "_generations", "address", "addressing", "enabled", "queue")

    def __init__(self, address: Address, queue: ReceiveQueue) -> None:
        self.address = address
        self.queue = queue
        self.enabled = True
        self._generations: dict[str, int] = {}  # by peer, where it is not 0 for good
        self._disabled: set[str] = set()
        self.addressing = -1
        self._update()

    def set_enabled(self, enabled: bool) -> None:
        """Take requests, or refuse all of them."""
        self.enabled = enabled
        self._update()

    def generation(self, peer: str) -> int:
        """The generation of the peer's ordered stream."""
        return self._generations.get(peer, 0)

    @property
    def moved_on(self) -> bool:
        """Return whether a stream is disabled, or in a later generation than at its start."""
        return bool(self._generations)

    def is_disabled(self, peer: str) -> bool:
        """Return whether the generation of the peer's ordered stream is disabled."""
        return peer in self._disabled

    def disable_generation(self, peer: str) -> None:
        """Refuse what follows a message without a receive on the peer's ordered stream."""
        self._generations.setdefault(peer, 0)
        self._disabled.add(peer)

    def renew(self) -> None:
        """Begin the next generation of the streams that were disabled."""
        for peer in self._disabled:
            self._generations[peer] = self._generations[peer] + 1 & _GENERATIONS
        self._disabled.clear()

    def addressing_from(self, peer: str, *, ordered: bool) -> int:
        """The addressing word of a request of this peer that may pass, or -1."""
        if self.addressing < 0 or (ordered and peer in self._disabled):
            return -1
        return self.addressing | self.generation(peer) << _GENERATION_SHIFT

    def _update(self) -> None:
        self.addressing = -1
        if self.enabled:
            self.addressing = _SOM.word(
                job_id=self.address.job_id,
                pid_on_fep=self.address.pid_on_fep,
                resource_index=self.address.resource_index,
            )


class ResourceTable:
    """The resources of one endpoint."""

    def __init__(self) -> None:
        self._relative: dict[tuple[int, int], dict[int, Resource]] = {}
        self._absolute: dict[tuple[int, int], Resource] = {}

    def add(self, resource: Resource) -> None:
        """Raises :class:`ResourceError` if the address is taken."""
        address = resource.address
        place = (address.pid_on_fep, address.resource_index)
        if address.relative:
            jobs = self._relative.setdefault(place, {})
            taken = address.job_id in jobs
            jobs.setdefault(address.job_id, resource)
        else:
            taken = place in self._absolute
            self._absolute.setdefault(place, resource)
        if taken:
            raise ResourceError(f"{address} is in use; choose another resource index")

    @property
    def fullest(self) -> int:
        """Octets of unexpected messages that the fullest one buffers."""
        absolute = (resource.queue.unexpected_octets for resource in self._absolute.values())
        relative = (
            resource.queue.unexpected_octets
            for jobs in self._relative.values()
            for resource in jobs.values()
        )
        return max(chain(absolute, relative), default=0)

    def at(self, address: Address) -> Resource:
        """The resource at an address of its own; :class:`ResourceError` if there is none."""
        place = (address.pid_on_fep, address.resource_index)
        found = (
            self._relative.get(place, {}).get(address.job_id)
            if address.relative
            else self._absolute.get(place)
        )
        if found is None:
            raise ResourceError(f"there is no resource at {address}; add it first")
        return found

    def find(self, request: RequestArrival) -> Resource | int:
        """Return the resource that a request is for, or the return code of its refusal."""
        place = (request.pid, request.index)
        if not request.relative:
            return self._absolute.get(place) or int(ReturnCode.UNDELIVERABLE)
        jobs = self._relative.get(place)
        if jobs is None:
            return int(ReturnCode.UNDELIVERABLE)
        return jobs.get(request.job_id) or int(ReturnCode.BAD_JOB_ID)

    def find_process(self, request: RequestArrival) -> Resource | int:
        """Find the resource by job and process, for a request whose index names a memory region."""
        known = False
        if not request.relative:
            for (pid, _), resource in self._absolute.items():
                if pid == request.pid:
                    return resource
        for (pid, _), jobs in self._relative.items():
            if request.relative and pid == request.pid:
                known = True
                if request.job_id in jobs:
                    return jobs[request.job_id]
        return int(ReturnCode.BAD_JOB_ID if known else ReturnCode.UNDELIVERABLE)
