"""One run of a scenario, from its validation to its run folder.

Everything is validated before the first kernel object exists. Whatever happens afterwards, an
interrupt included, everything that was made is removed and what was measured is written.

::

    plan = prepare(request)            # emulator.run.plan.run_plan: touches no kernel
    result = execute(plan, observer)   # builds, runs, removes, writes

The fabric is built once.  Stage by stage (:mod:`emulator.run.plan.stages`) its switches are
configured and, where the transport changes, its endpoints are made anew.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from emulator import plugins, run_files
from emulator.dataplane import lab_record
from emulator.dataplane.cleanup import kept, uninterrupted
from emulator.dataplane.control_plane import routing_tables
from emulator.dataplane.control_plane.computed_routing import ComputedRouting
from emulator.dataplane.control_plane.lab_routing import Routing
from emulator.dataplane.dataplane import Dataplane
from emulator.dataplane.kernel.keeper import VARIABLE as KEPT
from emulator.dataplane.kinds import KINDS
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch import switch_fitting as fitting
from emulator.errors import UserError
from emulator.nccl_tests.json_report import REPORT_FILE, NcclReport
from emulator.run.attempt import Attempt
from emulator.run.endpoint_specs import endpoint_specs
from emulator.run.faults.fault_injector import FaultInjector, check_rates
from emulator.run.measurement import Measured
from emulator.run.measures.ideal import violation
from emulator.run.observation import PortObserver
from emulator.run.plan.run_plan import (
    PlannedStage,
    RunPlan,
    RunRequest,
    default_capture,
    partition_of,
    prepare,
)
from emulator.run.plan.trial_load import TrialLoad
from emulator.run.report import written_rows
from emulator.run.report.spread import SeedRows
from emulator.run.report.timeline import Surroundings, timeline
from emulator.run.results import PartFolder, Result, RunFolder, gather_files
from emulator.run.run_secret import run_secret
from emulator.run.run_start import UNFINISHED, Observer, blank_result, check_digest, environment_of
from emulator.run.virtual_time import VirtualTime
from emulator.run_files import EVENT_LOGS
from emulator.scenario import Outcome, Trial
from emulator.sim.endpoint.counting import add
from emulator.sim.endpoint.endpoint_spec import EndpointError
from emulator.sim.endpoint.nic import host_staging, nic_profile
from emulator.transports.one_time_keys import KEY_FILE
from emulator.workers.division import ALONE, Division, Processes
from emulator.workers.interrupts import Interrupted, interruptible
from emulator.workers.virtual_pool import VirtualPool
from topologies.exports import mermaid as export

__all__ = ["Observer", "RunPlan", "RunRequest", "default_capture", "execute", "prepare"]

#: Folder of the endpoints' event logs in a run folder.


def execute(
    plan: RunPlan, observer: Observer, processes: Processes = ALONE
) -> tuple[Result, RunFolder]:
    """Run ``plan``.  Failures of the run stand in ``Result.errors``; :class:`Interrupted` passes.

    All ``processes`` run it, each its own part of the fabric.

    Whatever happens, the run folder is complete when this returns or raises, and no kernel object
    of the lab is left.  If this process is killed, a keeper removes those of a rank, or of a trial.
    """
    has_keeper = processes.count > 1 or KEPT in os.environ
    with kept(plan.lab) if has_keeper else nullcontext():
        return _execute(plan, observer, processes)


def _execute(plan: RunPlan, observer: Observer, processes: Processes) -> tuple[Result, RunFolder]:
    request = plan.request
    result = blank_result(plan)
    if processes.reports:
        folder = RunFolder.create(request.scenario.name, request.output)
        processes.holds(folder=str(folder.path.absolute()))
    else:
        folder = PartFolder(plan.lab)
    with interruptible():
        run = _Run(plan, result, folder, observer, processes)
        try:
            run.work()
        except Interrupted as stop:
            stop.explain(processes.interrupted_by())
            result.errors.append(str(stop))
            raise
        except EndpointError as error:
            stated = run.attempt.sentence(error) if run.attempt else str(error)
            result.errors.append(plugins.sentence_on(error) or stated)
            run.salvage(error)
        except UserError as error:
            result.errors.append(str(error))
        except BrokenPipeError:
            result.errors.append("whoever read the table went away before the run was done")
            raise UserError(f"{result.errors[-1]}; see {folder.path}/result.json") from None
        except Exception as error:
            if (by_plugin := plugins.sentence_on(error)) is not None:
                result.errors.append(by_plugin)
                return result, folder
            # Ours to mend, so the traceback goes on; what was measured is kept all the same.
            result.errors.append(f"internal error: {type(error).__name__}: {error}")
            raise
        finally:
            with uninterrupted():
                run.conclude()
    return result, folder


@dataclass(frozen=True)
class _Built:
    """The fabric of a run while it stands: ``injector`` breaks it, and ``ports`` are read.

    Its ``time`` is virtual.
    """

    lab: Dataplane
    time: VirtualTime
    injector: FaultInjector
    ports: PortObserver


class _Run:
    def __init__(
        self,
        plan: RunPlan,
        result: Result,
        folder: RunFolder,
        observer: Observer,
        processes: Processes,
    ) -> None:
        self.plan, self.result, self.folder, self.observer = plan, result, folder, observer
        self._processes = processes
        partition = partition_of(plan)
        self.environment: dict[str, object] = {
            **environment_of(plan),
            "lab": plan.lab,
            "seed": plan.request.seed,
            "workers": partition.workers,
        }
        self._worker_of = partition.worker_of
        gpus = [gpu.name for gpu in plan.topology.gpus]
        self._division = Division.by_worker(processes, self._worker_of, gpus)
        self.attempt: Attempt | None = None
        self._seeds = SeedRows(plan.request.seeds)
        warmups = {trial.warmups for trial in plan.trials}
        self._nccl = NcclReport(
            plan.topology, sys.argv, warmups.pop() if len(warmups) == 1 else None
        )
        self._endpoints: dict[str, dict[str, int]] = {}
        self._done = 0.0
        self._pools = 0  # of endpoints that were made
        self._domains: list[dict[str, object]] = []  # secure ones, by pool

    def work(self) -> None:
        self._save()  # that there is something to complete, whoever is killed
        self.folder.event("begin", scenario=self.result.scenario, lab=self.plan.lab)
        self.folder.write("fabric.json", export.as_data(self.plan.topology))
        self.result.dilation = self.environment["dilation"] = 1.0
        for moment in self.plan.every_moment:
            check_rates(moment.condition, 1)
        self.folder.write("environment.json", self.environment)
        self._save()
        self.observer.began(self.plan, self.result)
        with ExitStack() as stack, self._processes.warned():
            built = self._build(stack)
            for stages in self._by_endpoints():
                with ExitStack() as closing:
                    pool = self._make_endpoints(built, closing, stages)
                    for number in stages:
                        self._run_stage(number, built, pool)
                    self._take_endpoints(pool.close())
            if self.plan.logged:
                gather_files(self._processes, self.folder.path / EVENT_LOGS)
            self._count(built)

    def _by_endpoints(self) -> list[list[int]]:
        """The numbers of the stages, those together that can use the same endpoints."""
        groups: list[list[int]] = []
        stages = self.plan.stages
        for number, stage in enumerate(stages):
            before = stages[groups[-1][-1]] if groups else stage
            same = groups and before.seed == stage.seed and before.transport == stage.transport
            if same and before.stage.named == stage.stage.named and not stage.stage.fresh:
                groups[-1].append(number)
            else:
                groups.append([number])
        return groups

    def _event_logs(self, stage: int) -> Mapping[str, Path]:
        """Return where the endpoints that are to do so write what they do, from ``stage`` on."""
        if not self.plan.logged:
            return {}
        self.environment["event_logs"] = list(self.plan.logged)
        logs = self.folder.path / EVENT_LOGS
        logs.mkdir(exist_ok=True)
        later = f"-{stage + 1}" if stage else ""
        return {gpu: logs / f"{gpu}{later}.sqlog" for gpu in self.plan.logged}

    def _build(self, stack: ExitStack) -> _Built:
        plan = self.plan
        lab = stack.enter_context(self._make_lab())
        if lab.directory is not None:  # other processes know of it
            lab_record.set_run_folder(lab.name, self.folder.path)
        self.environment["cable_delay"] = lab.cable_delay
        if lab.routing is not None:
            stack.push(partial(self._end_routing, lab.routing))
            self.environment["control_plane"] = lab.routing.facts()
        self.result.warnings += dict.fromkeys(
            one for trial in plan.trials for one in trial.warnings
        )
        for stage in plan.stages:
            if stage.switch is not None:
                reported = fitting.fit(stage.switch, plan.topology, 1, clock="virtual").warnings
                self.result.warnings += [one for one in reported if one not in self.result.warnings]
        self.folder.event("built", nodes=len(plan.topology.nodes), links=len(plan.topology.links))
        time = VirtualTime(
            plan, self.result, self.folder, self.environment, self._processes, lab, stack
        )
        self.folder.write("environment.json", self.environment)
        queues = time.telemetry if self._processes.reports else None
        ports = PortObserver(lab, queues, time.counters, time.forget_tagged_frames)
        return _Built(lab, time, FaultInjector(lab, time.cabling), ports)

    def _make_lab(self) -> Dataplane:
        plan, observer = self.plan, self.observer
        settings = FabricSettings(
            spec=plan.spec,
            seed=plan.request.seed,
            clock="virtual",
            switch=plan.stages[0].switch,
            worker_of=self._worker_of,
            worker=None if self._processes.count == 1 else self._processes.number,
        )
        return KINDS[plan.request.fabric].build(
            plan.lab,
            plan.topology,
            settings,
            lambda done, total, what: observer.progress(f"building {what}", None),
        )

    def _make_endpoints(
        self, built: _Built, closing: ExitStack, stages: Sequence[int]
    ) -> VirtualPool:
        """The endpoints for ``stages``, which share a transport; they end with ``closing``."""
        plan, observer = self.plan, self.observer
        first = plan.stages[stages[0]]
        transport = first.transport
        if transport.keys is not None:
            secret = run_secret(plan, self._pools)
            self._domains.append(transport.keys.domain(secret))
            self.folder.write(KEY_FILE, self._domains)
            transport = transport.keyed(secret)
        self._pools += 1
        memories = [load.memory_octets for number in stages for load in plan.stages[number].loads]
        room = max(trial.room_octets for number in stages for trial in plan.stages[number].trials)
        specs = endpoint_specs(
            first.topology,
            transport,
            nic_delays=built.lab.cable_delay == "nic",
            paced=False,
            seed=first.seed,
            memory_octets=max(max(memory) for memory in memories) + room or 1,
            event_logs=self._event_logs(stages[0]),
            began=built.time.clock.began,
            pausing=any(
                (switch := plan.stages[number].switch) is not None and switch.pausing is not None
                for number in stages
            ),
            nic=nic_profile.times_of(plan.request.nic),
            staging=host_staging.parse(plan.request.gpu_direct),
        )
        pool = closing.enter_context(built.time.pool(specs, shared=room > 0))
        pool.start(
            lambda done, total: observer.progress(f"starting endpoints ({done}/{total})", None)
        )
        self.folder.event("started", agents=pool.pids, transport=first.stage.label)
        return pool

    def _end_routing(
        self, routing: Routing | ComputedRouting, failed: type[BaseException] | None, *_: object
    ) -> None:
        routing.save(self.folder.path)
        if isinstance(routing, Routing):
            routing_tables.save(routing, self.folder.path, ended=failed is None)
        self.folder.event("routed", neighbours_lost=routing.neighbours_lost())

    def _run_stage(self, number: int, built: _Built, pool: VirtualPool) -> None:
        """Configure the switches, and run the stage's trials."""
        plan, stage, ports = self.plan, self.plan.stages[number], built.ports
        time = built.time
        before = plan.stages[max(0, number - 1)]
        same = (stage.switch, stage.seed) == (before.switch, before.seed)
        if not same:
            time.rest()
            if stage.switch is not None and (asic := built.lab.asic) is not None:
                ports.restart()
                asic.apply(stage.switch, stage.seed)
            time.switches_changed(stage.seed)
        self.folder.event(
            "stage", number=number, transport=stage.stage.label, switch=stage.stage.switch
        )
        largest = max(plan.trials, key=lambda trial: trial.size_bytes)
        weights = [
            _weight(trial, load) for trial, load in zip(plan.trials, plan.loads, strict=True)
        ]
        for place, trial, load in zip(stage.stage.trials, stage.trials, stage.loads, strict=True):
            what = (
                f"{trial.collective} {trial.size_bytes} B" if trial.size_bytes else trial.collective
            )
            step = _weight(trial, load) / sum(weights) / (trial.warmups + trial.iterations)
            self.observer.progress(what, self._done)
            self.attempt = attempt = Attempt(
                plan=plan,
                stage=stage,
                trial=trial,
                load=load,
                moments=plan.moments_of(trial),
                injector=built.injector,
                pool=pool,
                ports=ports,
                time=time,
                notify=self.folder.event,
                progress=partial(self._settle, built, trial, partial(self._advance, what, step)),
                division=self._division,
                folder=self.folder.path,
            )
            ports.restart()
            time.begin_row(pool)
            try:
                measured, reported = attempt.run()
            finally:
                self.result.warnings += attempt.warnings
            self.attempt = None
            reported = {
                **reported,
                "fidelity": {"verdict": "exact", "reasons": []},
                "digest": time.row_digest(),
            }
            timed = time.frame_times(len(self.result.rows) + 1)
            own = partial(written_rows.measured_row, plan, stage, trial, measured.outcome)
            row = self.result.add_row(
                {
                    **self._processes.from_first("row", own),
                    "relayed_messages": load.relayed,
                    **timed,
                    **reported,
                }
            )
            if self._processes.reports:
                self._tell(stage, row, measured.outcome)
            beaten = violation(measured.outcome.times_ns, measured.outcome.ideal_ns)
            if beaten is not None:
                self.result.errors.append(f"row {len(self.result.rows)}: {beaten}")
            self._save()
            time.flush()
            self._report(stage, place, row)
            if trial is largest:
                self._write_timeline(trial, measured)

    def _write_timeline(self, trial: Trial, measured: Measured) -> None:
        """Write the timeline of the latest row, to which all processes bring their GPUs' part."""
        names = [gpu.name for gpu in self.plan.topology.gpus]
        around = Surroundings(
            collective=trial.collective,
            queues=measured.outcome.queues,
            faults=measured.faults,
            row=len(self.result.rows),
        )
        trace = timeline(names, measured.schedules, measured.results, around)
        if trace is not None:
            self.folder.write("timeline.json", trace)

    def _tell(self, stage: PlannedStage, row: Mapping[str, object], outcome: Outcome) -> None:
        """Write the events of the latest ``row``."""
        number, label = len(self.result.rows), stage.stage.label
        self.folder.event("row", **row)
        name = f"{label}, seed {stage.seed}" if len(self.plan.stages) > 1 else ""
        self._nccl.add(row, outcome.times_ns, name)
        self.folder.event(run_files.PORTS, **written_rows.ports_of(number, outcome))
        self.folder.event(
            run_files.MESSAGES, **written_rows.messages_of(number, outcome, self.plan.topology)
        )
        self.folder.event(run_files.ENDPOINTS, **written_rows.endpoints_of(number, label, outcome))

    def _report(self, stage: PlannedStage, place: int, row: Mapping[str, object]) -> None:
        """Show a row, or when it is there with all seeds what stands for all of them."""
        shown = self._seeds.add((stage.stage.label, place), row)
        if shown is not None and shown is not row:
            self.result.summary.append(dict(shown))
            self._save()
        if shown is not None:
            self.observer.row(shown)

    def _settle(self, built: _Built, trial: Trial, progress: Callable[[], None]) -> None:
        """After an iteration: what its faults did to learned routes is over before the next."""
        if trial.faults or self.plan.moments_of(trial):
            built.time.await_routes()
        progress()

    def _advance(self, what: str, step: float) -> None:
        self._done += step
        self.observer.progress(what, min(1.0, self._done))

    def _count(self, built: _Built) -> None:
        """Read all counters and judge; called while the fabric still stands."""
        self.observer.progress("reading counters", 1.0)
        ports = built.ports
        kernel, asic, pauses = ports.kernel(), ports.totals(), ports.pauses()
        links = ports.links()
        self.result.ports = {
            name: port.as_dict()
            | ({"asic": asic[name].as_dict()} if name in asic else {})
            | ({"pfc": pauses[name].as_dict()} if name in pauses else {})
            | ({"link": links[name].as_dict()} if name in links else {})
            for name, port in kernel.items()
        }
        self.result.fidelity = built.time.verdict()
        self.result.digest = built.time.digest()
        if not built.time.fabric.alone:
            self.environment["windows"] = built.time.fabric.shared_work()
            self.folder.write("environment.json", self.environment)
        if self.plan.request.digest_parts:
            built.time.write_parts()
        check_digest(self.plan, self.result)

    def _take_endpoints(self, counters: Mapping[int, Mapping[str, Mapping[str, int]]]) -> None:
        """Add what the endpoints of some stages counted to what those of earlier stages did."""
        gpus = self.plan.topology.gpus
        for rank, layers in counters.items():
            total = self._endpoints.setdefault(gpus[rank].name, {})
            for layer, values in layers.items():
                add(total, {f"{layer}.{name}": value for name, value in values.items()})
        self.result.endpoints = self._endpoints

    def salvage(self, error: EndpointError) -> None:
        """Keep what the ranks that still answered had done and counted when one failed."""
        self._take_endpoints(error.counters)
        if self.attempt is not None:
            self.result.unfinished = self.attempt.unfinished(error)
        self.folder.event("failed", error=str(error), rank=error.rank, traceback=error.traceback)

    def _save(self) -> None:
        """Write what there is so far, should this process be killed before it can conclude."""
        content = self.result.as_dict()
        self.folder.write("result.json", content | {"errors": [*self.result.errors, UNFINISHED]})

    def conclude(self) -> None:
        """Write what there is.  The last thing of every run, whatever came before."""
        self.folder.write("result.json", self.result.as_dict())
        if (report := self._nccl.content(self.result.errors)) is not None:
            self.folder.write(REPORT_FILE, report)
        self.folder.event("end", errors=self.result.errors)
        self.folder.close()


def _weight(trial: Trial, load: TrialLoad) -> float:
    """A trial's share of the run's time: small ones are bound by latency."""
    return (load.ideal_ns + 20_000) * (trial.warmups + trial.iterations)
