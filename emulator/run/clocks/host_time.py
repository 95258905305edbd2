"""A run on the host's clock: dilated, paced by the kernel's shapers, judged for what it kept up."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from emulator.asic import telemetry
from emulator.asic.pfc.pause_counters import PauseCounters
from emulator.asic.switch_counters import AsicCounters
from emulator.asic.telemetry import Telemetry
from emulator.capture.fabric_capture import Capture, describe
from emulator.cleanup import uninterrupted
from emulator.control_plane.charged_time import Broken
from emulator.control_plane.computed_routing import ComputedRouting
from emulator.control_plane.lab_routing import Routing
from emulator.endpoint.agent_pool import AgentPool
from emulator.endpoint.agent_spec import AgentSpec
from emulator.endpoint.clock import Clock
from emulator.kernel.port_counters import PortCounters
from emulator.lab import Lab
from emulator.lab_record import Clock as ClockKind
from emulator.measures.port_record import failures
from emulator.measures.queue_depths import sampling_troubles
from emulator.results import Result, RunFolder
from emulator.run import fidelity
from emulator.run.attempt import Attempt
from emulator.run.clocks.calibration import CalibrationWork, calibrate
from emulator.run.clocks.row_evidence import row_evidence
from emulator.run.fidelity import Evidence
from emulator.run.losses import cable_rtt_ns, nic_losses, port_losses
from emulator.run.measurement import HostLoad
from emulator.run.observer import Observer
from emulator.run.plan.run_plan import RunPlan
from emulator.run.time_base import Repeat
from emulator.scenario import Outcome


class HostTime:
    """The host's clock for the run of ``plan``."""

    name: ClockKind = "host"

    def __init__(
        self,
        plan: RunPlan,
        result: Result,
        folder: RunFolder,
        observer: Observer,
        environment: dict[str, object],
    ) -> None:
        self._plan, self._result, self._folder = plan, result, folder
        self._observer, self._environment = observer, environment
        self.clock = Clock.start(1)
        self.host: HostLoad | None = HostLoad()
        self.telemetry: Telemetry | None = None
        self.late_fault_ns = 0
        self._evidence: list[Evidence] = []

    def worker_of(self) -> None:
        """Nothing: each GPU has a process of its own."""

    def choose_dilation(self) -> float:
        """Return the dilation that the user gave, or that a probe of this machine yields."""
        plan = self._plan
        if plan.request.dilation is not None:
            self._environment["calibration"] = None
            return plan.request.dilation
        calibration = calibrate(
            plan.topology,
            [
                CalibrationWork(stage.transport, stage.switch, stage.loads)
                for stage in plan.stages
                if stage.seed == plan.request.seed
            ],
            seed=plan.request.seed,
            logged=bool(plan.logged),
            progress=lambda what: self._observer.progress(what, None),
        )
        self._environment["calibration"] = calibration.as_dict()
        self._folder.event("calibrated", **calibration.as_dict())
        return calibration.dilation

    def begin(self, lab: Lab, stack: ExitStack) -> None:
        """Start the clock, telemetry and captures of ``lab``, which end with ``stack``."""
        plan = self._plan
        self.clock = Clock.start(lab.dilation)
        sniffers = Capture(
            plan.taps,
            namespace=lambda node: lab.netns(node).name,
            folder=self._folder.path,
            snaplen=plan.request.snaplen,
            comment=describe(plan.lab, lab.dilation),
        )
        if lab.asic is not None:
            path = self._folder.path / telemetry.FILE
            self.telemetry = Telemetry(lab.asic, path, self.clock)
            with uninterrupted():  # a thread that is half started could not be ended
                self.telemetry.start()
                stack.callback(self._end_telemetry, self.telemetry)
        self._observer.progress("starting captures", None)
        stack.callback(self._end_capture, sniffers)
        sniffers.start()

    def flush(self) -> None:
        """Nothing: sniffers and telemetry write as they go."""

    @property
    def cabling(self) -> None:
        """None: the kernel holds the frames of all cables."""

    def faulted(self, before: Broken, after: Broken, repeat: Repeat) -> None:
        """Do nothing: daemons detect the fault themselves, in the machine's time."""

    def await_routes(self, routing: Routing | ComputedRouting) -> None:
        """Return when the routes are those of the whole fabric again."""
        routing.await_convergence()

    def rest(self) -> None:
        """Frames arrive in their own time."""

    def begin_row(self) -> None:
        """A row follows from the one before where the host keeps the time."""

    def row_digest(self) -> str | None:
        """Return None: no run by the host's clock can be repeated exactly."""
        return None

    def digest(self) -> str | None:
        """None: no run on the host's clock is like another."""
        return None

    def pool(self, specs: Sequence[AgentSpec]) -> AgentPool:
        """The endpoints: a process for each GPU."""
        return AgentPool(self._plan.lab, specs, self.clock)

    def unrouted(self, lab: Lab) -> int:
        """Packets that switches had no way for, those of routing daemons too."""
        return lab.unrouted()

    def forget_tagged_frames(self) -> None:
        """Nothing: frames are tagged by the virtual clock only."""

    def frame_times(self, row: int) -> Mapping[str, object]:
        """Return nothing: frames are tagged by the virtual clock only."""
        return {}

    def counters(self, lab: Lab) -> Callable[[], Mapping[str, PortCounters]]:
        """Return what reads the counters of all ports of ``lab``."""
        return lab.counters

    def switches_changed(self, seed: int) -> None:
        """Do nothing: the kernel's queues were configured with the switches."""

    @property
    def schedule(self) -> Callable[[int, Callable[[], None]], None] | None:
        """None: a thread waits for what has to happen at a time."""
        return None

    def row_verdict(self, attempt: Attempt, outcome: Outcome) -> Mapping[str, object]:
        """Return what the machine did to a row."""
        evidence = row_evidence(attempt, outcome)
        self._evidence.append(evidence)
        self.late_fault_ns = max(self.late_fault_ns, attempt.late_fault_ns)
        return fidelity.judge(evidence, base_rtt_ns=cable_rtt_ns(self._plan.topology))

    def verdict(
        self,
        kernel: Mapping[str, PortCounters],
        asic: Mapping[str, AsicCounters],
        pauses: Mapping[str, PauseCounters],
    ) -> dict[str, object]:
        """Return what the machine did to the whole run."""
        assert self.host is not None
        pulled = {
            str(end)
            for moment in self._plan.every_moment
            for link in moment.condition.dead
            for end in link.ends
        }
        of_rows: Counter[str] = Counter()
        overtaken: Counter[str] = Counter()
        for evidence in self._evidence:
            of_rows.update(evidence.foreign_drops)
            overtaken.update(evidence.overtaken)
        evidence = Evidence(
            machine=self.host.machine(),
            foreign_drops={
                **of_rows,
                **nic_losses(self._result.endpoints),
                # what is lost at a cable without carrier is the fault's
                **port_losses(
                    {name: port for name, port in kernel.items() if name not in pulled},
                    modelled=asic.keys() - pulled,
                ),
                **failures(asic),
            },
            overtaken=overtaken,
            late_fault_ns=self.late_fault_ns,
            late_pause_ns=max((port.late_ns for port in pauses.values()), default=0),
        )
        verdict = fidelity.judge(evidence, base_rtt_ns=cable_rtt_ns(self._plan.topology))
        return verdict | {"limited_rows": self._limited_rows()}

    def _limited_rows(self) -> list[int]:
        """Return the numbers of the rows, from 1 on, that this machine has limited."""
        verdicts = [row.get("fidelity") for row in self._result.rows]
        return [
            number
            for number, verdict in enumerate(verdicts, start=1)
            if isinstance(verdict, Mapping) and verdict["verdict"] != "ok"
        ]

    def _end_telemetry(self, sampler: Telemetry) -> None:
        sampler.stop()
        self._result.warnings += sampling_troubles(sampler, self.clock.now())
        self._folder.event("telemetry", file=sampler.path.name, samples=sampler.samples)

    def _end_capture(self, sniffers: Capture) -> None:
        record = sniffers.stop()
        self._result.errors += record.errors
        self._result.warnings += record.warnings
        self._folder.event(
            "captured",
            file=record.path.name if record.path else None,
            ports=[dataclasses.asdict(count) for count in record.ports],
        )
