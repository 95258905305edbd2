"""The plan of a run, validated before the first kernel object exists."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emulator.dataplane import homing
from emulator.dataplane.capture.fabric_capture import SNAPLEN_HEADERS, Tap, ports_of, select
from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.control_plane.charged_time import Convergence
from emulator.dataplane.doctor.capabilities import Capabilities
from emulator.dataplane.fabric_choice import FabricChoice, choose
from emulator.dataplane.homing import Homing
from emulator.dataplane.kinds import KINDS
from emulator.dataplane.switch import switch_fitting as fitting
from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.dataplane.switch.switch_choice import requested as requested_switch
from emulator.errors import UserError
from emulator.logs import plain_logger
from emulator.run.faults.grammar import Moment, timeline
from emulator.run.measurement import Start
from emulator.run.plan import preflight
from emulator.run.plan.preflight import check_use
from emulator.run.plan.stages import (
    Stage,
    asked_latency_ns,
    stages,
    with_customary,
)
from emulator.run.plan.trial_load import TrialLoad
from emulator.run.plan.variants import DEFAULT_SEED, DEFAULT_TRANSPORT, PXN_MODES, variants
from emulator.run.pxn import Pxn
from emulator.run.results import FabricKind
from emulator.scenario import Scenario, Trial
from emulator.sim.endpoint.nic import host_staging, nic_profile
from emulator.transports import TransportChoice, default_switch, fit
from emulator.workers.division import ALONE, Division, Processes
from emulator.workers.partition import ExpectedTraffic, Partition, automatic
from topologies.model import Topology
from topologies.parts.attachment import switch_ends

_log = plain_logger(__name__)
#: Operations of a stage whose schedules stay from planning on: 3 MB in tables, 50 as objects.
KEPT_OPERATIONS = 50_000


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The user's request for a run.

    ``capture``, ``transport`` and ``switch`` None: the user leaves it to the run.
    """

    scenario: Scenario
    parameters: Any
    topology: str | None = None
    transport: str | None = None
    switch: str | None = None
    #: how switches learn their routes; None: as in the topology
    control_plane: str | None = None
    seed: int = DEFAULT_SEED
    #: how many seeds the scenario is run with, from ``seed`` on
    seeds: int = 1
    #: what the nodes are: namespaces of the kernel, or a model in this process
    fabric: FabricKind = "kernel"
    #: processes that share the work; None: as many as suit the machine
    workers: int | None = None
    #: names of the switches of each worker; None: those with the least traffic between them
    parts: Sequence[Sequence[str]] | None = None
    #: what virtual time charges for new routes after a fault
    convergence: Convergence = field(default_factory=Convergence)
    #: what the run must come to (:mod:`emulator.sim.frame_digest`); None: anything
    digest: str | None = None
    #: whether the run folder gets what the digest is made of, to be joined with other seeds'
    digest_parts: bool = False
    capture: str | None = None
    snaplen: int = SNAPLEN_HEADERS
    output: Path | None = None
    lab: str | None = None
    #: one of so many frames of data is timed from NIC to NIC; 0: none
    frame_latency: int = 0
    #: GPUs whose endpoints write event logs, by name and separated by commas, or "all"
    event_log: str | None = None
    #: what the user has go wrong, as :mod:`emulator.run.faults.grammar` reads it
    faults: Sequence[str] = ()
    #: what iterations that count begin with
    start: Start = field(default_factory=Start)
    #: whose writes another GPU of the server sends (:mod:`emulator.run.pxn`)
    pxn: str = PXN_MODES[0]
    #: the profile of all NICs (:mod:`emulator.sim.endpoint.nic.nic_profile`)
    nic: str = nic_profile.NONE
    #: whose data go through host memory (:mod:`emulator.sim.endpoint.nic.host_staging`)
    gpu_direct: str = host_staging.ON


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """Trials in a row, with their loads, on one transport and one switch (None: no ASIC).

    ``topology`` is the fabric with the latency of that switch.
    """

    stage: Stage
    topology: Topology
    transport: TransportChoice
    switch: SwitchChoice | None
    trials: Sequence[Trial]
    loads: Sequence[TrialLoad]
    seed: int


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A validated request: what will be built and run."""

    request: RunRequest
    lab: str
    spec: str
    topology: Topology
    stages: Sequence[PlannedStage]
    taps: Sequence[Tap]
    capabilities: Capabilities
    pxn: Pxn
    logged: Sequence[str] = ()
    #: what the user has go wrong in every iteration that counts
    moments: Sequence[Moment] = ()
    #: all trials run on each of several transports (:mod:`emulator.run.report.comparison`)
    compares: bool = False
    #: how the ports of GPUs with several are used
    homing: Homing | None = None
    #: of several processes, once the trials are weighed; else it is found when the run begins
    partition: Partition | None = None

    @property
    def trials(self) -> list[Trial]:
        return [trial for stage in self.stages for trial in stage.trials]

    @property
    def loads(self) -> list[TrialLoad]:
        return [load for stage in self.stages for load in stage.loads]

    def traffic(self) -> ExpectedTraffic:
        """Return who sends how much to whom in one iteration of each trial."""
        return ExpectedTraffic.joined(one.traffic for one in self.loads if one.traffic is not None)

    def moments_of(self, trial: Trial) -> Sequence[Moment]:
        """Return what goes wrong in each iteration of ``trial`` by the user, and by itself."""
        if not trial.fault_clauses:
            return self.moments
        return timeline([*self.request.faults, *trial.fault_clauses], self.topology)

    @property
    def every_moment(self) -> list[Moment]:
        """Return what goes wrong in any trial."""
        return [moment for trial in self.trials for moment in self.moments_of(trial)]

    @property
    def transport(self) -> str:
        """Return what all stages use, or what they have in common: the user's choice."""
        return self._common([stage.stage.label for stage in self.stages], "transport", "uet")

    @property
    def switch(self) -> str:
        """Return the switches as the user wrote them."""
        return self._common([stage.stage.switch for stage in self.stages], "switch", "shallow")

    def _common(self, used: Sequence[str], option: str, default: str) -> str:
        asked: str | None = getattr(self.request, option)
        if option == "transport" and self.compares:
            asked = ",".join(str(one.label) for one in variants(asked))
        return used[0] if len(set(used)) == 1 else asked or default


