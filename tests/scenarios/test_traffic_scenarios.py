"""Every traffic scenario, without any kernel: what it compiles, expects and refuses."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from emulator import scenario
from emulator.dataplane.capture.fabric_capture import ports_of, select
from emulator.dataplane.switch.switch_choice import parse
from emulator.errors import UserError
from emulator.run.faults.fault_timeline import link_changes
from emulator.run.plan.stages import stages
from emulator.run.plan.trial_load import TrialLoad
from emulator.scenario import Outcome, Scenario, Trial
from emulator.sim.endpoint.operations.gpu_memory import Layout
from emulator.sim.endpoint.operations.schedule import Compute, Write
from emulator.sim.endpoint.operations.schedule_program import ScheduleProgram
from emulator.transports import fit
from emulator.transports.wire_cost import WireCost
from scenarios import pfcstorm
from scenarios.workloads.flows import across_rails, fair_shares, nic_payload_gbps, switch_of
from tests.harness.runs.schedule_executor import Executor
from topologies.catalogue import load
from topologies.model import VXLAN_OVERHEAD, Topology

TINY = {"size": "20000", "message": "4KiB", "in_flight": "2"}
CASES: list[tuple[str, str | None, dict[str, str]]] = [
    ("incast", None, {"senders": "2,3"}),
    ("incast", None, {"senders": "5", "placement": "spines"}),
    ("incast", "rail_clos:hosts=3,gpus_per_host=2", {"senders": "1,4", "placement": "any"}),
    ("permutation", None, {"sizes": "20000,1"}),
    ("permutation", "rail_clos:hosts=2,gpus_per_host=2", {"sizes": "5000"}),
    ("permutation", "rail_clos:hosts=3,gpus_per_host=5", {"sizes": "5000"}),
    ("victim", None, {"senders": "2,3"}),
    ("victim", "rail_clos:hosts=5,gpus_per_host=3", {"senders": "4"}),
    ("victim", "fat_tree:radix=4,leaves=4,gpus_per_host=1", {"senders": "5"}),
    ("outcast", None, {"senders": "1,2", "receivers": "3"}),
    ("outcast", "rail_clos:hosts=4,gpus_per_host=4", {"senders": "3", "receivers": "1"}),
    ("pairs", None, {"direction": "both", "probes": "2"}),
    ("pairs", "rail_clos:hosts=3,gpus_per_host=2", {}),
    ("fairness", None, {"flows": "1,2", "joined_at": "1us"}),
    ("kvload", None, {"transfers": "2", "load": "0,50"}),
    ("kvload", "pod", {"transfers": "1", "load": "100"}),
    ("kvmix", None, {"rounds": "2", "period": "1us"}),
    ("kvmix", "rail_clos:hosts=6,gpus_per_host=3", {"load": "0", "rounds": "1"}),
    ("kvmix", None, {"load": "50", "dispatch": "0", "period": "1us"}),
    ("linkfail", None, {"fail": "none,black,slow,both"}),
    ("linkfail", "rail_clos:hosts=3,gpus_per_host=3,spines=3", {"sprays": "default"}),
    ("lbsweep", None, {}),
    ("pfcstorm", None, {"rows": "none,storm,watchdog"}),
    ("pfcstorm", "rail_clos:hosts=5,gpus_per_host=3", {"rows": "storm"}),
    ("ccsweep", None, {"senders": "3"}),
    ("ccsweep", None, {"pattern": "permutation"}),
]
EACH = pytest.mark.parametrize(
    ("name", "spec", "given"), CASES, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(CASES)]
)


def loaded(name: str, spec: str | None, given: dict[str, str]) -> tuple[Scenario, object, Topology]:
    found = scenario.load(name)
    own = {**TINY, **given}
    if name in ("permutation", "kvload", "kvmix"):
        own.pop("size")
    if name == "kvmix":
        own.pop("in_flight")
    parameters = found.parameters(own)
    requested = found.topology(parameters) if spec is None else spec
    assert isinstance(requested, str)
    return found, parameters, load(requested)


def trials(name: str, spec: str | None, given: dict[str, str], seed: int = 1) -> Iterator[Trial]:
    found, parameters, topology = loaded(name, spec, given)
    yield from found.schedules(parameters, topology, seed)


@EACH
def test_every_octet_arrives(name: str, spec: str | None, given: dict[str, str]) -> None:
    *_, topology = loaded(name, spec, given)
    for trial in trials(name, spec, given):
        schedules = trial.compile()
        assert [schedule.rank for schedule in schedules] == list(range(len(topology.gpus)))
        executor = Executor(schedules, random.Random(7))
        for rank in range(len(schedules)):
            for buffer, content in trial.inputs(rank).items():
                executor.memory[rank][buffer][:] = content
        executor.run()
        received = 0
        for rank in range(len(schedules)):
            for buffer, content in trial.expected(rank).items():
                np.testing.assert_array_equal(executor.memory[rank][buffer], content)
                received += content.nbytes
        assert received == trial.facts["total_bytes"] > 0


@EACH
def test_agents_can_run_it(name: str, spec: str | None, given: dict[str, str]) -> None:
    *_, topology = loaded(name, spec, given)
    wire = fit("uet", topology).wire
    for trial in trials(name, spec, given):
        schedules = trial.compile()
        layouts = {schedule.rank: Layout(schedule.buffers) for schedule in schedules}
        for schedule in schedules:
            others = [rank for rank in layouts if rank != schedule.rank]
            ScheduleProgram(schedule, layouts, fabric=others)
        one = TrialLoad.of(trial, topology, wire)
        assert one.ideal_ns > 0
        held = sum(one.memory_octets)
        assert held <= (trial.memory_bytes + 4096 * len(schedules)) * len(schedules)
        assert held >= trial.memory_bytes * len(schedules)  # not refused for what none needs


@EACH
def test_what_rows_run_on_exists(name: str, spec: str | None, given: dict[str, str]) -> None:
    """Transports and switches are real ones, faults strike ports, captures choose ports."""
    found, parameters, topology = loaded(name, spec, given)
    rows = list(trials(name, spec, given))
    for stage in stages(rows, transport=None, switch=None):
        fit(stage.transport, topology, switch=parse(stage.switch))
    for row in rows:
        link_changes(row.faults, topology)
    chosen = found.capture(parameters, topology)
    assert chosen is not None
    assert select(chosen, ports_of(topology))


@EACH
def test_measures_stand_an_outcome_without_anything(
    name: str, spec: str | None, given: dict[str, str]
) -> None:
    found, parameters, topology = loaded(name, spec, given)
    for trial in trials(name, spec, given):
        empty = Outcome(times_ns=(1,), ideal_ns=1, wrong=0, counters={})
        row = found.measures(parameters, topology, trial, empty)
        assert row["goodput_gbps"] is row["message_p99_us"] is None


@EACH
def test_the_seed_decides_the_payload(name: str, spec: str | None, given: dict[str, str]) -> None:
    one = next(trials(name, spec, given))
    again = next(trials(name, spec, given))
    other = next(trials(name, spec, given, seed=2))
    contents = [
        b"".join(c.tobytes() for r in range(len(t.compile())) for c in t.inputs(r).values())
        for t in (one, again, other)
    ]
    assert contents[0] == contents[1] != contents[2]


@pytest.mark.parametrize(
    ("name", "spec", "given", "words"),
    [
        ("incast", "rail_clos:hosts=3,gpus_per_host=1", {}, "4 senders needs .* has 2"),
        ("incast", "rail_clos:hosts=9,gpus_per_host=1", {"placement": "spines"}, "other rails"),
        ("permutation", "rail_clos:hosts=4,gpus_per_host=1", {}, "a partner of its own"),
        ("permutation", "rail_clos:hosts=1,gpus_per_host=4", {}, "a partner of its own"),
        ("victim", "rail_clos:hosts=4,gpus_per_host=1", {}, "needs two rail switches"),
        ("victim", "rail_clos:hosts=4,gpus_per_host=2", {}, "needs 9 hosts"),
        ("outcast", "rail_clos:hosts=3,gpus_per_host=2", {}, "4 receivers beside"),
        ("outcast", "rail_clos:hosts=5,gpus_per_host=2", {}, "an incast of 4 senders"),
        ("linkfail", "rail_clos:hosts=2,gpus_per_host=2,spines=2", {}, "have 2; take more"),
        ("linkfail", None, {"slow_to": "1"}, "slow_to is 1"),
        (
            "incast",
            None,
            {"senders": "2,3", "placement": "any", "victim": "4"},
            "victim changes nothing where all senders share a server: leave it out",
        ),
        ("victim", "rail_only", {}, "are not joined; take spines"),
        ("losssweep", "torus:x=3,y=3", {}, "those of one; take more hosts"),
        ("pfcstorm", "rail_clos:hosts=3,gpus_per_host=2", {}, "take more hosts"),
        ("pfcstorm", "rail_only", {}, "are not joined; take spines"),
        ("pfcstorm", None, {"watchdog": "400us"}, "take a shorter one"),
        ("linkfail", None, {"sprays": "rep"}, "did you mean reps"),
        ("lbsweep", None, {"balances": "hash"}, "choose one of"),
        ("ccsweep", None, {"cc": "dcqcn"}, "choose one of"),
        ("incast", None, {"size": "512MiB", "message": "1"}, "more than 250000 such writes"),
    ],
)
def test_what_cannot_be_is_refused(
    name: str, spec: str | None, given: dict[str, str], words: str
) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        compiled(name, spec, given)
    assert "\n" not in str(refusal.value)


def compiled(name: str, spec: str | None, given: dict[str, str]) -> None:
    found = scenario.load(name)
    parameters = found.parameters(given)
    requested = found.topology(parameters) if spec is None else spec
    assert isinstance(requested, str)
    found.schedules(parameters, load(requested), 1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("hosts", "gpus"), [(2, 2), (2, 3), (3, 2), (4, 4), (5, 3)])
def test_permutations_cross_and_share_nothing(hosts: int, gpus: int, seed: int) -> None:
    topology = load(f"rail_clos:hosts={hosts},gpus_per_host={gpus}")
    to = across_rails(topology, seed)
    assert sorted(to) == list(range(hosts * gpus))
    for source, destination in enumerate(to):
        assert switch_of(topology, source) != switch_of(topology, destination)
        assert topology.gpus[source].server != topology.gpus[destination].server


@pytest.mark.parametrize("spec", ["nic_per_gpu", "shared_nic", "fabric_planes"])
def test_a_permutation_on_one_switch_leaves_the_server(spec: str) -> None:
    topology = load(spec)
    to = across_rails(topology, 1)
    assert sorted(to) == list(range(len(topology.gpus)))
    for source, destination in enumerate(to):
        assert topology.gpus[source].server != topology.gpus[destination].server


def test_a_storm_takes_its_flows_from_one_gpu_of_each_server() -> None:
    topology = load("pod")
    flows = [flow for flows in pfcstorm.cast(topology).values() for flow in flows]
    for source, destination in flows:
        assert topology.gpus[source].server != topology.gpus[destination].server


@pytest.mark.parametrize(("spec", "lossy"), [("nic_per_gpu", 2), ("fabric_planes", 4)])
def test_a_losssweep_loses_at_every_port_down_to_its_ring(spec: str, lossy: int) -> None:
    one = next(trials("losssweep", spec, {"losses": "100", "size": "1MiB"}))
    assert len({fault.port for fault in one.faults}) == lossy


def test_the_seed_decides_the_permutation() -> None:
    topology = load("rail_clos:hosts=4,gpus_per_host=4")
    assert across_rails(topology, 1) == across_rails(topology, 1)
    assert across_rails(topology, 1) != across_rails(topology, 2)


def test_an_incast_keeps_no_more_writes_under_way_than_told() -> None:
    (trial,) = trials("incast", None, {"senders": "2", "in_flight": "3", "size": "64KiB"})
    schedule = trial.compile()[1]
    writes = [op for op in schedule.operations if isinstance(op, Write) and op.peer == 0]
    assert len(writes) == 16
    assert [write.after for write in writes] == [()] * 3 + [(i,) for i in range(13)]


def test_the_victim_of_an_incast_sends_by_the_clock() -> None:
    """Its writes wait for nobody, or a slow one would hide how slow those behind it are."""
    (trial,) = trials("incast", None, {"senders": "3", "size": "64KiB", "victim": "4"})
    assert trial.victims == {(1, 3)}
    operations = trial.compile()[1].operations
    writes = [op for op in operations if isinstance(op, Write) and op.peer == 3]
    assert [write.local.length for write in writes] == [1024] * 4
    waits = [operations[write.after[0]] for write in writes]
    assert all(isinstance(wait, Compute) for wait in waits)
    busy_ns = 3 * 64 * 1024 * 8 / 400
    assert {wait.duration_ns for wait in waits if isinstance(wait, Compute)} == {round(busy_ns / 5)}
    (alone,) = trials("incast", None, {"senders": "1"})
    (without,) = trials("incast", None, {"senders": "3", "victim": "0"})
    assert not alone.victims
    assert not without.victims


def test_fair_shares_by_hand() -> None:
    """Two uplinks for an incast of 8 and a victim: 1/8 of a NIC each, and a whole one."""
    topology = load("rail_clos:hosts=9,gpus_per_host=2,spines=2,uplinks_per_spine=1")
    victim, incast = (0, 3), [(2 * host, 1) for host in range(1, 9)]
    shares = fair_shares(topology, [victim, *incast])
    assert shares.rates[victim] == pytest.approx(50)
    assert {round(shares.rates[pair], 9) for pair in incast} == {6.25}
    assert shares.payload_gbps(victim, WireCost(104, 4096)) == pytest.approx(50 * 4096 / 4200)


def test_a_tunnel_takes_its_part_of_uplinks_and_none_of_a_nic() -> None:
    """One link from pod to pod for each of two rails: a pair alone on its rail, two on the other,
    of which one goes by the plain to the pod's own switch of that rail."""
    topology = load(
        "clos:pods=2,hosts=1,gpus_per_host=2,spines=1,super_spines=1,subnets=stretched,"
        "uplink_rate=400G,uplinks_per_spine=1,uplinks_per_super=2"
    )
    wire, tunnel = WireCost(104, 4096), 1 + VXLAN_OVERHEAD / 4200
    assert fair_shares(topology, [(0, 2)], wire).rates[0, 2] == pytest.approx(50 / tunnel)
    assert fair_shares(topology, [(0, 2)]).rates[0, 2] == pytest.approx(50)
    assert fair_shares(topology, [(0, 1)], wire).rates[0, 1] == pytest.approx(50)
    both = fair_shares(topology, [(0, 3), (1, 3)], wire)
    assert sum(both.rates.values()) == pytest.approx(50 / tunnel)
    assert nic_payload_gbps(topology, 3, wire) == pytest.approx(50 * 4096 / 4200)


def test_sweeps_restart_agents_as_seldom_as_can_be() -> None:
    for name in ("lbsweep", "ccsweep", "linkfail"):
        rows = stages(list(trials(name, None, {})), transport=None, switch=None)
        changes = [row.transport for row in rows]
        runs = sum(a != b for a, b in pairwise(changes)) + 1
        assert runs == len(Counter(changes))


def test_a_scenario_is_known_by_its_former_name() -> None:
    assert scenario.load("onset").name == scenario.load("fairness").name == "fairness"
