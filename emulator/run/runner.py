"""One run of a scenario, from its validation to its run folder.

Everything is validated before the first kernel object exists, and whatever happens afterwards,
an interrupt included, everything that was made is removed and what was measured is written.

::

    plan = prepare(request)            # pure, but for reading the machine's state
    result = execute(plan, observer)   # builds, runs, removes, writes
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from emulator.cleanup import uninterrupted
from emulator.endpoint.clock import Clock
from emulator.endpoint.spawn import AgentError, AgentPool
from emulator.errors import UserError
from emulator.fabric.capabilities import Capabilities
from emulator.fabric.capture import SNAPLEN_HEADERS, Capture, Tap, describe, ports_of, select
from emulator.fabric.counters import PortCounters
from emulator.lab import Lab
from emulator.results import Result, RunFolder
from emulator.run import fidelity, preflight
from emulator.run.agents import agent_specs
from emulator.run.calibration import calibrate
from emulator.run.environment import describe_machine
from emulator.run.interrupts import Interrupted, interruptible
from emulator.run.load import Load
from emulator.run.measurement import HostLoad, Measured, measure
from emulator.run.timeline import timeline
from emulator.scenario import Scenario, Trial
from emulator.transports import TransportChoice, fit
from topologies import catalogue, export
from topologies.model import Role, Topology

#: Host seconds that an iteration may take beyond what its ideal time, dilated, would be.
TIMEOUT_S = 60.0
TIMEOUT_FACTOR = 20.0
#: No longer than poll(2) can wait, which counts milliseconds in 31 bits.
LONGEST_TIMEOUT_S = 2_000_000.0
#: What ``result.json`` has for an error until the run has ended.
UNFINISHED = "the run has not ended yet, or it was killed before it could say why"

#: Folder of the endpoints' event logs in a run folder.
EVENT_LOGS = "event-logs"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for.  ``dilation`` and ``capture`` None: the run decides."""

    scenario: Scenario
    parameters: Any
    topology: str | None = None
    transport: str = "uet"
    seed: int = 1
    dilation: float | None = None
    capture: str | None = None
    snaplen: int = SNAPLEN_HEADERS
    output: Path | None = None
    lab: str | None = None
    #: GPUs whose endpoints write event logs, by name and separated by commas, or "all"
    event_log: str | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A validated request: what will be built and run."""

    request: Request
    lab: str
    spec: str
    topology: Topology
    transport: TransportChoice
    trials: Sequence[Trial]
    loads: Sequence[Load]
    taps: Sequence[Tap]
    capabilities: Capabilities
    logged: Sequence[str] = ()


class Observer(Protocol):
    """Who watches a run: a terminal, or nobody."""

    def began(self, plan: Plan, result: Result) -> None:
        """The fabric is about to be built; the dilation is known."""

    def progress(self, what: str, share: float | None) -> None:
        """``share`` (0..1) of the whole run is done, None if there is no telling."""

    def row(self, row: Mapping[str, object]) -> None:
        """A trial is done."""


def prepare(request: Request) -> Plan:
    """Validate everything; raises UserError or TopologyError with one sentence."""
    wanted: str | Topology | None = request.topology
    if wanted is None:
        wanted = request.scenario.topology(request.parameters)
    if isinstance(wanted, Topology):
        topology, spec = wanted, wanted.name
    else:
        topology, spec = catalogue.load(wanted), wanted
    preflight.check_agents(len(topology.gpus))
    transport = fit(request.transport, topology, seed=request.seed)
    trials = request.scenario.schedules(request.parameters, topology, request.seed)
    selection = default_capture(topology) if request.capture is None else request.capture
    taps = select(selection, ports_of(topology))
    lab = preflight.lab_name(request.scenario.name) if request.lab is None else request.lab
    capabilities = preflight.check(lab, taps, trials, len(topology.gpus))
    loads = [Load.of(trial, topology, transport.wire) for trial in trials]
    for load in loads:
        preflight.check_memory(load.size_bytes, load.memory_octets)
    return Plan(
        request=request,
        lab=lab,
        spec=spec,
        topology=topology,
        transport=transport,
        trials=trials,
        loads=loads,
        taps=taps,
        capabilities=capabilities,
        logged=_logged(request.event_log, topology),
    )


def _logged(wanted: str | None, topology: Topology) -> Sequence[str]:
    """The GPUs whose endpoints write event logs."""
    if wanted is None:
        return ()
    known = [gpu.name for gpu in topology.gpus]
    if wanted == "all":
        return known
    chosen = [name.strip() for name in wanted.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise UserError(
                f"--event-log: there is no GPU {name!r}; they are called {known[0]} to {known[-1]}"
            )
    return chosen


def default_capture(topology: Topology) -> str:
    """The first rail switch's port to its first host, and its uplinks."""
    rail = next((node for node in topology.nodes if node.role is Role.RAIL), None)
    if rail is None:
        return topology.gpus[0].name
    chosen = [port.name for port in rail.ports if port.bridge is not None][:1]
    chosen += [port.name for port in rail.ports if port.bridge is None]
    return ",".join(f"{rail.name}:{port}" for port in chosen)