def prepare(request: RunRequest) -> RunPlan:
    """Validate everything; raises UserError or TopologyError with one sentence."""
    return weighed(drafted(request))


def drafted(request: RunRequest, processes: Processes = ALONE) -> RunPlan:
    """Validate all but what the schedules say, which are not compiled yet.

    Each of several ``processes`` does so for its part of the GPUs.
    """
    requested: str | Topology | None = request.topology
    if requested is None:
        requested = request.scenario.topology(request.parameters)
    if isinstance(requested, Topology):
        chosen = FabricChoice(spec=requested.name, label=requested.name, topology=requested)
    else:
        chosen = choose(requested)
    preflight.check_network(chosen.topology)
    kind = KINDS[request.fabric]
    kind.check_convergence(request.convergence)
    topology, homed = homing.resolved(chosen.topology, request.control_plane, has=kind.has)
    topology = control_plane.chosen(topology, request.control_plane)
    if request.parts is not None:
        Partition.by_hand(topology, request.parts)
    kind.check_topology(topology)
    moments = timeline(request.faults, topology)
    # Each process is on a machine of its own, until they know each other's parts.
    least = -(-len(topology.gpus) // processes.count)
    preflight.check_endpoints(least)
    relays = Pxn(topology, request.pxn)
    if (staging := host_staging.parse(request.gpu_direct)) is not None:
        staging.check([server.name for server in topology.servers])
    by_seed = {
        seed: request.scenario.schedules(request.parameters, topology, seed)
        for seed in range(request.seed, request.seed + request.seeds)
    }
    trials = by_seed[request.seed]
    if any(len(of_seed) != len(trials) for of_seed in by_seed.values()):
        said = dict.fromkeys(
            words for of_seed in by_seed.values() for one in of_seed for words in one.warnings
        )
        raise UserError(
            "; ".join(
                [
                    "the scenario has another number of rows with each seed, so that there is "
                    "nothing to compare them by",
                    *said,
                    "or leave --seeds out",
                ]
            )
        )
    compared = variants(request.transport)
    planned = [
        _planned(stage, by_seed[seed], topology, replace(request, seed=seed), chosen)
        for variant in compared
        for seed in by_seed
        for stage in stages(
            by_seed[seed],
            transport=variant.transport,
            switch=request.switch,
            named=variant.switch,
            default_switch=lambda transport, latency_ns: usual_switch(
                transport, topology.with_switch_latency(latency_ns), chosen
            ),
            default_transport=chosen.transport or DEFAULT_TRANSPORT,
        )
    ]
    _check_switches(planned)
    check_use(request.switch, [one for one in planned if one.stage.named is None])
    for name in dict.fromkeys(one.stage.named for one in planned):
        check_use(name, [one for one in planned if one.stage.named == name])
    for stage in planned:
        kind.check_switch(topology, stage.switch)
    selection = request.capture
    if selection is None:
        selection = request.scenario.capture(request.parameters, topology)
    if not selection and request.capture is None:  # or the scenario found nothing to name here
        selection = default_capture(topology)
    taps = select(selection or "", ports_of(topology))
    lab = preflight.lab_name(request.scenario.name) if request.lab is None else request.lab
    found = kind.check_machine(lab, switched=any(stage.switch is not None for stage in planned))
    preflight.check_trials(lab, trials, least, shared=_may_share(request, processes))
    plan = RunPlan(
        request=request,
        lab=lab,
        spec=chosen.spec,
        topology=topology,
        stages=planned,
        pxn=relays,
        taps=taps,
        capabilities=found,
        logged=_logged(request.event_log, topology, planned),
        moments=moments,
        compares=len(compared) > 1,
        homing=homed,
    )
    _check_faults(plan)
    _check_idle(plan)
    return plan


def weighed(plan: RunPlan, processes: Processes = ALONE) -> RunPlan:
    """Weigh the trials of a :func:`drafted` plan, each process for its block of the GPUs.

    Of several processes the first one also divides the fabric.
    """
    division = Division.in_blocks(processes, len(plan.topology.gpus))
    stages = [_weighed(stage, plan.pxn, division) for stage in plan.stages]
    plan = replace(plan, stages=stages)
    if processes.count > 1:
        partition = processes.from_first("partition", lambda: partition_of(plan))
        plan = replace(plan, partition=partition)
    for stage in plan.stages:
        _log.info(
            "plan: %d trials, seed %d, transport %s, switch %s",
            len(stage.trials),
            stage.seed,
            stage.transport.name,
            None if stage.switch is None else stage.switch.spec,
        )
    _check_memory(plan, processes)
    return plan


def _check_memory(plan: RunPlan, processes: Processes) -> None:
    """Raise UserError unless what the processes on this machine have of the run fits it."""
    gpus = [gpu.name for gpu in plan.topology.gpus]
    worker_of = {} if plan.partition is None else plan.partition.worker_of
    here = Division.by_worker(processes, worker_of, gpus).on_this_machine
    for load in plan.loads:
        preflight.check_memory(
            load.size_bytes,
            [load.memory_octets[rank] for rank in here],
            load.operations * len(here) // len(gpus),
            pairs=load.pairs * len(here) // len(gpus),
            shared=_may_share(plan.request, processes),
        )


def _may_share(request: RunRequest, processes: Processes) -> bool:
    """Return whether several workers of a machine may use the memory of one GPU."""
    return processes.count == 1 and (request.parts is not None or request.workers != 1)


def partition_of(plan: RunPlan) -> Partition:
    """Return the division of the plan's fabric among workers."""
    if plan.partition is not None:
        return plan.partition
    topology, requested = plan.topology, plan.request.workers
    if plan.request.parts is not None:
        return Partition.by_hand(topology, plan.request.parts)
    if requested is None:
        requested = automatic(topology)
    traffic = plan.traffic() if requested > 1 else None
    return Partition.of(topology, requested, traffic)


def usual_switch(transport: str, topology: Topology, chosen: FabricChoice) -> str:
    """Return the switch of ``transport`` where the user names none.

    It is that of the fabric's profile, or else the customary one, and both where the profile has
    only parameters.
    """
    asked = chosen.switch
    if asked is not None and not topology.switch_latency_ns:
        topology = topology.with_switch_latency(asked_latency_ns(asked))
    if asked is None or (chosen.file is not None and chosen.file.names_switch):
        return asked or default_switch(transport, topology)
    return with_customary(asked, default_switch(transport, topology))


def _planned(
    stage: Stage,
    trials: Sequence[Trial],
    topology: Topology,
    request: RunRequest,
    fabric: FabricChoice,
) -> PlannedStage:
    switch = requested_switch(stage.switch)
    if switch is not None:
        others = request.switch is not None or any(trials[place].switch for place in stage.trials)
        with nullcontext() if others else fabric.answering():  # who requested the switch
            fitting.fit(switch, topology, 1, clock="virtual")
    for place in stage.trials:
        if trials[place].faults and switch is None:
            raise UserError(
                "faults are the switch's to inject and --switch none leaves no switch; choose "
                "another, such as shallow"
            )
    if switch is not None:
        topology = topology.with_switch_latency(switch.latency_ns)
    transport = fit(stage.transport, topology, seed=request.seed, switch=switch)
    return PlannedStage(
        stage=stage,
        topology=topology,
        transport=transport,
        switch=None if switch is None else switch.leaving(transport.trimmed_octets),
        trials=[trials[place] for place in stage.trials],
        loads=(),
        seed=request.seed,
    )


def _weighed(planned: PlannedStage, relays: Pxn, division: Division) -> PlannedStage:
    topology, wire = planned.topology, planned.transport.wire
    loads: list[TrialLoad] = []
    room = KEPT_OPERATIONS
    for trial in planned.trials:
        load = TrialLoad.of(trial, topology, wire, relays, division)
        if load.operations > room:
            messages = load.messages if len(planned.trials) == 1 else None
            load = replace(load, schedules=None, messages=messages)
        else:
            room -= load.operations
        loads.append(load)
    return replace(planned, loads=loads)


def _check_switches(planned: Sequence[PlannedStage]) -> None:
    if len({stage.switch is None for stage in planned}) > 1:
        raise UserError(
            "some rows of the scenario run without a switch ASIC and some with one; one fabric is "
            "built for all, so use --switch none for all or for none"
        )


def _check_faults(plan: RunPlan) -> None:
    moments = plan.every_moment
    silent = next((moment for moment in moments if moment.condition.faults), None)
    if silent is not None and any(stage.switch is None for stage in plan.stages):
        raise UserError(
            f"--fault {silent.text!r} is the switch's to inject and --switch none leaves no "
            "switch; choose another, such as shallow, or take carrier (down)"
        )


def _check_idle(plan: RunPlan) -> None:
    """Raise UserError for an option that could change nothing in this run."""
    request = plan.request
    if request.start != Start() and all(one.warmups + one.iterations == 1 for one in plan.trials):
        raise UserError(
            "--endpoints reused and --gap are about iterations after another, and each row has "
            "one: take more iterations or warm-ups, or leave the option out"
        )
    if request.convergence == Convergence():
        return
    if control_plane.of(plan.topology) is None or not plan.every_moment:
        raise UserError(
            "--convergence is the time from a fault to routes that switches learn anew: take a "
            "--control-plane such as ebgp and a --fault, or leave it out"
        )


def _logged(
    requested: str | None, topology: Topology, planned: Sequence[PlannedStage]
) -> Sequence[str]:
    """The GPUs whose endpoints write event logs."""
    if requested is None:
        return ()
    for stage in planned:
        if not stage.transport.event_logs:
            raise UserError(
                f"--event-log: endpoints of the transport {stage.transport.name} write no event "
                "logs; leave the option out"
            )
    known = [gpu.name for gpu in topology.gpus]
    if requested == "all":
        return known
    chosen = [name.strip() for name in requested.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise UserError(
                f"--event-log: there is no GPU {name!r}; they are called {known[0]} to {known[-1]}"
            )
    return chosen


def default_capture(topology: Topology) -> str:
    """The switch ports of the first GPU, and the uplinks of these switches."""
    first = topology.gpus[0].name
    chosen = list(map(str, switch_ends(topology, first)))
    if not chosen:
        return first
    for switch in dict.fromkeys(end.node for end in switch_ends(topology, first)):
        chosen += [
            str(ours)
            for _, ours, theirs in topology.neighbours(switch)
            if topology.node(theirs.node).is_switch
        ]
    return ",".join(chosen)
