"""Mixtures of experts: what travels, what comes out, and what is refused."""

import random

import numpy as np
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.measures.ideal import ideal_ns
from emulator.run.measures.message_graph import MessageGraph
from emulator.scenario import Outcome, Trial
from emulator.transports.wire_cost import WireCost
from tests.harness.runs.observed_messages import iteration_of, observed_in
from tests.harness.runs.schedule_executor import Executor, hazards
from topologies.catalogue import load
from topologies.model import TopologyError

SMALL = "rail_clos:hosts=2,gpus_per_host=2,spines=1"
WIRE = WireCost(around_bytes=122, payload_mtu=4096)


def trials(spec: str = SMALL, **given: str) -> list[Trial]:
    module = scenario.load("moe")
    defaults = {"tokens": "5", "hidden": "8", "experts": "12", "top_k": "3", "node_limit": "0"}
    parameters = module.parameters(defaults | given)
    return module.schedules(parameters, load(spec), 1)


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        (SMALL, {}),
        (SMALL, {"layers": "2", "micro_batches": "2", "peers": "1"}),
        (SMALL, {"dispatch_bytes": "4", "combine_bytes": "1", "skew": "5", "node_limit": "1"}),
        (SMALL, {"ranks": "3,0,1"}),
        (SMALL, {"ranks": "rail"}),
        ("rail_clos:hosts=3,gpus_per_host=2,spines=1", {"ranks": "0-3,5", "experts": "15"}),
        (SMALL, {"tokens": "1", "top_k": "1", "backward": "0"}),  # some experts get nothing
    ],
)
def test_tokens_reach_their_experts_and_come_back(spec: str, given: dict[str, str]) -> None:
    for trial in trials(spec, **given):
        compiled = trial.compile()
        executor = Executor(compiled, random.Random(3))
        for rank in range(len(compiled)):
            for name, content in trial.inputs(rank).items():
                executor.memory[rank][name][:] = content.view(np.uint8)
        for _ in range(2):  # the second time with all buffers full of the first
            executor.run()
            for rank in range(len(compiled)):
                for name, content in trial.expected(rank).items():
                    assert executor.memory[rank][name].tobytes() == content.tobytes()
                    executor.memory[rank][name][:] = 0xFF
        assert hazards(compiled) == []


def test_a_token_at_a_wrong_expert_comes_back_wrong() -> None:
    """Swap two experts of one GPU's table of work."""
    (trial,) = trials(skew="0", dedup="none", backward="0")
    compiled = trial.compile()
    executor = Executor(compiled, random.Random(3))
    for rank in range(4):
        for name, content in trial.inputs(rank).items():
            executor.memory[rank][name][:] = content.view(np.uint8)
    routes = executor.memory[0]["routes"].view(np.int32)
    routes[-1] += 1  # the last pair of a row and an expert
    executor.run()
    wrong = [
        rank
        for rank in range(4)
        if executor.memory[rank]["outputs"].tobytes() != trial.expected(rank)["outputs"].tobytes()
    ]
    assert len(wrong) == 1


def test_octets_follow_from_the_rows_of_tokens() -> None:
    rows = {row.facts["dedup"]: row for row in trials(skew="1", tokens="40")}
    for trial in rows.values():
        assert trial.size_bytes == 40 * 3 * 8
        assert trial.facts["exchanges_per_step"] == 4
    none, node = rows["none"].facts, rows["node"].facts
    for key in ("work_imbalance", "nodes_per_token"):  # routing does not depend on the way
        assert none[key] == node[key]
    assert node["hot_in_bytes"] < none["hot_in_bytes"]
    # one row for each token and other node: at most one octet an element and token of the rail
    assert node["hot_in_bytes"] <= 40 * 8
    assert node["imbalance"] < none["imbalance"]


def test_popular_experts_make_work_uneven_and_limits_spare_nodes() -> None:
    spec = "rail_clos:hosts=4,gpus_per_host=2,spines=1"
    rows = {
        (row.facts["skew"], row.facts["node_limit"]): row.facts
        for row in trials(
            spec, skew="0,1", dedup="node", node_limit="0,2", tokens="50", experts="32", top_k="6"
        )
    }
    assert rows[1.0, 0]["work_imbalance"] > 1.5 * rows[0.0, 0]["work_imbalance"]
    for skew in (0.0, 1.0):
        assert rows[skew, 2]["nodes_per_token"] <= 2 < rows[skew, 0]["nodes_per_token"]


def test_one_host_needs_no_fabric() -> None:
    (trial,) = trials(ranks="0,1", skew="0", dedup="node")
    assert trial.facts["hot_in_bytes"] == 0
    assert trial.facts["imbalance"] is None


def test_exchanges_are_measured_beside_the_bound_of_their_busiest_nic() -> None:
    module = scenario.load("moe")
    (trial,) = trials(skew="1", dedup="none")
    topology = load(SMALL)
    compiled = trial.compile()
    # every message takes 1 us and starts a nanosecond after the one before
    starts = np.arange(len(MessageGraph(compiled).send))
    iteration = iteration_of(compiled, starts, starts + 1000)
    outcome = Outcome(
        times_ns=(10_000,), ideal_ns=1.0, wrong=0, counters={"rx_message_octets": 77},
        iterations=(iteration,), wire=WIRE,
        observed=(observed_in(trial, compiled, iteration),),
    )  # fmt: skip
    row = module.measures(None, topology, trial, outcome)
    assert [one["name"] for one in row["exchanges"]] != []
    assert len(row["exchanges"]) == 4
    assert row["fabric_bytes"] == 77
    # what the hottest GPU of the first dispatch receives, with the headers of its packets
    assert row["dispatch_bound_us"] * 1000 >= 8 * trial.facts["hot_in_bytes"] / 400
    assert row["dispatch_bound_us"] * 1000 <= 8 * (trial.facts["hot_in_bytes"] + 3 * 122) / 400
    assert ideal_ns(topology, trial.compile(), WIRE) > row["dispatch_bound_us"] * 1000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"experts": "13"}, "take experts=16"),
        ({"top_k": "13"}, "take top_k=12 or less"),
        ({"dispatch_bytes": "3"}, "an element has 1, 2 or 4 octets"),
        ({"combine_bytes": "5"}, "combine_bytes"),
        ({"node_limit": "1", "top_k": "7"}, "leaves a token 6 experts"),
        ({"tokens": "16384", "experts": "4096"}, "take fewer of either"),
        ({"tokens": "16384", "layers": "64"}, "take fewer tokens, layers or micro-batches"),
        ({"ranks": "2"}, "at least two GPUs"),
        ({"skew": "x"}, "not a number"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises((UserError, TopologyError), match=message):
        trials(**given)
