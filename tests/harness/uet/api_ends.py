"""Share between tests of the API: a wire that is listened to, and required completions."""

from collections.abc import Callable, Sequence

import pytest

from uet.api import CqEntry, CqErrEntry, ErrorAvailable
from uet.api.loopback import LoopbackEnd
from uet.wire import headers

PDS_AT = 14 + 20 + 8
SES_AT = PDS_AT + headers.RUD_REQ_SYN.size


class Tap:
    """Keeps the frames of a wire, and loses those that ``lose`` says."""

    def __init__(self, lose: Callable[[bytes], bool] = lambda frame: False) -> None:
        self.frames: list[bytes] = []
        self._lose = lose

    def __call__(self, frame: bytes, now: int) -> Sequence[bytes]:
        self.frames.append(frame)
        return [] if self._lose(frame) else [frame]

    def types(self) -> set[int]:
        return {frame[PDS_AT] >> 3 for frame in self.frames}


def one(end: LoopbackEnd) -> CqEntry:
    """The next completion, which must be a good one."""
    entries = end.cq.wait(count=1)
    assert entries
    return entries[0]


def error(end: LoopbackEnd) -> CqErrEntry:
    """The next completion, which must be an error."""
    with pytest.raises(ErrorAvailable):
        end.cq.wait()
    entry = end.cq.readerr()
    assert entry is not None
    return entry


def key_of(end: LoopbackEnd, *, idempotent: bool = False) -> int:
    """The key of 64 octets that peers may read and write."""
    return end.domain.mr_reg(bytearray(64), idempotent=idempotent).key
