"""Requests to a fabric interface, in the parts that its planes carry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from uet.planes.numbered_writes import Label
from uet.transport import ReadRequest, Request, SendRequest, WriteRequest


@dataclass(slots=True, eq=False)
class DividedWork:
    """One request.  ``left`` of its parts have not ended; ``moved`` octets have arrived."""

    request: Request
    serial: int
    number: int | None = None  # of a write that the target reports
    left: int = 0
    moved: int = 0
    kind: str = ""
    error: str | None = None


@dataclass(slots=True, eq=False)
class WorkPart:
    """``length`` octets of ``work`` from ``start`` on; the whole, or one of several stripes.

    ``plane`` is the plane that carries it now, ``failures`` how often nobody answered;
    ``is_again``: it has been issued before.
    """

    work: DividedWork
    start: int
    length: int
    label: Label | None
    is_whole: bool
    plane: int = -1
    failures: int = 0
    is_again: bool = False

    def request(self, peer: str) -> Request:
        """Return the request for the endpoint that carries it to ``peer``."""
        whole = self.work.request
        key = getattr(whole, "key", 0)
        if self.label is not None:
            key = self.label.on(key)
        if isinstance(whole, WriteRequest):
            payload = whole.payload
            if not self.is_whole:
                payload = payload[self.start : self.start + self.length]
            return WriteRequest(
                peer=peer,
                key=key,
                offset=whole.offset + self.start,
                payload=payload,
                header_data=whole.header_data,
                delivery_complete=whole.delivery_complete,
                synchronise=whole.synchronise,
                delivery=whole.delivery,
                destination=whole.destination,
                context=self,
            )
        if isinstance(whole, ReadRequest) and not self.is_whole:
            return ReadRequest(
                peer=peer,
                key=key,
                offset=whole.offset + self.start,
                memory=whole.memory[self.start : self.start + self.length],
                delivery=whole.delivery,
                destination=whole.destination,
                context=self,
            )
        return replace(whole, peer=peer, context=self)


def size_of(request: Request) -> int:
    """Octets of payload, there or back."""
    if isinstance(request, WriteRequest | SendRequest):
        return request.payload.nbytes
    return request.memory.nbytes if isinstance(request, ReadRequest) else 0


def stripes(length: int, count: int, unit: int) -> Iterator[tuple[int, int]]:
    """Start and length of at most ``count`` contiguous parts of whole packets of ``unit`` octets.

    They differ by one packet at most, so that no more packets leave than for the whole.
    """
    packets = -(-length // unit)
    count = min(count, packets)
    start = 0
    for number in range(count):
        own = packets // count + (number < packets % count)
        end = min(length, start + own * unit)
        yield start, end - start
        start = end
