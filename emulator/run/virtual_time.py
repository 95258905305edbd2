"""A run in virtual time: exact, whatever the machine has to do besides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from emulator.dataplane.control_plane.charged_time import NS_PER_S, Broken
from emulator.dataplane.control_plane.computed_routing import ComputedRouting
from emulator.dataplane.control_plane.held_routes import HeldRoutes
from emulator.dataplane.control_plane.lab_routing import Routing
from emulator.dataplane.dataplane import Dataplane
from emulator.dataplane.kernel.frames.kernel_drops import CAME_BACK, NO_ROUTE
from emulator.dataplane.kernel.port_counters import PortCounters
from emulator.dataplane.switch import telemetry
from emulator.dataplane.switch.telemetry import Telemetry
from emulator.run.measures import frame_latency
from emulator.run.measures.frame_latency import FrameTimes, LatencyFile
from emulator.run.plan.run_plan import RunPlan
from emulator.run.results import Result, RunFolder
from emulator.run_files import CAPTURE
from emulator.sim import line_telemetry
from emulator.sim.endpoint.endpoint_spec import EndpointSpec
from emulator.sim.event_queue import PS, EventQueue
from emulator.sim.frame_digest import PARTS_FILE, digest, digest_of_row, parts
from emulator.sim.frame_taps import boundary
from emulator.sim.line_faults import LineFaults
from emulator.sim.line_state import LineStates
from emulator.sim.line_telemetry import LineTelemetry, Sampling
from emulator.sim.port_capture import PortCapture
from emulator.sim.virtual_clock import EPOCH, VirtualClock
from emulator.workers.division import Processes
from emulator.workers.virtual_fabric import VirtualFabric
from emulator.workers.virtual_pool import VirtualPool
from emulator.workers.worker import WorkerPart
from topologies.model import CableEnd
from topologies.routing.static_routes import static_routes

#: The capture of a run folder, and what it states of itself: no name of a lab, so that the files of
#: equal runs are equal.
CAPTURE_COMMENT = (
    f"uetemu, virtual clock: times are fabric time, and {EPOCH:%Y-%m-%dT%H:%M:%SZ} is the time 0 "
    "of the run; outgoing frames have the time of their first octet, incoming ones of their last"
)


#: Has the kernel undo what was struck last (False), or strikes it again (True).
Repeat = Callable[[bool], None]


class VirtualTime:
    """The virtual clock for the run of ``plan`` on ``lab``.

    It joins all lines of the lab and watches them, until ``stack`` ends.
    """

    def __init__(
        self,
        plan: RunPlan,
        result: Result,
        folder: RunFolder,
        environment: dict[str, object],
        processes: Processes,
        lab: Dataplane,
        stack: ExitStack,
    ) -> None:
        self._plan, self._result, self._folder = plan, result, folder
        self._environment, self._processes = environment, processes
        self._events = EventQueue()
        self._routes: HeldRoutes | ComputedRouting | None = None
        self._faulted = 0
        self._capture: PortCapture | None = None
        self._pool: VirtualPool | None = None
        self._sampling: Sampling | None = None
        self.clock = VirtualClock(self._events)
        self.telemetry: Telemetry | None = None
        self._lines: LineTelemetry | None = None
        self._latencies: LatencyFile | None = None
        self.fabric = VirtualFabric(lab, self._events, processes)
        stack.callback(self.fabric.close)
        if lab.routing is not None:
            self._hold(lab.routing, stack)
        if lab.asic is not None:
            self.telemetry = Telemetry(lab.asic, self._folder.path / telemetry.FILE)
            self.telemetry.start()
            lines = LineTelemetry(self.fabric.record, self._folder.path / line_telemetry.FILE)
            self._lines = lines
            self._events.sampler = self._sampling = Sampling(self.telemetry, lines)
            stack.callback(self._end_telemetry, self.telemetry, lines)
            self._sampling.sample(self._events.now)
        if self._plan.taps:
            snaplen = self._plan.request.snaplen
            ends = [CableEnd(tap.node, port) for tap in self._plan.taps for port in tap.ports]
            self._capture = PortCapture(
                self._folder.path / CAPTURE, ends, snaplen=snaplen, comment=CAPTURE_COMMENT
            )
            stack.callback(self._end_capture, self._capture)
            self.fabric.capture(self._capture, snaplen)
        if self._plan.request.frame_latency:
            ends = boundary(lab.topology)
            self.fabric.each(WorkerPart.tag_frames, ends, self._plan.request.frame_latency)
            self._latencies = LatencyFile(
                self._folder.path / frame_latency.FILE, [str(end) for end in ends]
            )

    def forget_tagged_frames(self) -> None:
        """Let the frames that were tagged before now belong to no row."""
        if self._latencies is not None:
            self.fabric.each(WorkerPart.tagged_frames)

    def frame_times(self, row: int) -> Mapping[str, object]:
        """Return what row number ``row`` has of the tagged frames, and write their file."""
        if self._latencies is None:
            return {}
        parts = self.fabric.each(WorkerPart.tagged_frames)
        times = FrameTimes.of([one for part in parts for one in part])
        self._latencies.add(row, times)
        return times.row()

    def _hold(self, routing: Routing | ComputedRouting, stack: ExitStack) -> None:
        chosen = self._plan.request.convergence
        self._environment["convergence"] = {
            "charged": chosen.words(routing.plane),
            "repeatable": chosen.repeatable,
        }
        if isinstance(routing, ComputedRouting):
            self._routes = routing
            return
        self._routes = held = HeldRoutes(routing, self._warn)
        stack.callback(held.release)
        held.begin()

    def _warn(self, stated: str) -> None:
        if stated not in self._result.warnings:
            self._result.warnings.append(stated)

    def faulted(self, before: Broken, after: Broken, repeat: Repeat) -> None:
        """Have routes change when the time that this is charged with is over."""
        routes = self._routes
        if routes is None or before.links == after.links:
            return
        self._faulted += 1
        chosen = self._plan.request.convergence
        if chosen.given_ns is not None:
            charged_ns = chosen.given_ns
        elif chosen.repeatable:
            charged_ns = routes.charged.of(before, after)
        else:  # see how long it takes, and put everything back as it was
            charged_ns = round(routes.settle(after) * NS_PER_S)
            repeat(False)
            routes.settle(before)
            repeat(True)
        due, apply_fault = self._events.now // PS + charged_ns, self._faulted

        def settle() -> None:
            if apply_fault == self._faulted:  # nothing was struck since
                took_s = routes.settle(after)
                self._folder.event("converged", charged_us=charged_ns / 1000, took_s=took_s)

        self.schedule(due, settle)

    def await_routes(self) -> None:
        """Have the routes of the whole fabric again, at no virtual time, where they are learned."""
        if self._routes is not None:
            self._faulted += 1
            self._routes.settle(Broken())

    def flush(self) -> None:
        """Have in the files what was seen so far."""
        self.fabric.flush()
        if self.telemetry is not None:
            self.telemetry.flush()
        if self._lines is not None:
            self._lines.flush()

    def digest(self) -> str:
        """The digest of all frames so far."""
        return self._from_first("digest", digest)

    def write_parts(self) -> None:
        """Write what the digest of all frames so far is made of."""
        self._folder.write(PARTS_FILE, parts(self.fabric.states()))

    def _end_telemetry(self, sampler: Telemetry, lines: LineTelemetry) -> None:
        self._events.sampler = self._sampling = None
        for one in (sampler, lines):
            one.sample(self.clock.now())
            one.stop()
            if one.error is not None:
                self._result.warnings.append(f"the telemetry ends early: {one.error}")
        self._folder.event("telemetry", file=sampler.path.name, samples=sampler.samples)

    def _end_capture(self, capture: PortCapture) -> None:
        self.fabric.flush()
        capture.close()
        if capture.error is not None:
            self._result.errors.append(f"the capture is incomplete: {capture.error}")
        self._folder.event(
            "captured",
            file=capture.path.name,
            ports=[dataclasses.asdict(count) for count in capture.ports],
        )

    @property
    def cabling(self) -> LineFaults:
        """Return the lines, for a fault injector."""
        return LineFaults(self.fabric)

    def pool(self, specs: Sequence[EndpointSpec], *, shared: bool) -> VirtualPool:
        """The endpoints, in the processes of the workers; ``shared`` with yet others."""
        self._pool = VirtualPool(self._plan.lab, specs, self.fabric, shared=shared)
        return self._pool

    def unrouted(self) -> int:
        """Frames that switches had no way for, by the account, which knows of no other packets."""
        return sum(
            count
            for cause, count in self.fabric.account().dropped.items()
            if cause.partition(": ")[2] in (NO_ROUTE, CAME_BACK)
        )

    def counters(self) -> Mapping[str, PortCounters]:
        return self.fabric.counters()

    def rest(self) -> None:
        """Let all frames of what was run last arrive."""
        if self._pool is not None:
            self._pool.settled()

    def begin_row(self, pool: VirtualPool) -> None:
        """Let the row that comes depend on its seed and parameters alone."""
        pool.begin_row()
        self.fabric.begin_row()
        if self._sampling is not None:
            if self._events.now:
                self._sampling.sample(self._events.now)  # peaks begin anew
            self._sampling.begin_row(self._events.now // PS * PS)

    def row_digest(self) -> str:
        """The digest of the row's frames."""
        return self._from_first("digest of row", digest_of_row)

    def _from_first(self, what: str, summary: Callable[[LineStates], str]) -> str:
        """Return ``summary`` of all lines, which the first process knows."""
        states = self.fabric.states()
        return self._processes.from_first(what, lambda: summary(states))

    def switches_changed(self, seed: int) -> None:
        """Let the lines follow the switches' new settings, with draws from ``seed``."""
        self.fabric.reconfigure(seed)

    def schedule(self, when_ns: int, act: Callable[[], None]) -> None:
        """Have ``act`` called at a time (ns)."""
        events = self._events
        when = max(when_ns * PS, events.now)
        events.at(when, events.run_source.next(), lambda _: act(), None)

    def verdict(self) -> dict[str, object]:
        """Return the account of all frames.  Time is exact, or the run ends with an error."""
        account = self.fabric.account()
        return {
            "verdict": "exact",
            "reasons": [],
            "repeatable": self._repeatable(),
            "kernel_hash": _kernel_hash(self._plan),
            "inputs": [],
            "account": account.as_dict(),
            "limited_rows": [],
        }

    def _repeatable(self) -> bool:
        """Return whether no time of this machine decided when routes changed, or which ones."""
        routes = self._routes
        if routes is None:
            return True
        return self._plan.request.convergence.repeatable and not routes.judged_by_silence


def _kernel_hash(plan: RunPlan) -> bool:
    """Return whether the kernel's own hash decides on next hops; another kernel's may differ."""
    if all(stage.switch is not None and stage.switch.balance != "kernel" for stage in plan.stages):
        return False
    routes = static_routes(plan.topology)
    return any(len(route.hops) > 1 for one in plan.topology.switches for route in routes[one.name])
