"""The kinds of dataplane: what each can build, what it takes of the machine, and what has built it.

Nobody above asks which kind a fabric is of: a difference is a method here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from emulator.dataplane import cleanup, lab_record
from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.control_plane.charged_time import Convergence
from emulator.dataplane.control_plane.lab_routing import check_control_plane
from emulator.dataplane.dataplane import Dataplane
from emulator.dataplane.doctor import capabilities
from emulator.dataplane.doctor.capabilities import Capabilities
from emulator.dataplane.kernel.fabric import bonds, bridge_ports
from emulator.dataplane.settings import FabricSettings, Progress
from emulator.dataplane.switch.balancing import Balancing, check_kernel
from emulator.dataplane.switch.bpf import switch_program
from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.errors import UserError
from topologies.model import Topology
from topologies.routing.static_routes import static_routes


class DataplaneKind(ABC):
    """Builds fabrics for runs; what it checks raises UserError, one sentence."""

    #: whether learned routes are computed in this process, and not by daemons of the machine
    computes_routes: bool

    @abstractmethod
    def has(self, feature: str) -> bool:
        """Return whether there is ``feature`` of a kernel, for what ``auto`` decides on."""

    @abstractmethod
    def check_convergence(self, convergence: Convergence) -> None:
        """Check that the time of convergence can be had."""

    def check_topology(self, topology: Topology) -> None:
        """Check that ``topology`` can be built."""
        bridge_ports.check(topology)

    def check_switch(self, topology: Topology, switch: SwitchChoice | None) -> None:
        """Check that ``topology`` can be built with ``switch``; None: switches without ASIC."""
        check_control_plane(topology, switch, computed=self.computes_routes)

    @abstractmethod
    def check_machine(self, lab: str, *, switched: bool) -> Capabilities:
        """Return what the machine offers, which suffices for a fabric named ``lab``.

        ``switched``: its switches have ASICs.
        """

    def check_ranks(self, topology: Topology) -> None:
        """Check that several machines can share ``topology``."""
        plane = topology.profile.control_plane
        if not self.computes_routes and control_plane.of(topology) is not None:
            raise UserError(
                f"control plane {plane} is one machine's, as its packets do not cross to another: "
                "take --fabric model, which computes the routes, or --control-plane static, or "
                "call uetemu without the launcher"
            )

    @abstractmethod
    def build(
        self, name: str, topology: Topology, settings: FabricSettings, progress: Progress
    ) -> Dataplane:
        """Build the nodes of ``topology``."""


class KernelKind(DataplaneKind):
    """Namespaces of the kernel."""

    computes_routes = False

    def has(self, feature: str) -> bool:
        return capabilities.has(feature)

    def check_convergence(self, convergence: Convergence) -> None:
        pass

    def check_topology(self, topology: Topology) -> None:
        bonds.check(topology)
        super().check_topology(topology)

    def check_switch(self, topology: Topology, switch: SwitchChoice | None) -> None:
        if switch is not None:
            check_kernel(switch.balance)
        super().check_switch(topology, switch)

    def check_machine(self, lab: str, *, switched: bool) -> Capabilities:
        cleanup.require_root("run a scenario in namespaces", model="--fabric model")
        lab_record.check_name(lab)
        if cleanup.exists(lab):
            raise UserError(
                f"a lab named {lab} exists already; choose another --name, or remove it with "
                f"uetemu clean {lab}"
            )
        found = capabilities.probe(known=True)
        for missing in found.lacking():
            way_out = capabilities.remedy(missing.name, missing.detail)
            raise UserError(f"{missing.name} is missing ({missing.detail}); {way_out}")
        if switched:
            switch_program.require(clock="virtual")
            if not (tried := found["switch-asic"]).present:
                raise UserError(f"the switch ASIC does not work here: {tried.detail}")
        return found

    def build(
        self, name: str, topology: Topology, settings: FabricSettings, progress: Progress
    ) -> Dataplane:
        from emulator.dataplane.lab import Lab

        return Lab.create(name, topology, settings, progress=progress)


class ModelKind(DataplaneKind):
    """A model in this process, which takes memory and nothing of the kernel."""

    computes_routes = True

    def has(self, feature: str) -> bool:
        """No: so what ``auto`` takes does not depend on the machine."""
        return False

    def check_convergence(self, convergence: Convergence) -> None:
        if not convergence.repeatable:
            _refuse("runs no routing daemons to measure", "take --convergence computed or a time")

    def check_topology(self, topology: Topology) -> None:
        if any(switch.vrfs for switch in topology.switches):
            _refuse(
                "has no VRFs, and tenants have routes of their own", "take a fabric without them"
            )
        super().check_topology(topology)

    def check_switch(self, topology: Topology, switch: SwitchChoice | None) -> None:
        super().check_switch(topology, switch)
        if (switch is None or switch.method == Balancing.KERNEL) and _has_choices(topology):
            how = "--switch none" if switch is None else "balance=kernel"
            _refuse(
                f"does not hash as the kernel does, and with {how} the kernel spreads over several "
                "next hops",
                "take another balance, such as flow",
            )

    def check_machine(self, lab: str, *, switched: bool) -> Capabilities:
        """Return no capabilities: none is tried."""
        lab_record.check_name(lab)
        return Capabilities({})

    def build(
        self, name: str, topology: Topology, settings: FabricSettings, progress: Progress
    ) -> Dataplane:
        from emulator.dataplane.model.fabric import ModelDataplane

        return ModelDataplane(name, topology, settings)


def _has_choices(topology: Topology) -> bool:
    routes = static_routes(topology)
    return any(len(route.hops) > 1 for one in topology.switches for route in routes[one.name])


def _refuse(what: str, remedy: str) -> None:
    raise UserError(
        f"--fabric model {what}: leave --fabric model out (which takes root), or {remedy}"
    )


KINDS: Mapping[str, DataplaneKind] = {"kernel": KernelKind(), "model": ModelKind()}
