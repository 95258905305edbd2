"""What comes out of nodes is put into the queues of the lines from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from emulator.dataplane.dataplane import Astray, Taken
from emulator.dataplane.model.packet import parse
from emulator.sim.line import LOW, Line

#: Below the DSCP in the octet of an IP header that has both (RFC 3168).
_ECN_BITS: Final = 2


class _Overtakes:
    """Follows a word in which the switch program counts frames that are to overtake."""

    def __init__(self, words: memoryview, at: int) -> None:
        self._words, self._at = words, at
        self._known = words[at]

    def counted(self) -> bool:
        """Return whether the word has counted since the last call."""
        now = self._words[self._at]
        more = now != self._known
        self._known = now
        return more


class Outlets:
    """Puts frames into ``lines``, which are by inner interface index.

    ``changes`` sees all of them first.  With ``tunnels`` a frame may be no sound IP packet.
    """

    def __init__(self, lines: Mapping[int, Line], *, tunnels: bool = False) -> None:
        self.changes: Callable[[Sequence[Taken]], None] | None = None
        self._tunnels = tunnels
        self._lines = dict(lines)
        #: by inner interface: the line, and its queues by the octet with DSCP and ECN
        self._ways: dict[int, tuple[Line, bytes]] = {}
        self._overtaking: dict[int, _Overtakes] = {}

    def classify(self, index: int, queues: bytes) -> None:
        """Let the line of inner interface ``index`` queue by ``queues``, a number for each DSCP."""
        by_octet = bytes(queues[octet >> _ECN_BITS] for octet in range(256))
        self._ways[index] = self._lines[index], by_octet

    def put_ahead(self, index: int, word: tuple[memoryview, int] | None) -> None:
        """Put frames ahead of others at inner interface ``index`` as ``word`` there counts them.

        None: never, from now on.
        """
        self._overtaking.pop(index, None)
        if word is not None:
            self._overtaking[index] = _Overtakes(*word)

    def enqueue(self, taken: Sequence[Taken], origin: int = 0) -> None:
        """Enqueue all of ``taken``, which came in by the port of index ``origin`` (0: none)."""
        if self.changes is not None:
            self.changes(taken)
        ways, overtaking, sound = self._ways, self._overtaking, not self._tunnels
        for interface, frame in taken:
            way = ways.get(interface)
            if way is None:
                raise Astray(f"a frame came out of interface {interface}, which is no inner end")
            line, queues = way
            if sound and frame[12] == 0x08 and frame[13] == 0:
                queue = queues[frame[15]]
            else:
                queue = queue_of(frame, queues)
            if overtaking and interface in overtaking:
                line.enqueue(frame, queue, origin, ahead=overtaking[interface].counted())
            else:
                line.enqueue(frame, queue, origin)


def queue_of(frame: bytes, queues: bytes) -> int:
    """Return the queue of ``frame``, which may be no IP packet, or have come broken from a tunnel.

    ``queues`` has one for each octet of DSCP and ECN; what is no IP packet, for the switch program
    either, waits with data.
    """
    packet = parse(frame)
    return queues[packet.traffic] if packet.version else LOW
