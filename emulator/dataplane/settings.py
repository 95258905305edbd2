"""How the nodes of a topology are to be built: decided once, where options are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from emulator.dataplane.wires import Wires
from emulator.errors import UserError
from topologies.model import Topology

if TYPE_CHECKING:
    from emulator.dataplane.switch.switch_choice import SwitchChoice

#: Whose time a lab keeps: the machine's, stretched by the dilation, or a run's own.
Clock = Literal["host", "virtual"]
#: What delays frames by a cable's length (:mod:`emulator.dataplane.kernel.fabric.cable_delay`).
CableDelay = Literal["netem", "nic"]
#: Is told how many objects of how many are done, and what the last one was.
Progress = Callable[[int, int, str], None]
LARGEST_DILATION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The place of a lab in a cluster: it is the ``network`` of that name of lab ``cluster``."""

    cluster: str
    network: str


@dataclass(frozen=True, kw_only=True)
class FabricSettings:
    """What a fabric is beside its topology.  Raises UserError for a dilation that cannot be.

    ``spec`` is the topology as the user wrote it, for the record.  ``dilation`` is host seconds per
    second of fabric time, and 1 with a virtual clock: then ports have no queues of the kernel, and
    the engine of a run decides when a frame passes a cable.  ``switch`` is what the ASICs of
    switches do; None: there are none, and ports have the kernel's plain queues.  A ``persistent``
    lab stays when the process ends that has built it.
    """

    spec: str
    seed: int
    dilation: float = 1
    clock: Clock = "host"
    cable_delay: CableDelay = "nic"
    switch: SwitchChoice | None = None
    persistent: bool = False
    #: the workers of nodes with a virtual clock, 0 for those that are not named
    worker_of: Mapping[str, int] | None = None
    #: the one whose nodes alone are built; None: all are
    worker: int | None = None
    #: of a lab that is one of the networks of a cluster
    membership: Membership | None = None
    #: namespaces of machines that other networks of the cluster have made
    shared: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.dilation <= LARGEST_DILATION:
            raise UserError(
                f"dilation {self.dilation:g} is not in 0..{LARGEST_DILATION:,}: 1 is real time"
            )
        if self.virtual and self.dilation != 1:
            raise UserError(f"dilation {self.dilation:g}: a virtual clock has none, it must be 1")

    @property
    def virtual(self) -> bool:
        """Return whether the clock is that of a run."""
        return self.clock == "virtual"

    def wires(self, topology: Topology) -> Wires:
        """Return the inner ends of the cables of ``topology``, and whose they are."""
        return Wires.of(topology, self.worker_of, self.worker)
