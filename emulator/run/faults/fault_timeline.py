"""Faults during an iteration: applied on time, healed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.errors import UserError
from emulator.run.faults.condition import SOUND, Condition
from emulator.run.faults.grammar import Moment
from emulator.run.measures.cuts import Change, share_left
from emulator.scenario import FaultAt
from emulator.sim.endpoint.operations.nvlink import Paces
from topologies.model import CableEnd, Topology, TopologyError

Inject = Callable[[str, Faults], None]
ApplyFault = Callable[[Condition], None]
Notify = Callable[..., None]
#: Has something done at a time (ns of the run's clock).
Schedule = Callable[[int, Callable[[], None]], None]


def faulted_ports(fault: FaultAt, topology: Topology) -> tuple[str, ...]:
    """The switch ports that ``fault`` changes; :class:`UserError` if there is no such port."""
    node, _, port = fault.port.partition(":")
    try:
        ours = CableEnd(node, topology.node(node).port(port).name)
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
    """Return what ``timeline`` does to the rates of the links."""
    return [
        Change(fault.at_ns, CableEnd(*port.split(":")), share_left(fault.faults))
        for fault in timeline
        for port in faulted_ports(fault, topology)
    ]


def _differing(faults: Faults) -> dict[str, float]:
    """Return what of ``faults`` is not as on a sound port, as JSON has it."""
    sound = asdict(NONE)
    return {name: value for name, value in asdict(faults).items() if value != sound[name]}


@dataclass(frozen=True)
class Applied:
    """A moment of the user's timeline as it came: ``at_ns`` after the start of the iteration."""

    moment: Moment
    at_ns: int


@dataclass(frozen=True)
class _Step:
    at_ns: int
    act: Callable[[], None]
    details: Mapping[str, object]
    text: str
    moment: Moment | None = None


class FaultPlayer:
    """Applies ``timeline``, and the user's ``moments``, to one iteration after the other.

    ``missed`` is how many came to nothing because the iteration had ended.  ``applied`` has for
    each iteration the moments that came, and ``latest`` the times (ns) and texts of all faults of
    the latest iteration.
    """

    def __init__(
        self,
        timeline: Sequence[FaultAt],
        topology: Topology,
        *,
        inject: Inject,
        schedule: Schedule,
        notify: Notify,
        moments: Sequence[Moment] = (),
        apply_fault: ApplyFault | None = None,
        pace_scale_up: Callable[[Paces], None] | None = None,
    ) -> None:
        self._ports = sorted({port for f in timeline for port in faulted_ports(f, topology)})
        self._inject, self._notify = inject, notify
        self._schedule = schedule
        self._iteration = 0
        self._apply_fault = apply_fault if moments else None
        self._paces = [(moment.at_ns, moment.condition.left_of_scale_up) for moment in moments]
        self._pace = pace_scale_up if any(moment.scale_up for moment in moments) else None
        #: GPUs die, so that no transport goes on into the next iteration
        self.deadly = any(moment.condition.dead_gpus for moment in moments)
        self._steps = sorted(
            [
                *(self._port_step(fault, faulted_ports(fault, topology)) for fault in timeline),
                *(self._cable_step(moment) for moment in moments),
            ],
            key=lambda step: step.at_ns,
        )
        self.missed = 0
        self.applied: list[list[Applied]] = []
        self.latest: list[tuple[int, str]] = []
        self._left = 0

    def begin(self, start_at: int) -> None:
        """The iteration starts at ``start_at`` (fabric ns)."""
        if not self._steps:
            return
        self.applied.append([])
        self.latest = []
        self._iteration += 1
        self._left = len(self._steps)
        if self._pace is not None:
            self._pace([(start_at + at_ns, left) for at_ns, left in self._paces])
        for step in self._steps:
            self._schedule(start_at + step.at_ns, partial(self._apply_in, self._iteration, step))

    def end(self) -> None:
        """Heal all faults at the end of the iteration."""
        if not self._steps:
            return
        self._iteration += 1  # steps that are still to come find theirs over
        self.missed += self._left
        self._left = 0
        for port in self._ports:
            self._inject(port, NONE)
        if self._apply_fault is not None:
            self._apply_fault(SOUND)
        if self._pace is not None:
            self._pace([])

    def lost_since(self, cut: Callable[[Condition], Sequence[int]]) -> dict[int, int]:
        """Return which ranks the moments of the latest iteration have cut off, and since when.

        Times are ns after its start, and ``cut`` returns the ranks that a condition cuts off.
        """
        since: dict[int, int] = {}
        for one in self.applied[-1] if self.applied else ():
            gone = cut(one.moment.condition)
            since = {rank: since.get(rank, one.at_ns) for rank in gone}
        return since

    def _port_step(self, fault: FaultAt, ports: Sequence[str]) -> _Step:
        def act() -> None:
            for port in ports:
                self._inject(port, fault.faults)

        differing = _differing(fault.faults)
        words = ", ".join(f"{name}={value}" for name, value in differing.items()) or "healed"
        text = f"{' '.join(ports)} {words}"
        return _Step(fault.at_ns, act, {"ports": ports, "faults": differing}, text)

    def _cable_step(self, moment: Moment) -> _Step:
        def act() -> None:
            if self._apply_fault is not None:
                self._apply_fault(moment.condition)

        details = {"said": moment.text, "struck": moment.condition.words()}
        return _Step(moment.at_ns, act, details, moment.text, moment)

    def _apply_in(self, iteration: int, step: _Step) -> None:
        if iteration != self._iteration:
            return
        self._left -= 1
        step.act()
        self.latest.append((step.at_ns, step.text))
        if step.moment is not None:
            self.applied[-1].append(Applied(step.moment, step.at_ns))
        self._notify("fault", **step.details, at_us=step.at_ns / 1000, late_us=0.0)
