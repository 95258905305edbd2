"""Memory that switches with a virtual clock share with the engine that holds their frames.

The tables are memory of the kernel, mapped: the program sees a write at once, and nothing here is a
system call.  A value is found by its place: ``ports[index * PORT_WORDS + DEPTH + Queue.LOW]`` is
the depth of the data queue at the port whose interface index is ``index``; switches go by their
number (:class:`emulator.dataplane.switch.switch_port.SwitchPort`).  ``virtual.h`` and ``pfc.h``
define it in C.

The engine writes ``NOW`` before it lets a frame into a switch. When a frame has left its port, its
octets come off ``DEPTH``, and off ``HELD`` of the port that it came in by.  It counts ``FREED`` and
sets ``ASSERTED``.  All the rest is the program's to write, but that a reader of ``PEAK`` may set it
back to the depth, and one of ``DEEPEST`` to what is held.
"""

from __future__ import annotations

from emulator.dataplane.switch.bpf.layout import FLOWLET, PAUSE_STATE, VIRTUAL_PORT, VIRTUAL_SWITCH
from emulator.dataplane.switch.bpf.switch_tables import SwitchTables
from emulator.errors import UserError

WORD_BYTES = 8
SWITCH_WORDS = VIRTUAL_SWITCH.size // WORD_BYTES
#: Words of a switch: ns of fabric time; transport frames that left it, and that it dropped.
NOW, PASSED, DROPPED = range(3)
PORT_WORDS = VIRTUAL_PORT.size // WORD_BYTES
#: Words of a port: octets by queue (the first of three); frames that are to go ahead of the others
#: in their queue; the deepest data queue; what passed in the kernel and was lost to faults.
DEPTH, OVERTAKES, PEAK, KERNEL_DRAWS, KERNEL_LOST = 0, 3, 4, 5, 6
PAUSE_WORDS = PAUSE_STATE.size // WORD_BYTES
#: Words of a port's lossless buffer (pfc.h): octets held now, at most, and freed by a pulled cable;
#: whether the other end is paused.
HELD, DEEPEST, FREED, ASSERTED = 0, 1, 3, 4


class VirtualState:
    """The mapped tables of one lab.

    ``switches`` and ``ports`` hold unsigned words, ``pauses`` signed ones.  They stay mapped for as
    long as anybody has them or a part of them, also when the lab is gone.
    """

    def __init__(self, program: SwitchTables) -> None:
        """Raises UserError if the program of the lab keeps time by the host's clock."""
        if program.virtual_switches is None or program.virtual_ports is None:
            raise UserError(
                f"the switch program of lab {program.lab} goes by the host's clock: "
                "take the lab down and bring it up again with a virtual one"
            )
        self.switches = program.virtual_switches.mapped().cast("Q")
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

    def restart_flowlets(self, now_ns: int) -> None:
        """Let every flow be as one whose last packet came at ``now_ns``, still on its first hop."""
        count = len(self._flowlets) // FLOWLET.size
        self._flowlets[:] = FLOWLET.pack(now_ns, 0) * count

    def close(self) -> None:
        """Let go of the tables; whoever has a part of one keeps it."""
        self.switches = self.ports = self.pauses = self._flowlets = memoryview(b"")
