"""The data plane of a lab as the engine uses it, whether its nodes are namespaces or a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from emulator.dataplane.kernel.frames.gpu_port import GpuPort
from emulator.dataplane.kernel.frames.kernel_drops import Explanation
from emulator.dataplane.kernel.frames.line import Line
from emulator.dataplane.kernel.frames.packet_ring import FrameRing
from emulator.dataplane.kernel.frames.softirq_barrier import FrameBarrier
from emulator.sim.endpoint.agent_spec import AgentSpec, PortSpec
from topologies.model import CableEnd, Node


class FramePlane(Protocol):
    """Brings frames into nodes, and has a ring of what comes out of them.

    ``ring`` names the inner ends of cables by the indices of the lab's wires.
    """

    @property
    def ring(self) -> FrameRing: ...

    @property
    def barrier(self) -> FrameBarrier: ...

    def sender(self, end: CableEnd) -> Callable[[bytes], int]:
        """Return the function that brings a frame from the cable into port ``end``."""

    def explanation(self, node: Node) -> Explanation:
        """Return the function that explains what ``node`` drops by itself."""

    def open_ports(
        self, spec: AgentSpec, lines: Callable[[PortSpec], Sequence[Line]]
    ) -> list[GpuPort]:
        """Open the ports of the GPU of ``spec``, each joined to its ``lines``."""

    def close(self) -> None:
        """Give up everything but the ports of GPUs, which their users close."""
