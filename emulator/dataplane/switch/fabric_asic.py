"""The switch ASICs of one lab: the program on every switch port, and its settings there.

The program is loaded before the fabric is built (:meth:`FabricAsic.load`) and put on each port as
the port comes up.  Its maps are pinned, so another process opens the same thing later
(:meth:`FabricAsic.open`).

Queues are as deep as the kernel's own really are: each port gets the count of what has arrived at
the other end of its cable.  Where netem delays frames on the cable they would count as waiting, so
there queues are computed from the link's rate (:mod:`emulator.dataplane.switch.switch_profile`).

In a lab with a virtual clock an engine holds the frames, and shares their depths and the time with
the program (:mod:`emulator.dataplane.switch.virtual_state`).  Below the ports there is nothing to
shape then. The engine reads here what faults leave of a rate, and which NICs send pauses without a
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Self

from emulator.dataplane import lab_record
from emulator.dataplane.clock import Dilation
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.kernel.shaping import (
    Egress,
    TcRequest,
    gating_requests,
    rate_requests,
    size_requests,
)
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch import switch_counters as counting
from emulator.dataplane.switch import switch_fitting as fitting
from emulator.dataplane.switch.balancing import PRELOADED_METHODS, check_kernel
from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.layout import POOL, PORT_HEAD, PORT_KEY, TrafficClass
from emulator.dataplane.switch.bpf.switch_program import SwitchProgram
from emulator.dataplane.switch.bpf.switch_tables import SwitchTables
from emulator.dataplane.switch.cable_counters import LinkReadings
from emulator.dataplane.switch.cable_fitting import reaction_ns
from emulator.dataplane.switch.fault_rates import check_rate
from emulator.dataplane.switch.joined_ports import JoinedPorts
from emulator.dataplane.switch.parameters import ARRIVAL, DEPARTURE
from emulator.dataplane.switch.pause import PauseRules
from emulator.dataplane.switch.pauses import Pauses
from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.dataplane.switch.switch_counters import AsicCounters
from emulator.dataplane.switch.switch_fitting import FittedSwitch, derived_seed
from emulator.dataplane.switch.switch_port import SwitchPort, switch_ports
from emulator.dataplane.switch.switch_profile import arrival_settings, port_settings
from emulator.dataplane.switch.virtual_state import VirtualState
from emulator.dataplane.wires import Wires
from emulator.errors import UserError
from topologies.advice import question
from topologies.model import CableEnd, Link

#: A netlink socket in the namespace of a node.
Kernels = Callable[[str], RouteSocket]


def _no_kernel(node: str) -> RouteSocket:
    raise LookupError(f"{node} is no namespace of a kernel")


class FabricAsic:
    """All switch ports of one lab, by ``node:port`` in the order of the topology.

    Octets are those on the wire, 38 more than the IP packet.  ``virtual`` is what is shared with
    the engine of a virtual clock, None with the host's.
    """

    def __init__(
        self,
        lab: str,
        wires: Wires,
        program: SwitchTables,
        settings: FabricSettings,
        kernels: Kernels = _no_kernel,
    ) -> None:
        topology = wires.topology
        self.lab = lab
        self.topology = topology
        self.program = program
        self.dilation = settings.dilation
        self.clock = settings.clock
        self.virtual = VirtualState(program) if settings.virtual else None
        #: whether queues are as deep as the kernel's own are, and not computed from a link's rate
        self.measured = settings.virtual or settings.cable_delay != "netem"
        self._seed = settings.seed
        self._kernels = kernels
        self._indices = wires.indices
        self.ports: Mapping[str, SwitchPort] = {
            str(port.end): port for port in switch_ports(topology, self._indices)
        }
        #: those of switches that are in this process's lab, and not in that of another process
        self._own = [port for port in self.ports.values() if wires.here(port.end.node)]
        #: port of a NIC -> port of the switch at the other end
        self._port_at = {str(nic): str(end) for nic, end in self._nic_cables().items()}
        self._reported = self.measured and self.virtual is None  # ports get what has arrived
        self._nics = self._nic_cables() if self._reported else {}
        self.pauses = Pauses(lab, topology, program, self._indices, settings.clock)
        self.links = LinkReadings()
        #: the switches of other processes, where this process has not all of them
        self.joined: JoinedPorts | None = None
        self._fitted: FittedSwitch | None = None
        self._storms: dict[str, bool] = {}
        self._faulted: dict[str, Faults] = {}
        self._dead: frozenset[CableEnd] = frozenset()

    @property
    def state(self) -> VirtualState:
        """What the engine of a virtual clock shares; ValueError with the host's clock."""
        if self.virtual is None:
            raise ValueError(f"the switches of {self.lab} work by the host's clock")
        return self.virtual

    @classmethod
    def load(
        cls,
        fitted: FittedSwitch,
        lab: str,
        wires: Wires,
        settings: FabricSettings,
        *,
        kernels: Kernels = _no_kernel,
        program: SwitchTables | None = None,
    ) -> Self:
        """Bring the program into the kernel for ``lab``, unless given; configure ports to come.

        Raises UserError if the machine cannot; nothing is left then.
        """
        program = program or asic_program.load(
            lab, fitting.size_of(wires.topology), clock=settings.clock
        )
        try:
            asic = cls(lab, wires, program, settings, kernels)
            asic._configure(fitted)
            return asic
        except BaseException:
            program.close()
            raise

    @classmethod
    def open(
        cls, lab: str, wires: Wires, settings: FabricSettings, kernels: Kernels = _no_kernel
    ) -> Self:
        """Open the switches of a running lab.  Raises UserError if its program is gone."""
        return cls(lab, wires, SwitchProgram(lab), settings, kernels)

    def close(self) -> None:
        """Let go of the program.  What is attached goes on."""
        if self.virtual is not None:
            self.virtual.close()
        self.program.close()

    # ------------------------------------------------------------------ what it does

    @property
    def choice(self) -> SwitchChoice:
        """Return what the switches do now, whoever chose it."""
        return self.fitted.choice

    @property
    def fitted(self) -> FittedSwitch:
        """The choice in octets and times of this fabric.

        Where the clock is virtual nobody else chooses, and this is no look at the lab's record.
        """
        if self._fitted is not None and self.virtual is not None:
            return self._fitted
        record = lab_record.load(self.lab)
        choice = None if record is None else record.settings.switch
        if choice is None:
            raise UserError(f"lab {self.lab} is gone: its record says nothing of a switch")
        if self._fitted is None or self._fitted.choice.spec != choice.spec:
            self._fitted = self._fit(choice)
        return self._fitted

    def apply(self, choice: SwitchChoice, seed: int | None = None) -> None:
        """Let all switches work by ``choice`` from the next packet on, and count anew.

        With ``seed`` what they draw and hash follows from it from now on.
        Faults that were injected stay.  Frames that wait at this moment are still sent, but the
        queues count from zero.  Raises UserError, with nothing changed, for a choice that cannot
        be in this fabric.
        """
        fitted = self._fit(choice)
        self._check_pauses(fitted)
        if seed is not None:
            self._seed = seed
        self.pauses.end()
        if self.virtual is None:
            self._reshape(fitted)
        self._configure(fitted)
        if self.program.in_kernel:
            lab_record.amend(self.lab, switch=choice)
        self.pauses.start()

    def reset(self) -> None:
        """Set the counters and the modelled queues of all ports to zero, and draws to their start.

        What the kernel still holds at this moment is not counted as queued afterwards.
        """
        for port in self._own:
            counting.reset(self.program, port.index)
        for number in {port.switch for port in self._own}:
            counting.reset_pool(self.program, number)

    def counters(self) -> dict[str, AsicCounters]:
        """Return the counters of every switch port by ``node:port``, since the last reset."""
        read = counting.read_all(self.program, [port.index for port in self._own])
        own = {str(port.end): one for port, one in zip(self._own, read, strict=True)}
        return own if self.joined is None else self.joined.by_name(list(self.ports), own)

    def inject(self, port: str, faults: Faults) -> None:
        """Apply ``faults`` to what leaves through ``port`` (``rail0:up1``).

        Replaces what was injected there before; :data:`~emulator.dataplane.switch.port_faults.NONE`
        heals.  The other direction of a cable is the port at its other end.  Raises UserError for a
        port that no switch has, and for a rate below what the program counts in.
        """
        faulted = self.port(port)
        if faults.pause_storm or self._storms.get(port):
            self._storm(faulted, faults.pause_storm)
        if self.virtual is None:
            check_rate(faults, faulted.cable, port, self.dilation)
        before = self.settings_of(faulted)
        after = self._nominal(self.fitted, faulted, faults)
        scaled = faults.scaled or self.faulted(port).scaled
        struck = ports.with_faults_of(before, after, scaled=scaled)
        ports.configure(self.program, faulted.index, struck)
        self._faulted[port] = faults
        if self.virtual is not None:
            return
        if PORT_HEAD.unpack_from(after)[0] != PORT_HEAD.unpack_from(before)[0]:
            egress = self._egress(self.fitted, faulted, faults.rate)
            self._request(faulted, rate_requests(egress))
            self._kernels(faulted.end.node).flush()
        if faulted.faces_nic:
            self._slow_nic(faulted, faults.rate if faults.arriving else 1.0)

    def _slow_nic(self, faulted: SwitchPort, share: float) -> None:
        """Have the NIC at the other end of a cable send at ``share`` of its rate."""
        nic = next(end for end in faulted.cable.ends if end != faulted.end)
        kernel = self._kernels(nic.node)
        for request in rate_requests(self.nic_egress(self._plain(faulted.cable, share))):
            body = request.body(self._indices[nic])
            kernel.queue(request.kind, request.flags, body, f"{nic}, egress queues")
        kernel.flush()

    def faulted(self, port: str) -> Faults:
        """Return the faults of switch port ``port`` that were injected here."""
        return self._faulted.get(port, NONE)

    def rate_share(self, port: str) -> float:
        """Return what faults that were injected here leave of the rate at a switch's ``port``."""
        return self.faulted(port).rate

    def nic_rate_share(self, nic: str) -> float:
        """Return the share of the rate that faults of both directions leave at a NIC's port."""
        return self.faults_from(nic).rate

    def faults_from(self, end: str) -> Faults:
        """Return the faults that strike what leaves a port, a switch's or a NIC's, on its cable."""
        if end in self.ports:
            return self.faulted(end)
        faulted = self.faulted(self._port_at.get(end, ""))
        return faulted if faulted.arriving else NONE

    def storming(self, nic: str) -> bool:
        """Return whether the port of a NIC requests pauses all the time, without a reason."""
        return self._storms.get(self._port_at.get(nic, ""), False)

    def swallows(self, port: str, *, arriving: bool) -> bool:
        """Return whether faults at switch port ``port`` drop all frames of one direction.

        ``arriving`` selects the frames that arrive there; the others leave.
        """
        faulted = self.faulted(port)
        return faulted.swallows_arrivals if arriving else faulted.swallows

    def pause_rules(self, end: CableEnd) -> PauseRules | None:
        """Return what port ``end`` of a switch or NIC does about pauses; None: nothing.

        For an engine whose PAUSE frames travel: a pause takes effect one device response after its
        frame has come.  The watchdog guards switches against NICs, and the other ports have none.
        """
        cable, port = self.pauses.cables[end], self.ports.get(str(end))
        if (rules := self.fitted.pause(cable)) is None:
            return None
        watchdog_ns = rules.watchdog_ns if port is not None and port.faces_nic else 0
        response_ns = rules.reaction_ns - reaction_ns(cable.delay_ns)
        return replace(rules, reaction_ns=response_ns, watchdog_ns=watchdog_ns)

    def queue_of_code_point(self, port: str) -> bytes:
        """The queue at ``port`` of IP packets by code point."""
        rules = self.fitted.profile(self.port(port).cable)
        return bytes(rules.queue(TrafficClass(number)) for number in rules.classes())

    def marks_of_departures(self, port: str) -> bytes | None:
        """Settings by which ``port`` marks what leaves; None if it marks what comes."""
        if self.fitted.choice.mark_on != DEPARTURE:
            return None
        return self._nominal(self.fitted, self.port(port), self.faulted(port), marking=True)

    def empty(self, port: str) -> None:
        """Drop the frames that wait at ``port``, whose cable was pulled.

        The port must be black meanwhile.
        """
        counting.empty(self.program, self.port(port).index)

    def lose(self, port: str, octets: int) -> None:
        """Count ``octets`` (on the wire) that waited at ``port`` and went with its carrier."""
        counting.lose(self.program, self.port(port).index, octets)

    def reroute(self, dead: Collection[CableEnd] | None = None) -> None:
        """Balance over routes without hops through the ports ``dead``; turns begin anew.

        By default these are the ports that are dead.

        Hops of a route of which all are dead stay: the kernel has no such route then.
        """
        self._dead = self._dead if dead is None else frozenset(dead)
        self._set_routes(self.fitted)

    def _storm(self, faulted: SwitchPort, on: bool) -> None:
        if not faulted.faces_nic:
            raise UserError(
                f"a pause storm is a NIC's, and at the other end of {faulted.end} is a switch: "
                "name a port that faces a NIC"
            )
        nic = next(end for end in faulted.cable.ends if end != faulted.end)
        self.pauses.storm(nic, on)
        self._storms[str(faulted.end)] = on

    def port(self, name: str) -> SwitchPort:
        """The port ``node:port``.  Raises UserError if no switch has it."""
        if name in self.ports:
            return self.ports[name]
        for nic, end in self._port_at.items():
            if name == nic:
                raise UserError(f"{name} is the port of a NIC, no switch's: the switch has {end}")
        asked = question(name, self.ports)
        hint = f"{asked} " if asked else ""
        known = ", ".join(list(self.ports)[:8]) + (", ..." if len(self.ports) > 8 else "")
        raise UserError(f"no switch has a port {name!r}; {hint}known are {known}")

    # ------------------------------------------------------------------ while it is built

    def attach(self, kernel: RouteSocket, end: CableEnd) -> None:
        """Queue what puts the program on port ``end``, which is there and need not be up."""
        if str(end) in self.ports:
            ports.attach(kernel, self._indices[end], self.program, subject=str(end))
        elif end in self._nics:
            index = self._indices[end]
            ports.attach(kernel, index, self.program, subject=str(end), arrival_only=True)

    def egress(self, cable: Link, plain: Egress) -> Egress:
        """The kernel's queues below a switch port of ``cable``; ``plain`` is a NIC's."""
        return (self._fitted or self.fitted).egress(cable, plain)

    def nic_egress(self, plain: Egress) -> Egress:
        """The kernel's queues below the port of a NIC; ``plain`` without any switch."""
        return replace(plain, gated=True) if (self._fitted or self.fitted).pauses else plain

    # ------------------------------------------------------------------ inside

    def _configure(self, fitted: FittedSwitch) -> None:
        """Write the settings of all ports, and routes where the balancing needs them."""
        self._check_pauses(fitted)
        self._set_routes(fitted)
        for port in self._own:
            settings, before = self._nominal(fitted, port, NONE), self.settings_of(port)
            if PORT_HEAD.unpack_from(before)[0]:  # it worked before: what strikes it, stays
                settings = ports.with_faults_of(settings, before)
            ports.configure(self.program, port.index, settings)
        for end, switch_port in self._nics.items():
            settings = arrival_settings(peer=self._indices[switch_port])
            ports.configure(self.program, self._indices[end], settings)
        self.pauses.configure(fitted)
        self._set_pools(fitted)
        self.reset()
        self._fitted = fitted

    def _fit(self, choice: SwitchChoice) -> FittedSwitch:
        if self.program.in_kernel:
            check_kernel(choice.balance)
        return fitting.fit(choice, self.topology, self.dilation, clock=self.clock)

    def _check_pauses(self, fitted: FittedSwitch) -> None:
        if fitted.pauses and not self.measured:
            raise UserError(
                "PFC counts frames on a cable as waiting where netem delays them: "
                "bring the lab up with the delay at the NICs, or take pfc=off"
            )

    def _nominal(
        self,
        fitted: FittedSwitch,
        port: SwitchPort,
        faults: Faults,
        *,
        marking: bool = False,
    ) -> bytes:
        """Return the settings of ``port``; ``marking``: with marks, whenever it is to mark."""
        hash_seed = derived_seed(self._seed, "hash", self.topology.switches[port.switch].name)
        return port_settings(
            fitted.profile(port.cable),
            rate_bps=port.cable.rate_bps,
            dilation=self.dilation,
            seed=derived_seed(self._seed, "port", str(port.end)),
            faces_nic=port.faces_nic,
            faults=faults.beside_link() if fitted.links else faults,
            balancing=fitted.balancing(switch=port.switch, seed=hash_seed),
            measured=self.measured,
            peer=port.peer if self._reported else 0,
            timed=self.virtual is None,
            marking=marking or fitted.choice.mark_on == ARRIVAL,
        )

    def settings_of(self, port: SwitchPort) -> bytes:
        """Return what the port works by now."""
        return self.program.settings.get(PORT_KEY.pack(port.index))

    def _egress(self, fitted: FittedSwitch, port: SwitchPort, share: float = 1.0) -> Egress:
        """The kernel's queues below ``port`` with ``share`` of the cable's rate left."""
        return fitted.egress(port.cable, self._plain(port.cable, share))

    def _plain(self, cable: Link, share: float = 1.0) -> Egress:
        return Egress(
            rate_bps=Dilation(self.dilation).host_bps(cable.rate_bps * share),
            mtu=cable.mtu,
            buffer_bytes=cable.buffer_bytes,
        )

    def _request(self, port: SwitchPort, requests: Iterable[TcRequest]) -> None:
        kernel = self._kernels(port.end.node)
        for request in requests:
            body = request.body(port.index)
            kernel.queue(request.kind, request.flags, body, f"{port.end}, egress queues")

    def _set_routes(self, fitted: FittedSwitch) -> None:
        if fitted.choice.method not in PRELOADED_METHODS:
            return
        numbers = {switch.name: number for number, switch in enumerate(self.topology.switches)}
        for name, routes in fitting.multipath(self.topology).items():
            for route in routes:
                ends = [CableEnd(name, hop.port) for hop in route.hops]
                alive = [end for end in ends if end not in self._dead] or ends
                hops = [self._indices[end] for end in alive]
                ports.set_route(self.program, numbers[name], route.destination, hops)

    def _set_pools(self, fitted: FittedSwitch) -> None:
        """Write what the ports of each switch share; what is in use of a pool stays."""
        table = self.program.virtual_pools
        if table is None:
            return
        for number in {port.switch for port in self._own}:
            key, packed = PORT_KEY.pack(number), bytes(POOL.size)
            rules = fitted.pools.get(self.topology.switches[number].name)
            if rules is not None:
                before, _, _, *state = POOL.unpack(table.get(key))
                state = state if before else [0] * len(state)
                head = rules.size_bytes, rules.reserved_bytes, rules.headroom_bytes
                packed = POOL.pack(*head, *state)
            table.put(key, packed)

    def _reshape(self, fitted: FittedSwitch) -> None:
        """Give the kernel's queues below the sizes and shares that ``fitted`` needs."""
        present = self.fitted
        if bool(present.pauses) is not bool(fitted.pauses):
            self._regate(fitted)
        for port in self.ports.values():
            before, after = self._egress(present, port), self._egress(fitted, port)
            if after == before:
                continue
            self._request(port, size_requests(after))
            if after.data_share != before.data_share:
                share = self._rate_left(fitted, port)
                self._request(port, rate_requests(self._egress(fitted, port, share)))
        for switch in self.topology.switches:
            self._kernels(switch.name).flush()

    def _regate(self, fitted: FittedSwitch) -> None:
        """Give every data queue a gate, or take it: nothing is to wait there."""
        for end, cable in self.pauses.cables.items():
            plain = self._plain(cable)
            egress = replace(plain, gated=bool(fitted.pauses))
            if str(end) in self.ports:
                egress = fitted.egress(cable, plain)
            kernel = self._kernels(end.node)
            for request in gating_requests(egress):
                body = request.body(self._indices[end])
                kernel.queue(request.kind, request.flags, body, f"{end}, egress queues")
            kernel.flush()

    def _rate_left(self, fitted: FittedSwitch, port: SwitchPort) -> float:
        """The share of the cable's rate that faults leave of it."""
        (nominal, _), (now, _) = (
            PORT_HEAD.unpack_from(settings)
            for settings in (self._nominal(fitted, port, NONE), self.settings_of(port))
        )
        return float(f"{now / nominal:.4g}")  # both are rounded to what the program counts in

    def _nic_cables(self) -> Mapping[CableEnd, CableEnd]:
        """NIC port -> the switch port at the other end."""
        faces = [port for port in self.ports.values() if port.faces_nic]
        return {far: port.end for port in faces for far in port.cable.ends if far != port.end}
