"""One call of a collective in one communicator: what an algorithm is given, and its tools.

An algorithm speaks of positions in the communicator and of pieces.  A piece is a region of one
member's memory together with the operations that complete its contents.  Sums are made where they
arrive: a received piece lies in a place of its own, and the member's own part is added to it. So
nothing that was sent changes before the peer has it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from emulator.sim.endpoint.operations.schedule import Compute, Region
from scenarios.collectives.blocks import Block
from scenarios.collectives.communicators import Communicator
from scenarios.collectives.data_types import DataType, function_of
from scenarios.collectives.program import Program
from scenarios.collectives.ring import split

#: The buffer of received parts, and that of the number that an average divides by.
STAGING, DIVISOR = "staging", "divisor"


@dataclass(frozen=True, slots=True)
class Piece:
    """A region of one member, whose contents are there once the operations ``after`` are over."""

    region: Region
    after: tuple[int, ...] = ()


#: Pieces of one member, in the order of what they hold.
Pieces = list[Piece]


@dataclass(frozen=True, kw_only=True)
class CollectiveCall:
    """One collective over ``communicator``, whose operations are written into ``program``.

    ``size`` is that of a row in octets; ``source`` and ``result`` name buffers of each member.
    Data move on in slices of ``slice_bytes``.  ``root`` is a position, and ``channels`` is how
    many rings or trees work side by side.  With ``up_then_down`` a tree sends nothing down before
    all has come up it.  ``under_way`` is how many octets each head of NVLS has under way.
    """

    program: Program
    communicator: Communicator
    size: int
    source: str
    result: str
    datatype: DataType
    reduction: str
    slice_bytes: int
    root: int = 0
    channels: int = 1
    peers: int = 8
    up_then_down: bool = False
    under_way: int = 2**20
    #: octets from each member to each other one; None: a part of the size
    matrix: Sequence[Sequence[int]] | None = None

    @property
    def members(self) -> int:
        """Return the number of members."""
        return len(self.communicator)

    @property
    def part(self) -> int:
        """Return the octets of one member's part of the size."""
        return self.size // self.members

    def blocks(self, parts: int, *, within: Block | None = None) -> list[Block]:
        """Divide the size, or the block ``within``, into ``parts`` blocks of whole elements."""
        octets = self.datatype.octets
        block = within or Block(0, self.size)
        return split(block.length // octets, parts, octets, first=block.offset // octets)

    def exchanged(self, sender: int, receiver: int) -> tuple[Block, Block]:
        """Return what the sender has for the receiver, and its place in the receiver's result."""
        if self.matrix is None:
            return (
                Block(receiver * self.part, self.part),
                Block(sender * self.part, self.part),
            )
        octets = self.matrix[sender][receiver]
        before = sum(self.matrix[sender][:receiver])
        return Block(before, octets), Block(
            sum(row[receiver] for row in self.matrix[:sender]), octets
        )

    def pieces(self, buffer: str, block: Block, after: tuple[int, ...] = ()) -> Pieces:
        """Return ``block`` of ``buffer`` in slices; the block's contents are there ``after``."""
        end = block.offset + block.length
        return [
            Piece(Region(buffer, at, min(self.slice_bytes, end - at)), after)
            for at in range(block.offset, end, self.slice_bytes)
        ]

    def send(
        self,
        sender: int,
        receiver: int,
        pieces: Iterable[Piece],
        into: Block | None,
        buffer: str,
        **fans: int,
    ) -> Pieces:
        """Move ``pieces`` of ``sender`` one behind the other into ``buffer`` of ``receiver``.

        ``into`` is where they go; None: a new place at the end of that buffer.  ``fans`` are those
        of :meth:`~scenarios.collectives.program.Program.transfer`.
        """
        pieces = list(pieces)
        ranks = self.communicator.ranks
        source, destination = ranks[sender], ranks[receiver]
        if into is None:
            total = sum(piece.region.length for piece in pieces)
            at = self.program.allocate(destination, buffer, total).offset
        else:
            at = into.offset
        arrived: Pieces = []
        for piece in pieces:
            remote = Region(buffer, at, piece.region.length)
            _, received = self.program.transfer(
                source, destination, piece.region, remote, after=piece.after, **fans
            )
            arrived.append(Piece(remote, (received,)))
            at += piece.region.length
        return arrived

    def combine(self, position: int, received: Pieces, own: Pieces) -> Pieces:
        """Reduce ``own`` into ``received``, which become the sums."""
        return self._apply(position, function_of(self.reduction), received, own)

    def copy(self, position: int, pieces: Pieces, into: Block, buffer: str) -> Pieces:
        """Copy ``pieces`` inside a member's memory, one behind the other."""
        at = into.offset
        copied: Pieces = []
        for piece in pieces:
            region = Region(buffer, at, piece.region.length)
            copied += self._apply(position, "replace", [Piece(region)], [piece])
            at += piece.region.length
        return copied

    def complete(self, position: int, pieces: Pieces) -> Pieces:
        """Finish sums over all members: an average is divided by their number here."""
        if self.reduction != "avg":
            return pieces
        return [
            self._apply(
                position, "divide", [piece], [Piece(Region(DIVISOR, 0, piece.region.length))]
            )[0]
            for piece in pieces
        ]

    def joined(self, position: int, pieces: Pieces) -> Pieces:
        """Return ``pieces`` of a member, none of which is there before all are."""
        ends = tuple(sorted({index for piece in pieces for index in piece.after}))
        over = self.program.append(
            self.communicator.ranks[position], Compute(after=ends, duration_ns=0)
        )
        return [Piece(piece.region, (over,)) for piece in pieces]

    def own(self, position: int, source: Block, result: Block) -> Pieces:
        """Return what a member has itself of the result, copied there if it is out of place."""
        if self.source == self.result:
            return self.pieces(self.result, result)
        return self.copy(position, self.pieces(self.source, source), result, self.result)

    def own_part(self, position: int) -> Pieces:
        """Return a member's part in its place of the result; its source has nothing else."""
        return self.own(position, Block(0, self.part), Block(position * self.part, self.part))

    def recut(self, pieces: Sequence[Piece], block: Block) -> Pieces:
        """Return the octets ``block`` of what ``pieces`` hold, in new slices.

        The pieces lie one behind the other in one buffer; ``block`` counts in it.
        """
        begins = [piece.region.offset for piece in pieces]
        cut: Pieces = []
        for one in self.pieces(pieces[0].region.buffer, block):
            first = bisect_right(begins, one.region.offset) - 1
            end = one.region.offset + one.region.length
            after: set[int] = set()
            for piece in pieces[first:]:
                if piece.region.offset >= end:
                    break
                after.update(piece.after)
            cut.append(Piece(one.region, tuple(sorted(after))))
        return cut

    def _apply(self, position: int, function: str, into: Pieces, source: Pieces) -> Pieces:
        rank = self.communicator.ranks[position]
        done: Pieces = []
        for there, own in zip(into, source, strict=True):
            index = self.program.reduce(
                rank,
                own.region,
                there.region,
                dtype=self.datatype.numpy_name,
                function=function,
                after=sorted({*there.after, *own.after}),
            )
            done.append(Piece(there.region, (index,)))
        return done


Algorithm = Callable[[CollectiveCall], None]