def execute(plan: Plan, observer: Observer) -> tuple[Result, RunFolder]:
    """Run ``plan``.  Failures of the run stand in ``Result.errors``; :class:`Interrupted` passes.

    Whatever happens, the run folder is complete when this returns or raises, and no kernel object
    of the lab is left.
    """
    request = plan.request
    result = Result(
        scenario=request.scenario.name,
        topology=plan.spec,
        transport=plan.transport.name,
        ranks=len(plan.topology.gpus),
        seed=request.seed,
        parameters=dataclasses.asdict(request.parameters),
    )
    folder = RunFolder.create(request.scenario.name, request.output)
    with interruptible():
        run = _Run(plan, result, folder, observer)
        try:
            run.work()
        except Interrupted as stop:
            result.errors.append(str(stop))
            raise
        except AgentError as error:
            result.errors.append(str(error))
            run.salvage(error)
        except UserError as error:
            result.errors.append(str(error))
        except BrokenPipeError:
            result.errors.append("whoever read the table went away before the run was done")
            raise UserError(f"{result.errors[-1]}; see {folder.path}/result.json") from None
        except Exception as error:
            # Ours to mend, so the traceback goes on; what was measured is kept all the same.
            result.errors.append(f"internal error: {type(error).__name__}: {error}")
            raise
        finally:
            with uninterrupted():
                run.conclude()
    return result, folder


