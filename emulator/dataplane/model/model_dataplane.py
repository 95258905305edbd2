"""A fabric whose nodes are a model in this process, which takes neither root nor Mininet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from emulator.dataplane import homing
from emulator.dataplane.control_plane.computed_routing import ComputedRouting
from emulator.dataplane.kernel.port_counters import PortCounters
from emulator.dataplane.lab_record import check_name
from emulator.dataplane.model.model_fabric import ModelFabric, NodeChange
from emulator.dataplane.model.model_frames import ModelFrames
from emulator.dataplane.model.model_scope import check
from emulator.dataplane.model.switch.model_program import ModelProgram
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.dataplane.switch.switch_fitting import fit, size_of
from emulator.dataplane.wires import Wires
from topologies.model import Topology


class ModelDataplane:
    """The nodes of ``topology``, with ``switch`` (None: switches without ASIC).

    Of several MPI ranks ``worker`` has those of its nodes alone, by ``worker_of``.  Raises
    UserError for a fabric that the model does not have.
    """

    dilation = 1.0
    cable_delay = "nic"
    directory = None

    def __init__(
        self,
        name: str,
        topology: Topology,
        *,
        seed: int,
        switch: SwitchChoice | None,
        worker_of: Mapping[str, int] | None = None,
        worker: int | None = None,
    ) -> None:
        self.name, self.seed = check_name(name), seed
        self.topology, _ = homing.resolved(topology)
        check(self.topology, switch)
        self.wires = Wires.of(self.topology, worker_of, worker)
        self.asic: FabricAsic | None = None
        program: ModelProgram | None = None
        if switch is not None:
            program = ModelProgram(name, size_of(self.topology))
            self.asic = FabricAsic.load(
                fit(switch, self.topology, 1, clock="virtual"),
                name,
                self.topology,
                program=program,
                dilation=1,
                seed=seed,
                clock="virtual",
                here=self.wires.here,
            )
        #: the nodes, and their cables
        self.cables = ModelFabric(self.topology, self.wires, program)

    @property
    def routing(self) -> ComputedRouting | None:
        """The control plane of the switches, None where routes are static."""
        return self.cables.routing

    def counters(self, nodes: Iterable[str] | None = None) -> dict[str, PortCounters]:
        """Counters of all ports here, or those of ``nodes``, by ``node:port``, in their order."""
        topology = self.topology
        return self.cables.counters(topology.nodes if nodes is None else map(topology.node, nodes))

    def frames(self, worker: int) -> ModelFrames:
        """Return the way of frames through the nodes."""
        return ModelFrames(self.cables, self.asic)

    def follow(self) -> list[NodeChange]:
        """Return a list to which all that changes the nodes from now on is added."""
        return self.cables.follow()

    def take(self, changes: Sequence[NodeChange]) -> None:
        """Do ``changes``, which the process that this one was forked from has done."""
        self.cables.take(changes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the tables of the switch program."""
        if self.asic is not None:
            self.asic.close()
            self.asic = None
