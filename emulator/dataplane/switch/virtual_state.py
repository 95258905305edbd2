"""Memory that switches with a virtual clock share with the engine that holds their frames.

The tables are memory of the kernel, mapped: the program sees a write at once, and nothing here is a
system call.  A value is found by its place: ``ports[index * PORT_WORDS + DEPTH + Queue.LOW]`` is
the depth of the data queue at the port whose interface index is ``index``; switches go by their
number (:class:`emulator.dataplane.switch.switch_port.SwitchPort`).  ``virtual.h`` and ``pfc.h``
define it in C.

The engine writes ``NOW`` before it lets a frame into a switch. When a frame has left its port, its
octets come off ``DEPTH``, and off ``HELD`` of the port that it came in by, and off the pool of the
switch.  It counts ``FREED`` and sets ``ASSERTED``.  Where packets are marked as they leave, it
counts ``DEPARTURE_DRAWS``, and ``DEPARTURES_MARKED`` by class.  All the rest is the program's to
write, but that a reader of ``PEAK`` may set it back to the depth, and one of ``DEEPEST`` to what is
held.
"""

from __future__ import annotations

from emulator.dataplane.switch.bpf.layout import (
    ALPHA_SHIFT,
    FLOWLET,
    PAUSE_STATE,
    POOL,
    VIRTUAL_PORT,
    VIRTUAL_SWITCH,
)
from emulator.dataplane.switch.bpf.switch_tables import SwitchTables
from emulator.errors import UserError

WORD_BYTES = 8
SWITCH_WORDS = VIRTUAL_SWITCH.size // WORD_BYTES
#: Words of a switch: ns of fabric time; transport frames that left it, and that it dropped.
NOW, PASSED, DROPPED = range(3)
PORT_WORDS = VIRTUAL_PORT.size // WORD_BYTES
#: Words of a port: octets by queue (the first of three); frames that are to go ahead of the others
#: in their queue; the deepest data queue; what passed in the kernel and was lost to faults; draws
#: of marks on departure, and such marks by class (the first).
DEPTH, OVERTAKES, PEAK, KERNEL_DRAWS, KERNEL_LOST = 0, 3, 4, 5, 6
DEPARTURE_DRAWS, DEPARTURES_MARKED = 7, 8
PAUSE_WORDS = PAUSE_STATE.size // WORD_BYTES
#: Words of a port's lossless buffer (pfc.h): octets held now, at most, and freed by a pulled cable;
#: whether the other end is paused; octets in the headroom.
HELD, DEEPEST, FREED, ASSERTED, HELD_IN_HEADROOM = 0, 1, 3, 4, 5
POOL_WORDS = POOL.size // WORD_BYTES
#: Words of a switch's pool (pool.h): its octets, beside those reserved for each queue and those of
#: the headroom; octets used of it, now and at most, and of the headroom.
SIZE, RESERVED, HEADROOM, USED, MOST, IN_HEADROOM, MOST_IN_HEADROOM = range(7)


class SharedPool:
    """What leaves the pool of a switch, whose words in ``words`` begin at ``at``."""

    __slots__ = ("_reserved", "_size_at", "_used_at", "_words")

    def __init__(self, words: memoryview[int], at: int) -> None:
        self._words, self._size_at, self._used_at = words, at, at + USED
        self._reserved: int = words[at + RESERVED]

    def leave_queue(self, depth: int, octets: int) -> None:
        """Give back what a queue of ``depth`` has of ``octets`` that leave it."""
        own, left = self._reserved, depth - octets
        self._words[self._used_at] -= (depth - own if depth > own else 0) - (
            left - own if left > own else 0
        )

    def leave_buffer(self, buffers: memoryview[int], at: int, own: int, octets: int) -> None:
        """Give back ``octets`` of the lossless buffer at ``at``, those of the headroom first.

        ``own`` are those that its port has for itself.  The caller takes them off ``HELD``.
        """
        words = self._words
        in_headroom: int = buffers[at + HELD_IN_HEADROOM]
        held = buffers[at + HELD] - in_headroom
        above = min(in_headroom, octets)
        buffers[at + HELD_IN_HEADROOM] = in_headroom - above
        words[self._size_at + IN_HEADROOM] -= above
        left = held - (octets - above)
        words[self._used_at] -= max(0, held - own) - max(0, left - own)

    def threshold(self, own: int, alpha: int) -> int:
        """Return how much may be held by whom ``own`` octets and ``alpha`` are for."""
        free = max(0, self._words[self._size_at] - self._words[self._used_at])
        return own + (free * alpha >> ALPHA_SHIFT)


class VirtualState:
    """The mapped tables of one lab.

    ``switches``, ``pools`` and ``ports`` hold unsigned words, ``pauses`` signed ones.  They stay
    mapped for as long as anybody has them or a part of them, also when the lab is gone.
    """

    def __init__(self, program: SwitchTables) -> None:
        """Raises UserError if the program of the lab keeps time by the host's clock."""
        switches, pools = program.virtual_switches, program.virtual_pools
        if switches is None or pools is None or program.virtual_ports is None:
            raise UserError(
                f"the switch program of lab {program.lab} goes by the host's clock: "
                "take the lab down and bring it up again with a virtual one"
            )
        self.switches = switches.mapped().cast("Q")
        self.pools = pools.mapped().cast("Q")
        self.ports = program.virtual_ports.mapped().cast("Q")
        self.pauses = program.pause_states.mapped().cast("q")
        self._flowlets = program.flowlets.mapped()

    def lossless_buffer(self, port: int | None) -> tuple[memoryview[int], int]:
        """Return the words of the lossless buffer of ``port``, and where its own begin.

        None: the port of a NIC, where nothing is ever held.
        """
        if port is None:
            return memoryview(bytearray(PAUSE_WORDS * WORD_BYTES)).cast("q"), 0
        return self.pauses, port * PAUSE_WORDS

    def pool(self, switch: int) -> SharedPool | None:
        """Return the pool of the switch of this number; None if its ports share nothing."""
        at = switch * POOL_WORDS
        return SharedPool(self.pools, at) if self.pools[at + SIZE] else None

    def restart_flowlets(self, now_ns: int) -> None:
        """Let every flow be as one whose last packet came at ``now_ns``, still on its first hop."""
        count = len(self._flowlets) // FLOWLET.size
        self._flowlets[:] = FLOWLET.pack(now_ns, 0) * count

    def close(self) -> None:
        """Let go of the tables; whoever has a part of one keeps it."""
        self.switches = self.pools = self.ports = self.pauses = self._flowlets = memoryview(b"")
