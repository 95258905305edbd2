"""One running fabric: bring it up, work in it, observe it, take it down.

::

    settings = FabricSettings(spec="rail_clos", seed=1, dilation=1000)
    with Lab.create("demo", topology, settings) as lab:
        lab.exec("h0g0", ["ping", "-c1", "10.0.1.3"])

With ``switch=parse("shallow:balance=packet")`` each switch port has an ASIC, ``lab.asic``.
``lab.routing`` is the control plane, if the topology's profile names another than static.

Any process can :meth:`Lab.attach` to a persistent lab by its name.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from emulator.dataplane import cleanup, homing, lab_record, wires
from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.control_plane.lab_routing import Routing, check_control_plane
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.default_signals import popen_options
from emulator.dataplane.kernel.fabric import bonds, bridge_ports, vlans
from emulator.dataplane.kernel.fabric.cable_carrier import Cables
from emulator.dataplane.kernel.fabric.inner.inner_carrier import InnerCables
from emulator.dataplane.kernel.frames.kernel_plane import KernelFrames
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.kernel.port_counters import PortCounters, read_ports, unrouted_packets
from emulator.dataplane.lab_record import LabRecord, Lock, Phase
from emulator.dataplane.settings import FabricSettings, Progress
from emulator.dataplane.switch.balancing import check_kernel
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.switch_fitting import fit
from emulator.dataplane.wires import Wires
from emulator.errors import UserError
from emulator.logs import plain_logger
from topologies.interface_indices import interface_indices
from topologies.model import CableEnd, Topology

if TYPE_CHECKING:  # Mininet, which a modelled fabric does without
    from emulator.dataplane.kernel.fabric.build import Fabric

_log = plain_logger(__name__)

T = TypeVar("T")


class Lab:
    """A fabric in the kernel.  Make one with :meth:`create` or find one with :meth:`attach`.

    ``fabric`` is the Mininet network, in the process that built it.
    """

    def __init__(
        self,
        record: LabRecord,
        topology: Topology,
        *,
        fabric: Fabric | None = None,
        lock: Lock | None = None,
    ) -> None:
        self.record = record
        self.topology = topology
        self.fabric = fabric
        self._lock = lock
        self._sockets: dict[str, RouteSocket] = {}
        self._asic: FabricAsic | None = None
        self._routing: Routing | None = None
        self._maker = os.getpid()

    # ------------------------------------------------------------------ life

    @classmethod
    def create(
        cls,
        name: str,
        topology: Topology,
        settings: FabricSettings,
        *,
        progress: Progress | None = None,
    ) -> Self:
        """Build ``topology`` in the kernel; return when its ports and routes are ready.

        Every switch has its routes then, whatever control plane the topology's profile names.  With
        a virtual clock frames of the transport pass a cable when a packet socket in
        :attr:`wires_namespace` lets them.

        Raises UserError if the name is taken, this is not root, or the fabric cannot be on this
        machine.  Whatever is raised, an interrupt included, nothing of the lab is left.
        """
        cleanup.require_root("build a lab")
        lab_record.check_name(name)
        if settings.virtual:
            wires.check(topology)
        cleanup.check_unused(name)
        topology, _ = homing.resolved(topology)
        switch = settings.switch
        if switch is not None:
            check_kernel(switch.balance)
        fitted = (
            None
            if switch is None
            else fit(switch, topology, settings.dilation, clock=settings.clock)
        )
        check_control_plane(topology, switch)
        bonds.check(topology)
        vlans.check(topology)
        bridge_ports.check(topology)
        record = LabRecord(
            lab=name,
            identity=uuid.uuid4().hex,
            phase=Phase.BUILDING,
            settings=settings,
            owner=lab_record.this_process(),
            created=lab_record.now(),
            nodes=settings.wires(topology).nodes,
        )
        lock: Lock | None = None
        asic: FabricAsic | None = None
        _log.info(
            "build lab %s: %s, %d nodes, %d cables, %s clock, switch %s, control plane %s",
            name,
            settings.spec,
            len(topology.nodes),
            len(topology.links),
            settings.clock,
            record.switch,
            topology.profile.control_plane,
        )
        try:
            lock = lab_record.register(record, topology)
            lab = cls(record, topology, lock=lock)
            if fitted is not None:
                asic = FabricAsic.load(fitted, name, lab.wires, settings, kernels=lab.kernel)
            from emulator.dataplane.kernel.fabric.build import build_fabric  # needs Mininet

            lab.fabric = build_fabric(name, lab.wires, settings, asic, progress)
            lab._asic = asic
            _log.info("lab %s: every port can send", name)
            if asic is not None:
                asic.pauses.start()
            if lab.routing is not None:
                lab.routing.start(progress)
            lab.record = lab_record.advance(record, Phase.UP)
            _log.info("lab %s is up", name)
            if settings.persistent:
                lock.release()
            else:
                atexit.register(lab.close)
            return lab
        except BaseException:
            with cleanup.uninterrupted():
                if asic is not None:
                    asic.close()
                found = lab_record.load(name)
                if found is not None and found.identity == record.identity:
                    cleanup.remove(name)
                if lock is not None:
                    lock.release()
            raise

    @classmethod
    def attach(cls, name: str) -> Self:
        """The running lab ``name``.  Raises UserError if there is none, or it is not ready."""
        record = lab_record.load(lab_record.check_name(name))
        if record is None:
            running = (
                ", ".join(lab.lab for lab in lab_record.labs()) or "none; start one with uetemu up"
            )
            raise UserError(f"there is no lab {name!r}; running: {running}")
        if record.phase is not Phase.UP or record.abandoned:
            if record.abandoned:
                raise UserError(
                    f"lab {name} was left behind by a process that has ended: remove it with "
                    f"uetemu clean {name}"
                )
            raise UserError(f"lab {name} is not running (phase {record.phase}): try again soon")
        return cls(record, lab_record.load_topology(name))

    def close(self) -> None:
        """Take the lab down if this process made it and it is not persistent; else let go of it."""
        for kernel in self._sockets.values():
            kernel.close()
        self._sockets.clear()
        if self._asic is not None:
            self._asic.close()
            self._asic = None
        if self.fabric is None or os.getpid() != self._maker:
            return
        with cleanup.uninterrupted():
            fabric, self.fabric = self.fabric, None
            lock = None if self.settings.persistent else self._lock
            if lock is not None:
                cleanup.announce(self.name)
            fabric.stop()
            if lock is not None:
                atexit.unregister(self.close)
                cleanup.remove(self.name)
                lock.release()

    def discard(self) -> None:
        """Take down the lab that this process made, also if it is persistent."""
        persistent, name = self.settings.persistent, self.name
        self.close()
        if persistent:
            cleanup.remove(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ facts

    @property
    def name(self) -> str:
        """Return the name of the lab."""
        return self.record.lab

    @property
    def settings(self) -> FabricSettings:
        """Return how the lab is built, and what its switches do now."""
        return self.record.settings

    @property
    def dilation(self) -> float:
        """Return the host seconds per second of fabric time."""
        return self.settings.dilation

    @property
    def seed(self) -> int:
        """Return the seed of all random choices of the lab."""
        return self.settings.seed

    @property
    def cable_delay(self) -> str:
        """Return who delays frames by the cable's length: ``netem``, or the receiving ``nic``."""
        return self.settings.cable_delay

    @property
    def directory(self) -> Path:
        """The lab's state directory; what is put there goes with the lab."""
        return lab_record.directory_of(self.name)

    @property
    def virtual(self) -> bool:
        """Return whether its cables are for a run in virtual time."""
        return self.settings.virtual

    @cached_property
    def wires(self) -> Wires:
        """Names and indices of the inner ends of all cables, and whose they are."""
        return self.settings.wires(self.topology)

    def frames(self, worker: int) -> KernelFrames:
        """Open the way of frames through the nodes of ``worker``, in the process that uses it."""
        if not self.virtual:
            raise ValueError(f"lab {self.name} runs on the host's clock")
        return KernelFrames(self, worker)

    @property
    def wires_namespace(self) -> Path:
        """Path of the namespace that the inner ends of all cables are in."""
        return namespaces.path_of(self.name, wires.NODE)

    def interface_indices(self) -> Mapping[CableEnd, int]:
        """The kernel's index of each port and bridge, unique in the lab."""
        return interface_indices(self.topology)

    @property
    def asic(self) -> FabricAsic | None:
        """The switch ASICs, None in a lab without.

        Opened at first access in a process that did not make the lab: UserError if this is not
        root, or the lab is gone.
        """
        if self._asic is None and self.record.switch is not None:
            self._asic = FabricAsic.open(self.name, self.wires, self.settings, self.kernel)
        return self._asic

    def follow(self) -> list[Any]:
        """Return no changes: the kernel has them all."""
        return []

    def take(self, changes: Sequence[Any]) -> None:
        """Do nothing; see :meth:`follow`."""

    @property
    def routing(self) -> Routing | None:
        """The control plane of the switches, None where routes are static."""
        plane = control_plane.of(self.topology)
        if self._routing is None and plane is not None:
            self._routing = Routing(
                plane,
                self.topology,
                directory=self.directory,
                indices=self.interface_indices(),
                kernels=self.kernel,
                popen=self.popen,
                vlans=vlans.requested(self.topology),
            )
        return self._routing

    @cached_property
    def cables(self) -> Cables | InnerCables:
        """The cables, to be pulled and plugged in."""
        if self.virtual:
            return InnerCables(self.wires, kernels=self.kernel)
        return Cables(self.topology, kernels=self.kernel, indices=self.interface_indices())

    # ------------------------------------------------------------------ work

    def netns(self, node: str) -> Path:
        """Path of the node's network namespace.  Raises TopologyError for an unknown node."""
        return namespaces.path_of(self.name, self.topology.node(node).name)

    @contextmanager
    def enter(self, node: str) -> Iterator[Path]:
        """The calling thread is inside the node's namespace for the duration of the block."""
        path = self.netns(node)
        with namespaces.entered(path):
            yield path

    def inside(self, node: str, work: Callable[[], T]) -> T:
        """Call ``work`` inside the node's namespace, in a thread made for that.

        Sockets and processes that it makes belong to the node; they may be used from anywhere.
        """
        return namespaces.visitor().inside(self.netns(node), work)

    def popen(self, node: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process in the node, with default signals.

        ``options`` are those of :class:`subprocess.Popen`.
        """
        settings = {**popen_options(), **options}
        return self.inside(node, lambda: subprocess.Popen(list(argv), **settings))

    def exec(
        self, node: str, argv: Sequence[str], *, timeout: float | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the node to its end; its output is text.

        ``timeout`` is in seconds of the wall clock; past it the command is killed and
        :class:`subprocess.TimeoutExpired` raised.
        """
        settings: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }
        with self.popen(node, argv, **settings | options) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def counters(self, nodes: Iterable[str] | None = None) -> dict[str, PortCounters]:
        """Counters of all ports here, or those of ``nodes``, by ``node:port``, in their order."""
        found: dict[str, PortCounters] = {}
        for node in self.topology.nodes if nodes is None else map(self.topology.node, nodes):
            ports = read_ports(self.kernel(node.name)) if self.wires.here(node.name) else {}
            for port in node.ports:
                if port.name in ports:
                    found[f"{node.name}:{port.name}"] = ports[port.name]
        return found

    def unrouted(self) -> int:
        """Packets that switches had no way for, since the lab was built."""
        switches = [one.name for one in self.topology.switches if self.wires.here(one.name)]
        return sum(self.inside(name, unrouted_packets) for name in switches)

    def kernel(self, node: str) -> RouteSocket:
        """A netlink socket in the namespace of ``node``, or of the wires."""
        if self.fabric is not None:
            return self.fabric.kernel_of(node)
        if node not in self._sockets:
            path = namespaces.path_of(self.name, node)
            try:
                self._sockets[node] = namespaces.visitor().inside(path, RouteSocket)
            except OSError as error:
                raise UserError(
                    f"node {node} of lab {self.name} cannot be read ({error.strerror}): "
                    "the lab is gone, or this is not root"
                ) from None
        return self._sockets[node]
