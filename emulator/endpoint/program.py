"""A schedule made ready to execute: checked against the memories, dependencies turned round."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from emulator.endpoint.gpu import Layout
from emulator.endpoint.schedule import (
    Barrier,
    Compute,
    Copy,
    Operation,
    Receive,
    Reduce,
    Schedule,
    Write,
)

#: A tag travels in this many bits of a write's header data.
TAG_BITS = 24


class Program:
    """The operations of one rank, each with how many others it waits for and who waits for it.

    ``layouts`` has the layout of every rank that is written to, ``fabric`` the ranks reachable
    over the fabric and ``scale_up`` those that it copies to.  ``ValueError`` names the operation
    when the schedule contradicts itself, a region does not fit its buffer, or a peer is not there.
    """

    def __init__(
        self,
        schedule: Schedule,
        layouts: Mapping[int, Layout],
        *,
        fabric: Collection[int] = (),
        scale_up: Collection[int] = (),
    ) -> None:
        self.rank = schedule.rank
        self.layout = Layout(schedule.buffers)
        self.operations = schedule.operations
        self.layouts = dict(layouts)
        self._fabric, self._scale_up = frozenset(fabric), frozenset(scale_up)
        self._tags: set[tuple[str, int, int]] = set()
        #: How many operations must complete before operation i starts.
        self.before: list[int] = []
        #: Which operations wait for operation i.
        self.after: list[list[int]] = [[] for _ in self.operations]
        for index, operation in enumerate(self.operations):
            try:
                self._check(operation)
                self._link(index, operation)
            except ValueError as wrong:
                raise ValueError(
                    f"rank {self.rank}: {describe(index, operation)}: {wrong}"
                ) from None

    def receives(self, peer: int, tag: int) -> bool:
        """Whether an operation waits for what ``peer`` sends with ``tag``."""
        return ("from", peer, tag) in self._tags

    def _link(self, index: int, operation: Operation) -> None:
        earlier_ones = set(operation.after)
        for earlier in earlier_ones:
            if not 0 <= earlier < index:
                raise ValueError(f"it waits for operation {earlier}, which is not an earlier one")
            self.after[earlier].append(index)
        self.before.append(len(earlier_ones))

    def _check(self, operation: Operation) -> None:
        match operation:
            case Write():
                self._check_transfer(operation, self._fabric, "has no fabric address")
            case Copy():
                self._check_transfer(
                    operation, self._scale_up, "is not in the same scale-up network"
                )
            case Receive():
                self.layout.locate(operation.into)
                self._check_tag("from", operation.peer, operation.tag)
            case Reduce():
                self._check_reduce(operation)
            case Compute():
                if operation.duration_ns < 0:
                    raise ValueError("its duration is negative")
            case Barrier():
                pass
            case _:
                raise ValueError("this kind of operation is unknown")

    def _check_transfer(
        self, operation: Write | Copy, reachable: frozenset[int], why_not: str
    ) -> None:
        if operation.peer not in reachable or operation.peer not in self.layouts:
            raise ValueError(f"rank {operation.peer} {why_not}")
        if operation.local.length != operation.remote.length:
            raise ValueError("its local and remote regions differ in length")
        self.layout.locate(operation.local)
        self.layouts[operation.peer].locate(operation.remote)
        self._check_tag("to", operation.peer, operation.tag)

    def _check_reduce(self, operation: Reduce) -> None:
        size = np.dtype(operation.dtype).itemsize
        for region in (operation.source, operation.into):
            self.layout.locate(region)
            if region.length % size or region.offset % size:
                raise ValueError(f"its regions are not whole {operation.dtype} elements")
        if operation.source.length != operation.into.length:
            raise ValueError("its regions differ in length")

    def _check_tag(self, way: str, peer: int, tag: int) -> None:
        if not 0 <= tag < 1 << TAG_BITS:
            raise ValueError(f"tag {tag} does not fit in {TAG_BITS} bits")
        if (way, peer, tag) in self._tags:
            raise ValueError(f"tag {tag} {way} rank {peer} is used twice")
        self._tags.add((way, peer, tag))


def describe(index: int, operation: Operation) -> str:
    """An operation as a user finds it in the schedule."""
    match operation:
        case Write(peer=peer, tag=tag):
            what = f"Write to rank {peer} with tag {tag}"
        case Copy(peer=peer, tag=tag):
            what = f"Copy to rank {peer} with tag {tag}"
        case Receive(peer=peer, tag=tag):
            what = f"Receive from rank {peer} with tag {tag}"
        case Barrier(name=name):
            what = f"Barrier {name!r}"
        case _:
            what = type(operation).__name__
    return f"operation {index} ({what})"
