"""Cables of a lab with a virtual clock are two veth pairs each; their inner ends share a namespace.

::

    h0g0                    wires                     rail0
    eth0 ===veth=== w2 ...................... w3 ===veth=== down0

A frame that leaves a port arrives at its inner end. One that is sent on an inner end arrives at its
port before ``send`` returns.  The holder of a packet socket in the namespace ``wires`` decides when
a frame of the transport passes from one inner end to the other.

Names and indices follow from the topology and from who works on which node, so that every process
can compute them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from emulator.errors import UserError
from topologies.interface_indices import interface_indices
from topologies.model import CableEnd, Topology

NODE = "wires"  # the namespace is named as that of a node


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wires:
    """Names and interface indices of all inner ends.

    The index of an inner end is that of its port plus ``stride`` for each worker up to its own. So
    ``index % stride`` is the port's and ``index // stride - 1`` the worker.  The two ends of a veth
    pair need distinct indices: with equal ones the kernel is slow to see carrier.
    """

    topology: Topology
    worker_of: Mapping[str, int]
    stride: int
    indices: Mapping[CableEnd, int]
    ends: Mapping[int, CableEnd]
    #: the worker whose nodes alone are in this lab; None: all are
    worker: int | None = None

    @classmethod
    def of(
        cls,
        topology: Topology,
        worker_of: Mapping[str, int] | None = None,
        worker: int | None = None,
    ) -> Self:
        """The wires of ``topology``, whose nodes belong to the workers ``worker_of``.

        A node that is not named there belongs to worker 0.  ``worker`` is the one whose nodes alone
        are in this lab; None: all are.
        """
        indices = interface_indices(topology)
        ends = {indices[end]: end for link in topology.links for end in link.ends}
        return cls(
            topology=topology,
            worker_of={node.name: (worker_of or {}).get(node.name, 0) for node in topology.nodes},
            stride=1 << max(indices.values(), default=0).bit_length(),
            indices=indices,
            ends=ends,
            worker=worker,
        )

    def here(self, node: str) -> bool:
        """Return whether ``node`` is in this lab, and not in that of another process."""
        return self.worker is None or self.worker_of[node] == self.worker

    def index(self, end: CableEnd) -> int:
        """Interface index of the inner end of ``end``."""
        return (self.worker_of[end.node] + 1) * self.stride + self.indices[end]

    def name(self, end: CableEnd) -> str:
        """Interface name of the inner end of ``end``."""
        return f"w{self.indices[end]}"

    def end_of(self, index: int) -> CableEnd:
        """The port whose inner end has the interface index ``index``.  KeyError if none has."""
        return self.ends[index & (self.stride - 1)]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes that are in this lab."""
        return tuple(node.name for node in self.topology.nodes if self.here(node.name))

    @property
    def workers(self) -> int:
        """Return how many workers there are."""
        return 1 + max(self.worker_of.values(), default=0)


def check(topology: Topology) -> None:
    """Raise UserError if a node of ``topology`` has the name that the wires take."""
    if any(node.name == NODE for node in topology.nodes):
        raise UserError(
            f"a node is named {NODE!r}, as the namespace of the cables with a virtual clock: "
            "give it another name"
        )
