"""A unit on a cable with a link layer: a frame with its sequence number, or an ordered set."""

from __future__ import annotations

from typing import NamedTuple

#: Kinds of units.  ``CREDITS`` and ``CONSUMED`` are CF_Update and CC_Update of UES 5.2; by ``QUIT``
#: a sender announces that frames come without sequence numbers from now on.
FRAME, ACK, NACK, CREDITS, CONSUMED, QUIT = range(6)
#: The number of a frame that the link does not retry.
UNNUMBERED = -1


class LinkUnit(NamedTuple):
    """A unit on its way.

    ``number`` is a frame's sequence number, the one that an ACK or NACK expects next, or a cyclic
    count of cells.  ``first`` is whether the frame is sent for the first time.  ``cells`` are those
    that a frame takes of the receiver's buffer, 0 without credits.  ``errored`` units have a bit
    error.  A unit of an earlier ``era`` of the cable, such as before it was pulled, means nothing.
    """

    kind: int
    number: int
    era: int
    errored: bool
    frame: bytes = b""
    first: bool = False
    cells: int = 0
    left_ps: int = 0
