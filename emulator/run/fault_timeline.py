"""What goes wrong with the fabric while an iteration runs: applied on time, healed afterwards.

A thread of the runner waits for each moment and tells the switch.  That it can be late by what the
machine's scheduler is late is measured, stands in ``events.jsonl`` and counts in the fidelity
verdict.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict

from emulator.asic.faults import NONE, Faults
from emulator.endpoint.clock import Clock
from emulator.errors import UserError
from emulator.run.cuts import Change, share_left
from emulator.scenario import FaultAt
from topologies.model import End, Topology, TopologyError

Inject = Callable[[str, Faults], None]
Tell = Callable[..., None]


def ports_struck(fault: FaultAt, topology: Topology) -> tuple[str, ...]:
    """The switch ports that ``fault`` changes; :class:`UserError` if there is no such port."""
    node, _, port = fault.port.partition(":")
    try:
        ours = End(node, topology.node(node).port(port).name)
        link = topology.link_at(ours)
    except TopologyError as error:
        raise UserError(f"a fault of the scenario strikes {fault.port}: {error}") from None
    ends = link.ends if fault.both_ways else (ours,)
    for end in ends:
        if not topology.node(end.node).is_switch:
            raise UserError(
                f"a fault of the scenario strikes {end}, the port of a NIC; faults are those of "
                "switch ports: name the other end of the cable"
            )
    return tuple(map(str, ends))


def link_changes(timeline: Sequence[FaultAt], topology: Topology) -> list[Change]:
    """What ``timeline`` does to the rates of the links."""
    return [
        Change(fault.at_ns, End(*port.split(":")), share_left(fault.faults))
        for fault in timeline
        for port in ports_struck(fault, topology)
    ]


def _differing(faults: Faults) -> dict[str, float]:
    """What of ``faults`` is not as on a sound port, as JSON has it."""
    sound = asdict(NONE)
    return {name: value for name, value in asdict(faults).items() if value != sound[name]}


class FaultPlayer:
    """Applies ``timeline`` to one iteration after the other.

    ``late_ns`` is how late (fabric time) the latest application was, ``missed`` how many came to
    nothing because the iteration had ended.
    """

    def __init__(
        self,
        timeline: Sequence[FaultAt],
        topology: Topology,
        *,
        inject: Inject,
        clock: Clock,
        tell: Tell,
    ) -> None:
        ordered = sorted(timeline, key=lambda fault: fault.at_ns)
        self._timeline = [(fault, ports_struck(fault, topology)) for fault in ordered]
        self._inject, self._clock, self._tell = inject, clock, tell
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble: BaseException | None = None
        self.late_ns = 0
        self.missed = 0

    def begin(self, start_at: int) -> None:
        """The iteration starts at ``start_at`` (fabric ns)."""
        if not self._timeline:
            return
        self._over.clear()
        self._thread = threading.Thread(target=self._play, args=(start_at,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The iteration is over: heal whatever was struck.  Raises what went wrong meanwhile."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._over.set()
        thread.join()
        for port in sorted({port for _, ports in self._timeline for port in ports}):
            self._inject(port, NONE)
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    def _play(self, start_at: int) -> None:
        try:
            for place, (fault, ports) in enumerate(self._timeline):
                due = start_at + fault.at_ns
                wait = self._clock.host_seconds(due - self._clock.now())
                if self._over.wait(max(0.0, wait)):
                    self.missed += len(self._timeline) - place
                    return
                for port in ports:
                    self._inject(port, fault.faults)
                late = self._clock.now() - due
                self.late_ns = max(self.late_ns, late)
                self._tell(
                    "fault",
                    ports=ports,
                    faults=_differing(fault.faults),
                    at_us=fault.at_ns / 1000,
                    late_us=late / 1000,
                )
        except BaseException as error:  # noqa: BLE001  # raised in the runner's own thread
            self._trouble = error
