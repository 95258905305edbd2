"""Several transports on one fabric: what ``--transport uet,rocev2:qps=4`` requests.

Every scenario then runs once for each of them, on the same fabric, with the same seed and so the
same workload; the switches are configured alike, except for what a transport cannot do without or
cannot use, which each row's ``switch`` names.  All rows have the metrics of traffic and those of
comparisons, whatever the scenario's own table shows.

What transports do not have in common is told: a difference that nobody speaks of decides who wins.
What is a choice has its parameter: the transports' own, those of switches, and those of the
scenario, which are the same for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat

from emulator.dataplane.switch import switch_fitting as fitting
from emulator.dataplane.switch.bpf.layout import TrafficClass
from emulator.dataplane.switch.code_points import LAB
from emulator.metrics import computed, table
from emulator.result_rows import NCCL_COLUMNS, TableColumn, short_names
from emulator.run.plan.run_plan import PlannedStage, RunPlan
from emulator.run.report import spread
from emulator.run.report.result_table import FABRIC_COLUMNS, TRAFFIC_COLUMNS
from emulator.run.report.traffic import MeasuredTraffic
from emulator.scenario import Outcome
from topologies.model import Topology
from topologies.units import format_size

#: The ranks of what only the scenario measures, the others between them.
OWN_RANKS = (6, 7, 17, *range(25, 34))

#: What other tables show and this one does not, or in its own place.
_ELSEWHERE = {column.key for column in (*NCCL_COLUMNS, *FABRIC_COLUMNS, *TRAFFIC_COLUMNS)}
#: So many names are "all others".
_MANY = 3
_HELD = "data that one egress holds at most"
_KEPT = "buffer that a port keeps so that data is never lost"


def columns(
    own: Sequence[TableColumn],
    transports: Sequence[str],
    facts: Collection[str] = (),
    seeds: int = 1,
) -> tuple[TableColumn, ...]:
    """The table of a comparison of ``transports`` over ``seeds``.

    Of the scenario's ``own`` columns it has those that nobody else's table has: ``facts`` part its
    rows, what else it measures gives way first where a line would be too long.
    """
    names = short_names(transports).values()
    name = TableColumn("name", "transport", "", max(map(len, ("transport", *names))))
    own = [column for column in own if column.key not in _ELSEWHERE]
    parting = [replace(column, rank=0) for column in own if column.key in facts]
    measured = [column for column in own if column.key not in facts]
    shown = table("compared")
    ranks = zip(measured, chain(OWN_RANKS, repeat(OWN_RANKS[-1])), strict=False)
    ranked = [
        *(replace(column, rank=rank) for column, rank in ranks),
        *(spread.columns(shown) if seeds > 1 else shown),
    ]
    return (name, *parting, *ranked)


def measured(topology: Topology, outcome: Outcome) -> dict[str, object]:
    """The values described above."""
    traffic = MeasuredTraffic(topology, outcome, absent=0)
    return computed("traffic", traffic) | computed("compared", traffic)


def report(plan: RunPlan) -> list[str]:
    """Make a line for each subject in which transports differ, and one on the application."""
    stages = plan.stages
    names = short_names([stage.stage.label for stage in stages])
    subjects: dict[str, dict[str, str]] = {}
    for stage in stages:
        name = names[stage.stage.label]
        facts = {**stage.transport.traits, _HELD: _held(stage, plan)}
        facts[_KEPT] = _kept(stage, plan)
        for subject, fact in facts.items():
            subjects.setdefault(subject, {})[name] = fact
    lines = [
        f"{subject}: {_joined(facts)}"
        for subject, facts in subjects.items()
        if len(set(facts.values())) > 1
    ]
    parameters = plan.request.parameters
    if hasattr(parameters, "in_flight") and hasattr(parameters, "message"):
        message = format_size(parameters.message)
        writes = f"at most {parameters.in_flight} writes of {message} of each flow are under way"
        lines.append(f"application: {writes} (in_flight, message), for all alike")
    return lines


def _joined(facts: Mapping[str, str]) -> str:
    """Join each fact with the names that it is true of."""
    whose: dict[str, list[str]] = {}
    for name, fact in facts.items():
        whose.setdefault(fact, []).append(name)
    most = max(whose, key=lambda fact: len(whose[fact]))
    rest = most if len(whose[most]) >= _MANY else None
    parts = [f"{', '.join(names)} {fact}" for fact, names in whose.items() if fact != rest]
    return "; ".join(parts if rest is None else [*parts, f"all others {rest}"])


def _held(stage: PlannedStage, plan: RunPlan) -> str:
    """Describe how many octets of data may wait for one port of a switch."""
    if stage.switch is None:
        return "what the kernel's queues take"
    config = next(iter(stage.transport.configs.values()))
    data = TrafficClass(LAB.classes()[int(str(config["dscp_data"]))])
    topology = plan.topology
    fitted = fitting.fit(stage.switch, topology, 1, clock="virtual")
    depths = []
    for node in topology.switches:
        for cable, _, _ in topology.neighbours(node.name):
            rules = fitted.profile(cable).rules(data)
            limits = [limit for limit in (rules.trim_bytes, rules.limit_bytes) if limit is not None]
            depths.append(min(limits, default=cable.buffer_bytes))
    return _range(depths)


def _kept(stage: PlannedStage, plan: RunPlan) -> str:
    """Describe the buffer that a switch port keeps, so that data is never lost."""
    if stage.switch is None:
        return "nothing"
    topology = plan.topology
    fitted = fitting.fit(stage.switch, topology, 1, clock="virtual")
    kept = []
    for node in topology.switches:
        for cable, _, _ in topology.neighbours(node.name):
            octets = fitted.lossless_bytes(cable)
            kept += [] if octets is None else [octets]
    if not kept:
        return "nothing"
    return f"{_range(kept)} ({'XOFF and headroom' if fitted.pauses else 'credits'})"


def _range(depths: Iterable[int]) -> str:
    ordered = sorted(set(depths))
    if not ordered:
        return "nothing"
    ends = dict.fromkeys((ordered[0], ordered[-1]))
    return " to ".join(f"{depth / 1000:.0f}" for depth in ends) + " KB"
