"""The running control plane of a lab: bring it up, wait for its routes, query its switches.

::

    with Lab.create("demo", chosen(topology, "ebgp:interval=100ms"), ...) as lab:
        lab.routing.vtysh("rail0", "show bgp summary")
        lab.routing.differences()          # none, once the fabric has come up
"""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator.dataplane.control_plane import control_plane_choice as choice
from emulator.dataplane.control_plane import (
    daemons,
    render,
    speakers,
    static_entries,
    tenant_entries,
)
from emulator.dataplane.control_plane.control_plane_choice import ControlPlane
from emulator.dataplane.control_plane.convergence import ConvergedState, Difference
from emulator.dataplane.control_plane.daemons import SwitchDaemons
from emulator.dataplane.control_plane.kernel_routes import Routes, read_routes
from emulator.dataplane.control_plane.members import Members
from emulator.dataplane.control_plane.tenant_routes import TenantRoutes, places_of
from emulator.dataplane.doctor import capabilities
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.settings import Progress
from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.errors import UserError
from emulator.logs import plain_logger
from topologies.interface_indices import vrf_space
from topologies.model import OF_NAMESPACES, CableEnd, Topology
from topologies.stretch import stretch_of

_log = plain_logger(__name__)


#: Switches whose daemons start at the same time.
AT_ONCE = 4
#: No daemon of any switch that starts has got ready for so long (s): one has stopped.  An emulated
#: processor takes some ten seconds for each.
START_S = 120
#: No switch has got a route right for so long (s): it will not happen any more.
TIME_LIMIT_S = 90.0
PATIENCE_LOOKS = 24
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.2
NAMED = 3  # differences in an error


def check_control_plane(
    topology: Topology, switch: SwitchChoice | None, *, computed: bool = False
) -> None:
    """Raise UserError unless the control plane of ``topology`` can be, there and here.

    ``computed``: no daemon is to run, so that nothing depends on what is here.
    """
    plane = choice.of(topology)
    if plane is not None:
        choice.check_switch(plane, switch)
        speakers.speakers(topology, plane)
    if plane is not None and not computed:
        daemons.require(plane)
        if stretch_of(topology) is not None:
            capabilities.require("vxlan", purpose="join the parts of stretched rails")
        static_entries.require(topology)


