"""A modelled fabric as the data plane of the engine: its lists in place of rings and sockets.

What goes in comes out before the call returns, so nothing is ever late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from emulator.dataplane.kernel.frames.gpu_port import GpuPort
from emulator.dataplane.kernel.frames.kernel_drops import Explanation
from emulator.dataplane.kernel.frames.line import Line
from emulator.dataplane.kernel.frames.packet_ring import Taken
from emulator.dataplane.model.model_fabric import ModelFabric
from emulator.sim.endpoint.agent_spec import AgentSpec, PortSpec
from topologies.model import CableEnd, Node
from uet.transport import Frame


class TakenRing:
    """Frames that have come out of a modelled fabric at the inner ends of its cables."""

    lost = 0

    def __init__(self, waiting: deque[Taken]) -> None:
        self._waiting = waiting

    def take(self) -> list[Taken]:
        """All frames that are there, in the order in which they came out."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def look(self) -> memoryview | None:
        """The oldest frame; None without one."""
        return memoryview(self._waiting[0][1]) if self._waiting else None

    def release(self) -> None:
        """Forget the oldest frame."""
        self._waiting.popleft()

    def settle(self) -> None:
        """Do nothing: no frame waits for a slot."""

    def close(self) -> None:
        """Forget all frames."""
        self._waiting.clear()


class ArrivedRing:
    """Frames that have arrived at the interface of a GPU, like :class:`TakenRing`."""

    lost = 0

    def __init__(self, waiting: deque[bytes], closed: Callable[[], None]) -> None:
        self._waiting, self._closed = waiting, closed

    def take(self) -> list[Taken]:
        """All frames that are there, of no numbered interface."""
        taken = [(0, frame) for frame in self._waiting]
        self._waiting.clear()
        return taken

    def look(self) -> memoryview | None:
        """The oldest frame; None without one."""
        return memoryview(self._waiting[0]) if self._waiting else None

    def release(self) -> None:
        """Forget the oldest frame."""
        self._waiting.popleft()

    def settle(self) -> None:
        """Do nothing: no frame waits for a slot."""

    def close(self) -> None:
        """Have nobody listen there any more."""
        self._closed()


class NothingLate:
    """A barrier behind which nothing is left to do."""

    def wait(self, arrived: Callable[[], bool]) -> None:
        """Ask ``arrived`` once."""
        arrived()

    def close(self) -> None:
        """Do nothing."""


class ModelPlane:
    """The nodes of ``fabric``."""

    def __init__(self, fabric: ModelFabric) -> None:
        self._fabric = fabric
        self.ring = TakenRing(fabric.taken)
        self.barrier = NothingLate()
        self._reasons = fabric.reasons()

    def sender(self, end: CableEnd) -> Callable[[bytes], int]:
        """Return the function that brings a frame from the cable into port ``end``."""
        return self._fabric.sender(end)

    def explanation(self, node: Node) -> Explanation:
        """Return the function that explains what ``node`` drops beside its switch program."""
        return self._reasons[node.name]

    def open_ports(
        self, spec: AgentSpec, lines: Callable[[PortSpec], Sequence[Line]]
    ) -> list[GpuPort]:
        """Open the ports of the GPU of ``spec``, each joined to its ``lines``."""
        made = []
        for port in spec.ports:
            end = CableEnd(spec.node, port.interface)
            arrived = self._fabric.open(end, spec.frames)
            ring = ArrivedRing(arrived, partial(self._fabric.close, end))
            made.append(GpuPort(port, ring, lines(port), _joined(self._fabric.from_gpu(end))))
        return made

    def close(self) -> None:
        """Forget what is under way."""
        self.ring.close()


def _joined(send: Callable[[bytes], int]) -> Callable[[Frame], int]:
    def send_parts(frame: Frame) -> int:
        return send(b"".join(frame))

    return send_parts
