"""Disaggregated serving: sizes, times, moments of requests, and what is refused."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.measures.message_graph import MessageGraph
from emulator.run.measures.message_times import Iteration
from emulator.scenario import Outcome, Trial
from emulator.sim.endpoint.operations.schedule import Compute, Schedule, only_operations_of
from emulator.transports.wire_cost import WireCost
from scenarios.training_jobs.inference import Parameters
from tests.harness.runs.observed_messages import iteration_of, observed_in
from tests.harness.runs.schedule_executor import Executor, hazards
from tests.harness.runs.wanted_parts import assert_parts
from topologies.catalogue import load
from topologies.model import TopologyError

WIRE = WireCost(around_bytes=122, payload_mtu=4096)
FEW = {"output": "2", "scale": "65536"}
DRAWN = {"requests": "3", "rate": "6"}


def few(given: dict[str, str]) -> dict[str, str]:
    return FEW | ({} if "arrivals" in given else DRAWN) | given


def trials(spec: str = "", **given: str) -> list[Trial]:
    module = scenario.load("inference")
    parameters = module.parameters(few(given))
    return module.schedules(parameters, load(spec or str(module.topology(parameters))), 1)


SERVED: list[dict[str, str]] = [
    {},
    {"models": "8b", "prefill_gpus": "2", "decode_gpus": "4", "slots": "1"},
    {"models": "8b", "prefill_gpus": "4", "decode_gpus": "2", "decode": "2"},
    {"models": "8b", "prefill_gpus": "1", "decode_gpus": "1"},
    {"models": "8x7b", "decode_by": "experts", "decode_gpus": "4", "slots": "1"},
    {"arrivals": "3us,1us"},
]


@pytest.mark.parametrize("given", SERVED)
def test_keys_and_values_and_states_arrive(given: dict[str, str]) -> None:
    for trial in trials(**given):
        compiled = trial.compile()
        executor = Executor(compiled, random.Random(3))
        for rank in range(len(compiled)):
            for name, content in trial.inputs(rank).items():
                executor.memory[rank][name][:] = content
        executor.run()
        cached = 0
        for rank in range(len(compiled)):
            expected = trial.expected(rank)
            cached += expected.get("cache", np.zeros(0)).nbytes
            for name, content in expected.items():
                assert executor.memory[rank][name].tobytes() == content.tobytes()
        assert cached == len(trial.facts["arrivals_ns"]) * trial.size_bytes
        assert hazards(compiled) == []


@pytest.mark.parametrize("given", SERVED)
def test_the_wanted_schedules_are_those_of_the_whole(given: dict[str, str]) -> None:
    """Each GPU by itself, those of a host, of prefill, and of decode."""
    given = given if "arrivals" in given else {**given, "requests": "5"}
    for trial in trials(**given):
        whole = trial.compile()
        job = scenario.load("inference").parameters(few(given)).job(trial.facts["model"], "whole")
        prefill = frozenset(range(job.prefill * job.prefill_gpus))
        decode = frozenset(range(job.gpus)) - prefill
        groups = [frozenset({rank}) for rank in range(job.gpus)]
        for ranks in (*groups, frozenset(range(4)), prefill, decode, frozenset[int]()):
            with only_operations_of(ranks):
                some = trial.compile()
            assert_parts(some, whole, ranks)
        busy = min(job.prefill, len(trial.facts["arrivals_ns"])) * job.prefill_gpus
        assert sum(len(one.operations) > 0 for one in whole) == busy + len(decode)


def test_a_cache_has_the_octets_of_the_full_size_over_the_scale() -> None:
    (trial, _) = trials(scale="1024")
    assert trial.size_bytes == 1_342_177_280 // 1024  # 70B, 4096 tokens


def test_arrivals_are_drawn_by_the_seed_or_listed() -> None:
    facts = [trial.facts["arrivals_ns"] for trial in trials(requests="200", scale="1024")]
    assert facts[0] == facts[1]  # both kinds of transfer serve the same requests
    gaps = np.diff(facts[0])
    assert gaps.mean() == pytest.approx(1e9 / 6 / 1024, rel=0.2)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.3)
    (listed, _) = trials(arrivals="2ms,1ms", scale="1024")
    assert listed.facts["arrivals_ns"] == [976, 1953]
    assert listed.facts["rate"] is None


def moments(compiled: Sequence[Schedule], lengths_ns: int) -> Iteration:
    """Return an iteration in which each message takes ``lengths_ns``, and GPUs as they should."""
    graph = MessageGraph(compiled)
    arrives = {
        int(receive): int(send) for receive, send in zip(graph.receive, graph.send, strict=True)
    }
    firsts = np.cumsum([0] + [len(one.operations) for one in compiled])
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}

    def end(number: int) -> int:
        if number not in ends:
            rank = int(graph.rank(np.array([number]))[0])
            operation = compiled[rank].operations[number - firsts[rank]]
            begins[number] = max((end(firsts[rank] + one) for one in operation.after), default=0)
            ends[number] = begins[number]
            if isinstance(operation, Compute):
                ends[number] += operation.duration_ns
            elif number in arrives:
                end(arrives[number])
                ends[number] = begins[arrives[number]] + lengths_ns
        return ends[number]

    for number in range(len(graph)):
        end(number)
    return iteration_of(
        compiled,
        [begins[int(one)] for one in graph.send],
        [ends[int(one)] for one in graph.receive],
    )


def measured(trial: Trial, lengths_ns: int, **given: str) -> dict[str, object]:
    module = scenario.load("inference")
    parameters = module.parameters(few(given))
    topology = load(str(module.topology(parameters)))
    compiled = trial.compile()
    iteration = moments(compiled, lengths_ns)
    outcome = Outcome(
        times_ns=(1,), ideal_ns=1.0, wrong=0, counters={},
        iterations=(iteration,), wire=WIRE,
        observed=(observed_in(trial, compiled, iteration),),
    )  # fmt: skip
    return dict(module.measures(parameters, topology, trial, outcome))


@pytest.mark.parametrize("decode_gpus", ["1", "4"])
def test_the_first_token_comes_after_wait_prefill_transfer_and_a_step(decode_gpus: str) -> None:
    given = {
        "arrivals": "0us,0us", "prefill": "1", "transfer": "whole", "decode_gpus": decode_gpus,
        "output": "3", "scale": "1024",
    }  # fmt: skip
    (trial,) = trials(**given)
    row = measured(trial, 500, **given)
    job = Parameters(prefill=1, decode_gpus=int(decode_gpus), output=3).job("70b", "whole")
    exchange = 0.5 if decode_gpus == "4" else 0
    step = job.step_ns / 1000 + exchange
    assert row["prefill_us"] == job.prefill_ns / 1000
    assert row["wait_us"] == job.prefill_ns / 2000  # the second waits for the first
    assert row["transfer_us"] == 0.5
    assert row["decode_init_us"] == pytest.approx(step)
    assert row["ttft_p99_us"] == pytest.approx(2 * job.prefill_ns / 1000 + 0.5 + step)
    assert row["itl_p50_us"] == row["itl_p99_us"] == pytest.approx(step)
    assert row["itl_exchange_us"] == pytest.approx(exchange)
    assert row["transfer_gbps"] == pytest.approx(trial.size_bytes / 500)
    total = 2 * job.prefill_ns + 500 + 3 * step * 1000
    assert row["tokens_per_second"] == pytest.approx(6 * 1e9 / (total * 1024))


def test_layer_by_layer_only_the_last_layer_shows() -> None:
    given = {"arrivals": "0us", "transfer": "layers", "scale": "1024"}
    (trial,) = trials(**given)
    row = measured(trial, 500, **given)
    assert row["transfer_us"] == 0.5
    # 80 layers, each half a microsecond under way
    assert row["transfer_gbps"] == pytest.approx(trial.size_bytes / (80 * 500))


@pytest.mark.parametrize(
    ("given", "slots"), [({}, "1"), ({"models": "8x7b", "decode_by": "experts"}, "1")]
)
def test_a_request_waits_for_a_place_in_the_batch(given: dict[str, str], slots: str) -> None:
    """Requests beyond all places wait until the one before them has all its tokens."""
    count = 2 if not given else 5
    given = given | {
        "arrivals": ",".join(["0us"] * count), "prefill": str(count), "transfer": "whole",
        "slots": slots, "prefill_gpus": "2",
    }  # fmt: skip
    (trial,) = trials(**given)
    row = measured(trial, 500, **given)
    times = row["request_times"]
    assert isinstance(times, list)
    first, last = times[0]["tokens_us"], times[-1]["tokens_us"]
    assert last[0] > first[-1]
    assert last[0] - first[-1] == pytest.approx(first[1] - first[0])


@pytest.mark.parametrize(
    ("spec", "given", "message"),
    [
        ("rail_clos:hosts=2,gpus_per_host=4", {}, "need 16 GPUs and topology .* has 8"),
        ("", {"decode_by": "experts"}, "take models=8x7b"),
        ("", {"decode_by": "experts", "models": "8x7b", "decode_gpus": "3"}, "8 for 3 GPUs"),
        ("", {"prefill_gpus": "3"}, "prefill_gpus is 3, and the 8 KV heads of 70b"),
        ("", {"decode_gpus": "16"}, "decode_gpus is 16"),
        ("", {"prompt": "1", "scale": "4096"}, "take scale=1"),
        ("", {"requests": "16384"}, "take fewer requests"),
        ("", {"rate": "0"}, "rate is 0"),
        ("", {"models": "7b"}, "choose one of 8b, 70b"),
        ("", {"arrivals": "soon"}, "arrivals"),
    ],
)
def test_what_cannot_be_served_is_refused(spec: str, given: dict[str, str], message: str) -> None:
    with pytest.raises((UserError, TopologyError), match=message):
        trials(spec, **given)