class _Run:
    def __init__(self, plan: Plan, result: Result, folder: RunFolder, observer: Observer) -> None:
        self.plan, self.result, self.folder, self.observer = plan, result, folder, observer
        self.environment: dict[str, object] = {
            **describe_machine(),
            "capabilities": {
                name: {"present": found.present, "detail": found.detail}
                for name, found in plan.capabilities.items()
            },
            "lab": plan.lab,
            "seed": plan.request.seed,
        }
        self.host = HostLoad()
        self.pool: AgentPool | None = None
        self.lab: Lab | None = None
        self.clock = Clock.start(1)
        self._done = 0.0

    def work(self) -> None:
        self.folder.event("begin", scenario=self.result.scenario, lab=self.plan.lab)
        self.folder.write("fabric.json", export.as_data(self.plan.topology))
        for name, content in self.plan.transport.files.items():
            self.folder.write(name, content)
        self.result.dilation = self._choose_dilation()
        self.environment["dilation"] = self.result.dilation
        self.folder.write("environment.json", self.environment)
        self._save()
        self.observer.began(self.plan, self.result)
        with ExitStack() as stack:
            self._build(stack)
            self._measure()
            self._count()

    def _event_logs(self) -> Mapping[str, Path]:
        """Where the endpoints that are to do so write what they do."""
        if not self.plan.logged:
            return {}
        self.environment["event_logs"] = list(self.plan.logged)
        logs = self.folder.path / EVENT_LOGS
        logs.mkdir()
        return {gpu: logs / f"{gpu}.sqlog" for gpu in self.plan.logged}

    def _choose_dilation(self) -> float:
        plan = self.plan
        if plan.request.dilation is not None:
            self.environment["calibration"] = None
            return plan.request.dilation
        calibration = calibrate(
            plan.topology,
            plan.transport,
            plan.loads,
            seed=plan.request.seed,
            logged=bool(plan.logged),
            progress=lambda what: self.observer.progress(what, None),
        )
        self.environment["calibration"] = calibration.as_dict()
        self.folder.event("calibrated", **calibration.as_dict())
        return calibration.dilation

    def _build(self, stack: ExitStack) -> None:
        plan, observer = self.plan, self.observer
        dilation = self.result.dilation
        assert dilation is not None
        lab = stack.enter_context(
            Lab.create(
                plan.lab,
                plan.topology,
                dilation=dilation,
                seed=plan.request.seed,
                spec=plan.spec,
                progress=lambda done, total, what: observer.progress(f"building {what}", None),
            )
        )
        self.lab = lab
        self.environment["cable_delay"] = lab.cable_delay
        self.folder.write("environment.json", self.environment)
        self.folder.event("built", nodes=len(plan.topology.nodes), links=len(plan.topology.links))
        self.clock = Clock.start(dilation)
        specs = agent_specs(
            plan.topology,
            plan.transport,
            namespace=lambda node: str(lab.netns(node)),
            nic_delays=lab.cable_delay == "nic",
            seed=plan.request.seed,
            memory_octets=max(max(load.memory_octets) for load in plan.loads) or 1,
            event_logs=self._event_logs(),
            clock=self.clock,
        )
        sniffers = Capture(
            plan.taps,
            namespace=lambda node: lab.netns(node).name,
            folder=self.folder.path,
            snaplen=plan.request.snaplen,
            comment=describe(plan.lab, dilation),
        )
        observer.progress("starting captures", None)
        stack.callback(self._end_capture, sniffers)
        sniffers.start()
        self.pool = stack.enter_context(AgentPool(plan.lab, specs, self.clock))
        self.pool.start(
            lambda done, total: observer.progress(f"starting agents ({done}/{total})", None)
        )
        self.folder.event("started", agents=self.pool.pids)

    def _end_capture(self, sniffers: Capture) -> None:
        record = sniffers.stop()
        self.result.errors += record.errors
        self.result.warnings += record.warnings
        self.folder.event(
            "captured",
            file=record.path.name if record.path else None,
            ports=[dataclasses.asdict(count) for count in record.ports],
        )

    def _measure(self) -> None:
        plan = self.plan
        assert self.pool is not None
        # Small trials are bound by latency, so ideal time plus a constant tells the share best.
        weights = [
            (load.ideal_ns + 20_000) * (trial.warmups + trial.iterations)
            for trial, load in zip(plan.trials, plan.loads, strict=True)
        ]
        largest = max(plan.trials, key=lambda trial: trial.size_bytes)
        for trial, load, weight in zip(plan.trials, plan.loads, weights, strict=True):
            what = f"{trial.collective} {trial.size_bytes} B"
            step = weight / sum(weights) / (trial.warmups + trial.iterations)
            self.observer.progress(what, self._done)
            measured = measure(
                trial,
                self.pool,
                ideal_ns=load.ideal_ns,
                timeout_s=self._timeout(load),
                host=self.host,
                progress=lambda what=what, step=step: self._advance(what, step),  # type: ignore[misc]
            )
            row = self.result.add_row(self._row(trial, measured))
            self.folder.event("row", **row)
            self._save()
            self.observer.row(row)
            if trial is largest:
                names = [gpu.name for gpu in plan.topology.gpus]
                trace = timeline(names, measured.schedules, measured.results)
                self.folder.write("timeline.json", trace)

    def _advance(self, what: str, step: float) -> None:
        self._done += step
        self.observer.progress(what, min(1.0, self._done))

    def _timeout(self, load: Load) -> float:
        ideal_s = self.clock.host_seconds(math.ceil(load.ideal_ns))
        return min(LONGEST_TIMEOUT_S, TIMEOUT_S + TIMEOUT_FACTOR * ideal_s)

    def _row(self, trial: Trial, measured: Measured) -> dict[str, object]:
        outcome, transport, request = measured.outcome, self.plan.transport, self.plan.request
        scenario = request.scenario
        return {
            "transport": transport.name,
            "collective": trial.collective,
            "size_bytes": trial.size_bytes,
            "time_us": outcome.mean_ns / 1000,
            "time_min_us": min(outcome.times_ns) / 1000,
            "time_max_us": max(outcome.times_ns) / 1000,
            "iterations": len(outcome.times_ns),
            "ideal_us": outcome.ideal_ns / 1000,
            "efficiency": outcome.ideal_ns / outcome.mean_ns if outcome.mean_ns else None,
            "wrong": outcome.wrong,
            "data_packets": outcome.counters.get(transport.data_packets, 0),
            "retransmitted_packets": outcome.counters.get(transport.retransmitted, 0),
            **trial.facts,
            **scenario.measures(request.parameters, self.plan.topology, trial, outcome),
        }

    def _count(self) -> None:
        """Read all counters and judge; called while the fabric still stands."""
        assert self.pool is not None
        assert self.lab is not None
        self.observer.progress("reading counters", 1.0)
        self._take_endpoints(self.pool.counters())
        ports = self.lab.counters()
        self.result.ports = {name: port.as_dict() for name, port in ports.items()}
        self.result.fidelity = fidelity.judge(
            slip=self.host.slip(),
            base_rtt_ns=base_rtt_ns(self.plan.topology),
            busy=self.host.busy,
            foreign_drops={**self._nic_losses(), **port_losses(ports)},
        )

    def _take_endpoints(self, counters: Mapping[int, Mapping[str, Mapping[str, int]]]) -> None:
        gpus = self.plan.topology.gpus
        self.result.endpoints = {
            gpus[rank].name: {
                f"{layer}.{name}": value
                for layer, values in layers.items()
                for name, value in values.items()
            }
            for rank, layers in counters.items()
        }

    def _nic_losses(self) -> dict[str, int]:
        return {
            f"{node} {name}": counters.get(f"nic.{name}", 0)
            for node, counters in self.result.endpoints.items()
            for name in ("socket_drops", "send_refused", "oversized")
        }

    def salvage(self, error: AgentError) -> None:
        """Keep what the ranks that still answered had counted when one failed."""
        self._take_endpoints(error.counters)
        self.folder.event("failed", error=str(error), rank=error.rank, traceback=error.traceback)

    def _save(self) -> None:
        """Write what there is so far, should this process be killed before it can conclude."""
        content = self.result.as_dict()
        self.folder.write("result.json", content | {"errors": [*self.result.errors, UNFINISHED]})

    def conclude(self) -> None:
        """Write what there is.  The last thing of every run, whatever came before."""
        self.folder.write("result.json", self.result.as_dict())
        self.folder.event("end", errors=self.result.errors)
        self.folder.close()


def base_rtt_ns(topology: Topology) -> int:
    """There and back over cables on the shortest path between GPUs that the fabric joins."""
    delays = []
    for gpu in topology.gpus:
        paths = topology.paths(gpu.name)
        for peer in topology.gpus:
            if peer.name in paths and peer.server != gpu.server:
                delays.append(sum(link.delay_ns for link in paths[peer.name]))
    if not delays:  # one server: its scale-up network is all there is
        return 2 * topology.servers[0].scale_up.latency_ns
    return 2 * min(delays)


def port_losses(ports: Mapping[str, PortCounters]) -> dict[str, int]:
    """Drops that interfaces count and no modelled queue, by port."""
    return {
        f"{name} {what}": getattr(port, what)
        for name, port in ports.items()
        for what in ("rx_dropped", "tx_dropped")
    }
