"""One trial on a fabric that stands: undisturbed, and then with the faults of the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from emulator.dataplane.switch.port_faults import Faults
from emulator.run.faults import disturbance
from emulator.run.faults.condition import Condition
from emulator.run.faults.expectation import FaultExpectation, time_limit_s
from emulator.run.faults.fault_injector import FaultInjector
from emulator.run.faults.fault_timeline import FaultPlayer, Notify, link_changes
from emulator.run.faults.grammar import Moment
from emulator.run.faults.reach import Reach
from emulator.run.faults.unfinished import unfinished
from emulator.run.measurement import Measured, RunContext, measure
from emulator.run.measures.message_times import Recorder
from emulator.run.observation import PortObserver
from emulator.run.plan.run_plan import PlannedStage, RunPlan
from emulator.run.plan.trial_load import TrialLoad
from emulator.run.virtual_time import VirtualTime
from emulator.scenario import Outcome, Trial
from emulator.sim.endpoint.endpoint_spec import EndpointError
from emulator.workers.division import Division
from emulator.workers.virtual_pool import VirtualPool
from topologies.analysis.round_trip import base_rtt_ns


@dataclass
class Attempt:
    """``trial`` of ``stage``, which is ``load`` of work; ``moments`` are those of its faults.

    ``warnings`` are what came of it besides, also if it fails.
    """

    plan: RunPlan
    stage: PlannedStage
    trial: Trial
    load: TrialLoad
    moments: Sequence[Moment]
    injector: FaultInjector
    pool: VirtualPool
    ports: PortObserver
    time: VirtualTime
    notify: Notify
    progress: Callable[[], None]
    division: Division
    folder: Path
    warnings: list[str] = field(default_factory=list)
    _expected: FaultExpectation | None = None
    _faulted_ns: int = 0  # when the last of them strikes
    _undisturbed: Outcome | None = None
    _lost: Mapping[str, int] = field(default_factory=dict)
    _messages: Recorder | None = None

    def run(self) -> tuple[Measured, Mapping[str, object]]:
        """Return the measurements, and the row's entries on the user's faults.

        With such faults an iteration without them comes first.  Raises
        :class:`~emulator.sim.endpoint.endpoint_spec.EndpointError` if a rank fails.
        """
        if not self.moments:
            return self._measure(self.trial, self.load.ideal_ns, self._player()), {}
        topology, wire = self.stage.topology, self.stage.transport.wire
        limits = self._limits()
        bound_ns = limits.ideal_ns
        expected = limits if self.division.processes.reports else None  # the first speaks for all
        once = dataclasses.replace(self.trial, iterations=1)
        undisturbed = self._measure(once, self.load.ideal_ns, self._player())
        self._expected, self._faulted_ns = expected, self.moments[-1].at_ns
        self._undisturbed = undisturbed.outcome
        before, underway = self._uncounted(), self._missing()
        player = self._player(self.moments)
        warm = dataclasses.replace(self.trial, warmups=0)
        try:
            measured = self._measure(warm, bound_ns or self.load.ideal_ns, player)
        except EndpointError:
            self._lost = disturbance.lost_packets(
                self.ports.end(), _less(self._uncounted(), before)
            )
            raise
        lost, missing = _less(self._uncounted(), before), self._missing() - underway
        if expected is None:
            return measured, {}
        return measured, disturbance.reported(
            expected,
            topology,
            measured.outcome,
            undisturbed.outcome,
            player.applied,
            lost=lost,
            missing=missing,
            retransmitted=self.stage.transport.retransmitted,
            base_rtt_ns=base_rtt_ns(topology, wire.payload_mtu + wire.around_bytes),
            pxn=self.plan.pxn,
        )

    def _limits(self) -> FaultExpectation:
        """Return what the user's faults leave possible."""
        _, schedules = self.load.schedules or self._context.compiled(self.trial)
        return FaultExpectation.of(
            self.moments,
            self.stage.topology,
            schedules,
            self.stage.transport.wire,
            link_changes(self.trial.faults, self.stage.topology),
        )

    def sentence(self, error: EndpointError) -> str:
        """Return the sentence on ``error``, which begins with who is cut off, if that may be why.

        Where transports are compared, the one that it befell stands in front.
        """
        sentence = str(error) if self._expected is None else self._expected.sentence(error)
        return f"{self.stage.stage.label}: {sentence}" if self.plan.compares else sentence

    def unfinished(self, error: EndpointError) -> Mapping[str, object] | None:
        """Return what had been done when it failed, by the ranks that still answered.

        None: nothing had begun.  All processes call it.  If one of them has died, none asks the
        others.
        """
        if self._messages is None:
            return None
        reported = {
            "transport": self.stage.stage.label,
            "seed": self.stage.seed,
            **unfinished(self.trial, error.results, self._messages, together=not error.died),
        }
        if self._expected is None or self._undisturbed is None:
            return reported
        return {
            **reported,
            "cut_off_gpus": self._expected.ever_cut_off,
            "cut_off_pairs": disturbance.reported_pairs(self._expected.ever_cut_pairs),
            "faults": list(dict.fromkeys(moment.clause for moment in self._expected.moments)),
            "lost_packets": self._lost,
            "undisturbed_us": self._undisturbed.mean_ns / 1000,
        }

    def _begun(self, messages: Recorder) -> None:
        self._messages = messages

    def _uncounted(self) -> dict[str, int]:
        """Packets lost so far that no switch port counts."""
        lost = {"in_queue": self.injector.flushed, "no_route": self.time.unrouted()}
        nics = [layers["nic"] for layers in self.pool.counters().values()]
        lost["no_carrier"] = sum(nic["link_down"] for nic in nics)
        if any(moment.condition.dead_gpus for moment in self.moments):
            lost["gpu_dead"] = sum(nic["gpu_dead"] for nic in nics)
        in_flight = self.injector.lost_in_flight
        return lost if in_flight is None else {**lost, "in_flight": in_flight}

    def _missing(self) -> int:
        """Frames that NICs have sent so far and none received."""
        nics = [layers["nic"] for layers in self.pool.settled().values()]
        return sum(nic["frames_out"] - nic["frames_in"] - nic["socket_drops"] for nic in nics)

    def _player(self, moments: Sequence[Moment] = ()) -> FaultPlayer:
        return FaultPlayer(
            self.trial.faults,
            self.plan.topology,
            inject=self._inject,
            schedule=self.time.schedule,
            notify=self.notify,
            moments=moments,
            apply_fault=self._apply_fault,
            pace_scale_up=self.injector.pace_scale_up,
        )

    def _inject(self, port: str, faults: Faults) -> None:
        before, was = self.injector.broken, self.injector.injected(port)
        self.injector.inject(port, faults)
        self.time.faulted(
            before,
            self.injector.broken,
            lambda again: self.injector.inject(port, faults if again else was),
        )

    def _apply_fault(self, requested: Condition) -> None:
        before, was = self.injector.broken, self.injector.condition
        self.injector.apply(requested)
        self.time.faulted(
            before,
            self.injector.broken,
            lambda again: self.injector.pretend(requested if again else was),
        )

    def _lost_ranks(self) -> list[int]:
        """Return the ranks that are dead, or cut off, in the present condition of the fabric."""
        return self._cut(self.injector.condition)

    def _cut(self, condition: Condition) -> list[int]:
        gone = self._reach.cut(condition).gpus
        return [rank for rank, gpu in enumerate(self.stage.topology.gpus) if gpu.name in gone]

    @cached_property
    def _reach(self) -> Reach:
        return Reach(self.stage.topology)

    @cached_property
    def _context(self) -> RunContext:
        return RunContext(
            pool=self.pool,
            ports=self.ports,
            wire=self.stage.transport.wire,
            pxn=self.plan.pxn,
            start=self.plan.request.start,
            division=self.division,
            cut=self._cut,
            progress=self.progress,
            begun=self._begun,
            weighed=self.load.schedules,
            messages=self.load.messages,
            folder=self.folder,
        )

    def _measure(self, trial: Trial, ideal_ns: float, faults: FaultPlayer) -> Measured:
        self.pool.interrupt(self._lost_ranks if trial.recover is not None else None)
        try:
            return measure(
                trial,
                self._context,
                faults,
                ideal_ns=ideal_ns,
                timeout_s=time_limit_s(ideal_ns, self._faulted_ns),
            )
        finally:
            if faults.missed:
                by = f"{self.stage.stage.label}: " if self.plan.compares else ""
                self.warnings.append(
                    f"{by}{faults.missed} faults of {trial.collective} {trial.size_bytes} B were "
                    "never due: the iterations ended before; take a larger size or earlier faults"
                )


def _less(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in after.items()}
