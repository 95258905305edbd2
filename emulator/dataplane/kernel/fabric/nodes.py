"""Nodes of a fabric: Mininet's Node and Switch as named network namespaces.

There is no shell and no pseudo-terminal: ``cmd`` starts one in the namespace when it is called. So
nothing lives in an idle node, and no state (directory, variables, jobs) passes from one ``cmd`` to
the next.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from ipaddress import IPv4Interface
from subprocess import PIPE, STDOUT, Popen
from typing import IO, Any

from mininet.node import Node as MininetNode
from mininet.node import Switch as MininetSwitch

from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.default_signals import popen_options
from emulator.dataplane.kernel.fabric import bonds
from emulator.dataplane.kernel.fabric.fabric_plan import FabricPlan
from emulator.dataplane.kernel.fabric.links import VethPort
from emulator.dataplane.kernel.fabric.tunnels import configure_tunnel
from emulator.dataplane.kernel.fabric.vrf_build import SwitchVrfs
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.kernel.port_counters import ports_not_ready
from emulator.dataplane.kernel.sysctls import (
    FORWARDING,
    HASH_SEED,
    QUIET,
    SILENT,
    kernel_seed,
    write_sysctl,
)
from topologies.interface_indices import tunnel_port
from topologies.model import CableEnd, Node

SENTINEL = "\x7f"  # Mininet's mark for the end of a command's output


class NamespaceNode(MininetNode):
    """A named network namespace.  ``model`` is the topology's node, ``plan`` what it configures."""

    isSetup = True  # nothing to look for: mnexec and ifconfig are not used
    lab: str
    model: Node
    plan: FabricPlan
    kernel: RouteSocket
    # Mininet's, for the running command
    shell: Popen[bytes] | None
    stdin: IO[bytes]
    stdout: IO[bytes]
    waiting: bool
    lastCmd: str | None
    readbuf: str

    def __init__(self, name: str, *, model: Node, plan: FabricPlan, **parameters: Any) -> None:
        self.lab = plan.lab
        self.model = model
        self.plan = plan
        self.path = namespaces.path_of(plan.lab, name)
        super().__init__(name, **parameters | {"inNamespace": True})

    def startShell(self, mnopts: str | None = None) -> None:
        """Make the namespace, quiet it, and keep a netlink socket and a handle to it.

        One that another lab has made gets a second name.
        """

        def make() -> None:
            if self.name in self.plan.shared:
                namespaces.name_again(self.plan.shared[self.name], self.path)
            else:
                namespaces.make(self.path)
            for name, value in self.sysctls():
                write_sysctl(name, value)
            self.kernel = RouteSocket()

        namespaces.visitor().run(make)
        self._namespace = self.path.open("rb")

    @property
    def handle(self) -> int:
        """A file descriptor of the namespace."""
        return self._namespace.fileno()

    def sysctls(self) -> Iterator[tuple[str, str]]:
        yield from QUIET
        if self.plan.wires is not None:
            yield from SILENT

    def cleanup(self) -> None:
        """Let go of the namespace; ``cleanup`` removes it by the lab's name."""
        self._end_command()
        self.kernel.close()
        self._namespace.close()

    # ------------------------------------------------------------------ configuration

    def config(self, **_: Any) -> dict[str, object]:
        """Configure the kernel: everything in one batch, in the order the kernel needs."""
        kernel_object.raise_link(self.kernel, kernel_object.LOOPBACK_INDEX, subject=self.name)
        self.configure_bridges()
        for port in self.ports_in_order():
            egress = self.plan.egress(port.cable, self.model)
            bonded = port.model.bond is not None
            port.configure(
                egress,
                bridge=0 if bonded else self.bridge_over(port),
                vlan=None if bonded else self.vlan_of(port),
                bond=self.index_of(port.model.interface) if bonded else 0,
                asic=self.plan.asic,
            )
        self.configure_addresses()
        for neighbour in self.plan.neighbours[self.name]:
            kernel_object.neighbour(
                self.kernel_at(neighbour.interface),
                self.index_of(neighbour.interface),
                neighbour.address,
                neighbour.mac,
                subject=f"{self.name}, neighbour {neighbour.address}",
            )
        for route in self.plan.routes[self.name]:
            kernel_object.route(
                self.kernel,
                route.destination,
                [(self.index_of(hop.port), hop.via, hop.on_link) for hop in route.hops],
                source=route.source,
                table=kernel_object.routing_table(route.table),
                subject=f"{self.name}, route to {route.destination}",
            )
        for rule in self.plan.rules[self.name]:
            kernel_object.lookup_rule(
                self.kernel,
                rule.interface,
                kernel_object.routing_table(rule.table),
                source=rule.source,
                subject=f"{self.name}, rule for what comes in by {rule.interface}",
            )
        self.flush()
        self.plan.step(self.name)
        return {}

    def flush(self) -> None:
        """Have the kernel do what is queued."""
        self.kernel.flush()

    def kernel_at(self, interface: str) -> RouteSocket:
        """Return the socket of the namespace in which ``interface`` has its addresses."""
        return self.kernel

    def configure_bridges(self) -> None:
        """Queue what must be there before the ports."""

    def configure_addresses(self) -> None:
        """Queue addresses that are not those of ports."""
        if self.model.loopback is not None:
            kernel_object.address(
                self.kernel,
                kernel_object.LOOPBACK_INDEX,
                IPv4Interface(self.model.loopback),
                subject=f"{self.name}, loopback",
            )

    def index_of(self, interface: str) -> int:
        return self.plan.indices[CableEnd(self.name, interface)]

    def bridge_over(self, port: VethPort) -> int:
        """Index of the bridge that ``port`` is a member of, or 0."""
        return self.index_of(port.model.bridge) if port.model.bridge else 0

    def vlan_of(self, port: VethPort) -> int | None:
        """The VLAN of ``port`` on that bridge, if it has VLANs."""
        return None

    def ports_in_order(self) -> list[VethPort]:
        ports: list[VethPort] = self.intfList()
        return ports

    def ready(self) -> bool:
        """Return whether every interface can send.

        A bridge without a cable has no receiver, and a tunnel port has no carrier to wait for.
        """
        cabled = {port.model.bridge for port in self.ports_in_order()}
        empty = {bridge.name for bridge in self.model.bridges} - cabled
        tunnels = {tunnel_port(b.vni) for b in self.model.bridges if b.vni is not None}
        return (empty | tunnels | self.uncabled()).issuperset(ports_not_ready(self.kernel))

    def uncabled(self) -> set[str]:
        """Return further interfaces that lead to no cable."""
        return set()

    # ------------------------------------------------------------------ commands

    def popen(self, *args: Any, **options: Any) -> Popen[Any]:
        """A process inside the namespace; arguments and options as those of Mininet's popen."""
        settings: dict[str, Any] = {"stdout": PIPE, "stderr": PIPE, **popen_options()}
        settings.update(options)
        settings.pop("mncmd", None)
        shell = settings.pop("shell", False)
        command = args[0] if len(args) == 1 else list(args)
        if shell:
            line = command if isinstance(command, str) else " ".join(map(str, command))
            command = [os.environ.get("SHELL", "/bin/sh"), "-c", line]
        elif isinstance(command, str):
            command = command.split()
        argv = [str(word) for word in command]
        return namespaces.visitor().inside(self.path, lambda: Popen(argv, **settings))

    def sendCmd(self, *args: Any, **_: Any) -> None:
        """Start a shell command; ``monitor`` and ``waitOutput`` bring what it prints."""
        if self.waiting:
            raise RuntimeError(f"{self.name} still runs {self.lastCmd!r}: waitOutput first")
        words = args[0] if len(args) == 1 and isinstance(args[0], list) else args
        line = " ".join(str(word) for word in words).rstrip()
        self._end_command()
        self.lastCmd, self.lastPid = line, None
        if line.endswith("&"):
            line += ' printf "\\001%d\\r\\n" $!'
        script = f"{line}\nprintf '\\177'"
        process = self.popen(
            ["bash", "-c", script], stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self.shell, self.stdin, self.stdout = process, process.stdin, process.stdout
        self.pollOut = select.poll()
        self.pollOut.register(self.stdout)
        self.readbuf = ""
        self.waiting = True

    def cmd(self, *args: Any, **options: Any) -> str:
        """Run a shell command and return what it printed, standard error included."""
        self.sendCmd(*args)
        output: str = self.waitOutput(options.get("verbose", False))
        self._end_command()
        return output

    def read(self, size: int = 1024) -> str:
        """Return output as Mininet's ``read`` does; the stream's end stands for its end mark."""
        if len(self.readbuf) < size:
            data = os.read(self.stdout.fileno(), size - len(self.readbuf))
            self.readbuf += self.decoder.decode(data) if data else SENTINEL
        result, self.readbuf = self.readbuf[:size], self.readbuf[size:]
        return result

    def write(self, data: str) -> None:
        """Send ``data`` to the running command."""
        os.write(self.stdin.fileno(), data.encode())

    def sendInt(self, intr: str = "\x03") -> None:
        """Interrupt the running command, as Ctrl-C would."""
        if self.shell is not None and self.shell.poll() is None:
            os.killpg(self.shell.pid, signal.SIGINT)

    def _end_command(self) -> None:
        """Close the pipes of the last command and reap its shell; background jobs stay."""
        if self.shell is None:
            return
        self.stdin.close()
        self.stdout.close()
        if self.waiting and self.shell.poll() is None:
            self.shell.kill()
        self.shell.wait()
        self.shell, self.waiting = None, False

    def terminate(self) -> None:
        self.cleanup()


class GpuNode(NamespaceNode):
    """A GPU: its NIC ports, a default route, and neighbours that never need resolving."""

    def configure_bridges(self) -> None:
        bonds.configure(self.kernel, self.plan, self.model)

    def configure_addresses(self) -> None:
        super().configure_addresses()
        for bond, members in self.model.bonds.items():
            address = self.plan.topology.addresses[CableEnd(self.name, members[0].name)]
            kernel_object.address(
                self.kernel, self.index_of(bond), address, subject=f"{self.name}:{bond}"
            )


class SwitchNode(NamespaceNode, MininetSwitch):
    """A rail switch (bridges and routed uplinks), a spine or a super-spine (a router)."""

    controlIntf = None
    vrfs: SwitchVrfs

    def startShell(self, mnopts: str | None = None) -> None:
        super().startShell(mnopts)
        self.vrfs = SwitchVrfs(self.plan, self.model, self.kernel, self.handle)

    def cleanup(self) -> None:
        self.vrfs.close()
        super().cleanup()

    def flush(self) -> None:
        super().flush()
        self.vrfs.flush()

    def kernel_at(self, interface: str) -> RouteSocket:
        bridges = {bridge.name: bridge for bridge in self.model.bridges}
        return self.vrfs.kernel_at(bridges.get(interface))

    def uncabled(self) -> set[str]:
        return set(self.vrfs.names())

    def sysctls(self) -> Iterator[tuple[str, str]]:
        yield from super().sysctls()
        yield from FORWARDING
        yield HASH_SEED, str(kernel_seed(self.model))
        if self.model.bridges:
            yield "bridge/bridge-nf-call-iptables", "0"

    def start(self, controllers: object = None) -> None:
        """Bring the switch to work (Mininet's moment for it)."""
        self.config()

    def stop(self, deleteIntfs: bool = True) -> None:
        self.terminate()

    def defaultIntf(self) -> VethPort | None:
        port: VethPort | None = MininetNode.defaultIntf(self)
        return port

    def bridge_over(self, port: VethPort) -> int:
        whole = self.plan.vlan_bridge(self.model)
        if whole is None or port.model.bridge is None:
            return super().bridge_over(port)
        return self.plan.indices[whole]

    def vlan_of(self, port: VethPort) -> int | None:
        if self.plan.vlan_bridge(self.model) is None:
            return None
        bridge = self.model.bridge_of(port.model)
        return bridge.vlan if bridge is not None else None

    def configure_bridges(self) -> None:
        whole = self.plan.vlan_bridge(self.model)
        if whole is not None:
            self._configure_vlans(whole)
            bonds.configure(self.kernel, self.plan, self.model, bridge=self.plan.indices[whole])
            return
        self.vrfs.make()
        for bridge in self.model.bridges:
            end = CableEnd(self.name, bridge.name)
            apart = self.vrfs.is_apart(bridge)
            mac = self.vrfs.outer_mac(bridge) if apart else bridge.mac
            index, subject = self.plan.indices[end], str(end)
            kernel_object.bridge(self.kernel, bridge.name, index, mac, subject=subject)
            # before its members: a bridge that gets its carrier later signals when it can send
            kernel_object.raise_link(
                self.kernel,
                index,
                alias=self.plan.alias(end),
                bridge=self.vrfs.device_of(bridge),
                subject=subject,
            )
            if bridge.vni is not None and apart:
                self.vrfs.subnet(bridge, bridge.vni)
            elif bridge.vni is not None:
                configure_tunnel(self.kernel, self.plan, self.model, bridge, bridge.vni)

    def _configure_vlans(self, whole: CableEnd) -> None:
        """One bridge, and for each rail the switch's own interface in its VLAN."""
        index, mac = self.plan.indices[whole], self.model.bridges[0].mac
        cables = (port.cable for port in self.ports_in_order() if port.model.bridge)
        mtu = min((cable.mtu for cable in cables), default=0)
        kernel_object.bridge(
            self.kernel, whole.port, index, mac, vlans=True, mtu=mtu, subject=str(whole)
        )
        kernel_object.raise_link(
            self.kernel, index, alias=self.plan.alias(whole), subject=str(whole)
        )
        for bridge in self.model.bridges:
            end = CableEnd(self.name, bridge.name)
            own, vlan, subject = self.plan.indices[end], bridge.vlan, str(end)
            assert vlan is not None  # the topology is valid
            kernel_object.vlan_member(self.kernel, index, vlan, of_bridge=True, subject=subject)
            kernel_object.vlan_interface(
                self.kernel, bridge.name, own, vlan, bridge=index, mac=mac, subject=subject
            )
            kernel_object.raise_link(self.kernel, own, alias=self.plan.alias(end), subject=subject)
            if bridge.vni is not None:
                configure_tunnel(self.kernel, self.plan, self.model, bridge, bridge.vni, vlan=vlan)

    def configure_addresses(self) -> None:
        for bridge in self.model.bridges:
            end = CableEnd(self.name, bridge.name)
            index = self.plan.indices[end]
            if bridge.gateway is not None:
                kernel = self.vrfs.kernel_at(bridge)
                kernel_object.address(kernel, index, bridge.gateway, subject=str(end))
        self.vrfs.hand_off()
        super().configure_addresses()
        for port in self.ports_in_order():
            if port.model.bridge is not None:
                for mac in self.plan.behind(port.end):
                    kernel_object.forwarding_entry(
                        self.kernel,
                        self.index_of(port.model.interface),
                        mac,
                        vlan=self.vlan_of(port),
                        subject=f"{port.end}, {mac} behind it",
                    )
        for bridge in self.model.bridges:
            if bridge.vni is not None and self.vrfs.is_apart(bridge):
                members = [p for p in self.ports_in_order() if p.model.bridge == bridge.name]
                behind = (mac for port in members for mac in self.plan.behind(port.end))
                self.vrfs.members(bridge, bridge.vni, behind)
        ports = {port.model.name: port.index for port in self.ports_in_order()}
        bonds.stand_by(self.kernel, self.model, self.plan.topology, ports)