class Routing:
    """The control plane of the switches of one lab.

    ``directory`` is the lab's, ``indices`` the kernel's number of each port, ``kernels`` opens a
    netlink socket in a node's namespace, ``popen`` starts a process there; ``vlans``: the rails of
    a switch are VLANs of one bridge.  ``converged_s`` is how long the process that started it
    waited, daemons included (s of this machine).
    """

    def __init__(
        self,
        plane: ControlPlane,
        topology: Topology,
        *,
        directory: Path,
        indices: Mapping[CableEnd, int],
        kernels: Callable[[str], RouteSocket],
        popen: Callable[..., subprocess.Popen[Any]],
        vlans: bool = False,
    ) -> None:
        self.plane = plane
        self.topology = topology
        self.directory = directory
        self.vlans = vlans
        self._speakers = speakers.speakers(topology, plane)
        self.expectation = ConvergedState(topology, plane)
        self._indices = indices
        self._members = Members(topology, indices)
        self.converged_s: float | None = None
        self._logged = dict.fromkeys((switch.name for switch in topology.switches), 0)
        self._kernels = kernels
        self._popen = popen
        names = [switch.name for switch in topology.switches]
        self.switches = {name: SwitchDaemons(directory, name, plane) for name in names}
        self._ports = {
            name: {index: end.port for end, index in indices.items() if end.node == name}
            for name in names
        }

    def start(self, progress: Progress | None = None) -> None:
        """Write every configuration, start every daemon and wait for the routes.

        Raises UserError, with what is missing, if they do not come.
        """
        began = time.monotonic()
        logs = {name: switch.directory / daemons.LOG for name, switch in self.switches.items()}
        for name, text in render.render(self.topology, self.plane, logs=logs).items():
            self.switches[name].prepare(text)
        waiting = list(self.switches.values())
        running: list[tuple[SwitchDaemons, subprocess.Popen[Any]]] = []
        total = len(waiting)
        with static_entries.library(self.topology) as library:
            try:
                while waiting or running:
                    while waiting and len(running) < AT_ONCE:
                        running.append(self._begin(waiting.pop(0), library))
                    self._await_start(*running[0])
                    running.pop(0)
                    if progress is not None:
                        progress(total - len(waiting) - len(running), 2 * total, "routing daemons")
            finally:
                for _, process in running:
                    process.kill()
                    process.wait()
        tenant_entries.announce(
            self.topology, self.switches, self._indices, self._kernels, budget_s=START_S
        )
        if any(switch.vrfs for switch in self.topology.switches):
            tenant_entries.start(self.directory.name)
        self.await_convergence(progress)
        self.converged_s = time.monotonic() - began
        self._logged = {name: len(switch.log()) for name, switch in self.switches.items()}

    def _ready_daemons(self) -> int:
        """Return how many daemons of all switches have gone to the background so far."""
        return sum(switch.ready_daemons() for switch in self.switches.values())

    def _begin(
        self, switch: SwitchDaemons, library: Path | None
    ) -> tuple[SwitchDaemons, subprocess.Popen[Any]]:
        ports = self._speakers[switch.switch].fabric_ports if self.plane.unnumbered else ()
        _log.info("start the routing daemons of %s", switch.switch)
        with switch.start_log.open("wb") as printed:
            process = self._popen(
                switch.switch,
                switch.start_command(ports, library, self._spaces(switch.switch)),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt of the terminal is ours to handle
            )
        return switch, process

    def _spaces(self, switch: str) -> dict[str, Path]:
        """Return the namespaces that are the VRFs of ``switch``, by name."""
        if self.topology.profile.isolation != OF_NAMESPACES:
            return {}
        lab = self.directory.name
        return {
            vrf.name: namespaces.path_of(lab, vrf_space(switch, vrf.name))
            for vrf in self.topology.node(switch).vrfs
        }

    def _await_start(self, switch: SwitchDaemons, process: subprocess.Popen[Any]) -> None:
        ready, since = self._ready_daemons(), time.monotonic()
        while True:
            try:
                process.wait(timeout=START_S / PATIENCE_LOOKS)
                break
            except subprocess.TimeoutExpired:
                now = self._ready_daemons()
                if now != ready:
                    ready, since = now, time.monotonic()
            if time.monotonic() - since > START_S:
                raise UserError(
                    f"FRR of {switch.switch} is not ready, and no daemon got ready for {START_S} "
                    "s: one of them has stopped or the machine is overloaded; try again"
                ) from None
        if process.returncode:
            switch.check_alive()
            words = " / ".join(switch.last_words()) or "it gave no reason"
            raise UserError(f"FRR of {switch.switch} refused to start: {words}")

    # ------------------------------------------------------------------ routes

    def routes(self, switch: str) -> Routes:
        """Return what the kernel of ``switch`` has now."""
        return read_routes(self._kernels(switch), self._ports[switch])

    def differences(
        self, switches: Iterable[str] | None = None, expectation: ConvergedState | None = None
    ) -> list[Difference]:
        """Return the differences between the kernel's routes and those expected, a sentence each.

        The expectation is that of the topology unless ``expectation`` is given.
        """
        requested = expectation or self.expectation
        return [
            difference
            for name in (self.switches if switches is None else switches)
            for difference in requested.differences(name, self.routes(name))
        ]

    def members_of(self, left: Topology) -> Members:
        """Return the members that switches have to know behind tunnels of what faults have left."""
        return Members(left, self._indices, self.topology)

    def member_differences(self, members: Members | None = None) -> list[str]:
        """Return the wrong or missing members behind tunnels, a sentence each.

        The expectation is that of the topology unless ``members`` are given.
        """
        requested = members or self._members
        return [
            stated
            for name in self.switches
            for stated in requested.differences(name, *self._tables(name))
        ]

    def _tables(self, switch: str) -> Iterator[RouteSocket]:
        """Yield the sockets in the namespaces of a switch: its own, and those that are VRFs."""
        places = places_of(self.topology, self.topology.node(switch)).values()
        for node in dict.fromkeys((switch, *(place.node for place in places))):
            yield self._kernels(node)

    def tenant_differences(self, left: Topology | None = None) -> list[str]:
        """Return the wrong or missing routes of tenants, a sentence each.

        The expectation is that of the topology unless what faults have ``left`` is given.
        """
        routes = TenantRoutes(left or self.topology, self._indices, self._kernels)
        return list(routes.differences())

    def lost_routers(self) -> list[str]:
        """Return the router MACs that VRFs have lost, a sentence each."""
        return list(TenantRoutes(self.topology, self._indices, self._kernels).lost_routers())

    def routers_put_back(self) -> int:
        """Return how many router MACs that VRFs had lost were put back so far."""
        return tenant_entries.put_back(self.directory.name)

    def await_convergence(
        self, progress: Progress | None = None, *, time_limit_s: float = TIME_LIMIT_S
    ) -> None:
        """Return when all switches have their routes and members, and BFD has all neighbours up.

        Members are those of stretched rails.

        Raises UserError if nothing comes nearer to that for ``time_limit_s``, or a daemon dies.
        """
        began = better = time.monotonic()
        fewest, pause = math.inf, SHORTEST_PAUSE_S
        lacking, deaf = list(self.switches), list(self.switches)
        while True:
            missing: list[Difference | str] = [*self.differences(lacking)]
            if not missing:  # each was right once: are all of them now?
                heard = self._unheard(deaf)
                deaf = list(heard)
                missing = [*self.differences(), *heard.values(), *self.member_differences()]
                missing += self.tenant_differences()
            if not missing:
                _log.info("all routes are there after %.2f s", time.monotonic() - began)
                return
            _log.debug("%d routes or sessions are missing, such as %s", len(missing), missing[0])
            lacking = list(dict.fromkeys(one.switch for one in missing if not isinstance(one, str)))
            if progress is not None:
                total = len(self.switches)
                rest = "BFD sessions" if deaf else "members of rails"
                label = f"routes of {len(lacking)} switches" if lacking else rest
                progress(2 * total - len(lacking), 2 * total, label)
            now = time.monotonic()
            if len(missing) < fewest:
                fewest, better, pause = len(missing), now, SHORTEST_PAUSE_S
            elif now - better > time_limit_s:
                raise UserError(not_converged(missing, now - began))
            for switch in self.switches.values():
                switch.check_alive()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _unheard(self, switches: Iterable[str]) -> dict[str, str]:
        """Return the switches with neighbours that BFD has down, with a sentence for each."""
        if not self.plane.bfd:
            return {}
        found = {}
        for name in switches:
            alive = self.switches[name].neighbours_alive()
            if alive < (neighbours := len(self._speakers[name].fabric_ports)):
                found[name] = f"BFD of {name} hears {alive} of {neighbours} neighbours"
        return found

    # ------------------------------------------------------------------ looking inside

    def vtysh(self, switch: str, command: str) -> str:
        """Return what FRR of ``switch`` answers to ``command``.  Raises UserError if it refuses."""
        self.topology.node(switch)
        if switch not in self.switches:
            raise UserError(f"{switch} is no switch: only switches speak {self.plane.name}")
        return self.switches[switch].vtysh(command)

    def neighbours_lost(self) -> int:
        """Return how often a switch gave up a neighbour since the fabric was up: each end counts.

        In the process that started it; in another, since the daemons began.
        """
        lost = daemons.given_up()
        return sum(
            len(lost.findall(switch.log()[self._logged[name] :]))
            for name, switch in self.switches.items()
        )

    def facts(self) -> dict[str, object]:
        """Return facts for the record of a run; times are this machine's (s)."""
        return {
            "spec": self.plane.spec,
            "converged_s": self.converged_s,
            "detection_s": self.plane.detection_s,
        }

    def save(self, folder: Path) -> None:
        """Copy what the daemons read and logged to ``folder``/frr."""
        for name, switch in self.switches.items():
            target = daemons.directory_of(folder, name)
            target.mkdir(parents=True, exist_ok=True)
            for file in (daemons.CONFIGURATION, daemons.LOG):
                shutil.copyfile(switch.directory / file, target / file)


def not_converged(missing: Sequence[Difference | str], took: float) -> str:
    """The sentence for routes that have not come after ``took`` seconds."""
    stated = "; ".join(str(one) for one in missing[:NAMED])
    more = f"; and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return (
        f"the control plane has not converged after {took:.0f} s: {stated}{more}: look at the same "
        "fabric with --control-plane static, or give the protocol more time (hold, interval)"
    )
