"""Sizes, columns, communicators and refusals of collectives."""

from typing import Any

import numpy as np
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.scenario import Outcome, Trial
from emulator.sim.endpoint.operations.schedule import Copy, Write
from scenarios.collectives.collective import fabric_octets
from tests.harness.runs.observed_messages import iteration_of, observed_in
from topologies.catalogue import load
from topologies.model import TopologyError

PARTS = ("allgather", "reducescatter", "alltoall", "gather", "scatter")
WHOLE = ("allreduce", "broadcast", "reduce", "sendrecv")


def trials(name: str, spec: str, **given: str) -> list[Trial]:
    chosen = scenario.load(name)
    return chosen.schedules(chosen.parameters(given), load(spec), 1)


def row(name: str, spec: str, counters: dict[str, int], **given: str) -> Any:
    """Return the columns of a run in which the two iterations took 9 and 11 ms."""
    chosen, topology = scenario.load(name), load(spec)
    parameters = chosen.parameters(given)
    (trial,) = chosen.schedules(parameters, topology, 1)
    compiled = trial.compile()
    observed = observed_in(trial, compiled, iteration_of(compiled, 0, 1))
    outcome = Outcome(
        times_ns=(9_000_000, 11_000_000),
        ideal_ns=1,
        wrong=0,
        counters=counters,
        observed=[observed],
    )
    return chosen.measures(parameters, topology, trial, outcome)


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_rounded_down_to_sixteen_octets(name: str) -> None:
    (trial,) = trials(name, "rail_clos:hosts=3,gpus_per_host=1", sizes="140")
    assert trial.size_bytes == 3 * 32


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("allreduce", 1.75),
        *((name, 0.875) for name in PARTS),
        *((name, 1) for name in ("broadcast", "reduce", "sendrecv")),
    ],
)
def test_busbw_follows_the_nccl_tests(name: str, factor: float) -> None:
    """Check value: 8 ranks, 1 GB in 10 ms are 100 GB/s algbw and 175 GB/s busbw of AllReduce."""
    slices = {"slice_bytes": "16MiB"} if name in (*WHOLE[:3], *PARTS[:2]) else {}
    got = row(name, "rail_clos:hosts=2,gpus_per_host=4", {}, sizes="1GB", **slices)
    assert (got["algbw_gbps"], got["busbw_gbps"]) == (100.0, 100 * factor)
    count = 31_250_000 if name in PARTS else 250_000_000
    rooted = name in ("broadcast", "reduce", "gather", "scatter")
    assert (got["count"], got["type"], got["root"]) == (count, "float", 0 if rooted else -1)
    assert got["redop"] == ("sum" if "reduce" in name else "none")


@pytest.mark.parametrize("hosts", [2, 3, 6])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_octets_over_the_fabric_are_those_of_the_formulas(hosts: int, width: int) -> None:
    """Closed forms, in sizes S: n GPUs in H hosts of g.

    Each of g rings crosses H borders of hosts, 2(n-1) S/(n g) octets on each in AllReduce.
    AlltoAll: all but the g/n for its own host leaves each of n buffers.  Hierarchical: 2(H-1)/H
    of each of g parts leaves each of H hosts.  Trees: each of H-1 edges carries all, both ways.
    """
    spec, n = f"rail_clos:hosts={hosts},gpus_per_host={width}", hosts * width
    size = n * hosts * width * 64
    ring = hosts * size * (n - 1) // n
    expected = {
        ("allreduce", "ring"): 2 * ring,
        ("allreduce", "hierarchical"): 2 * (hosts - 1) * size,
        ("allreduce", "tree"): 2 * (hosts - 1) * size,
        ("allreduce", "double-tree"): 2 * (hosts - 1) * size,
        ("allreduce", "nvls"): 2 * (hosts - 1) * size,
        ("reducescatter", "ring"): ring,
        ("allgather", "ring"): ring,
        ("reducescatter", "hierarchical"): (hosts - 1) * size,
        ("allgather", "hierarchical"): (hosts - 1) * size,
        ("alltoall", "shift"): size * (n - width),
        ("alltoall", "xor"): size * (n - width),
        ("alltoall", "nccl"): size * (n - width),
        ("gather", "direct"): size * (n - width) // n,
        ("scatter", "direct"): size * (n - width) // n,
        ("sendrecv", "shift"): hosts * size,
    }
    for (name, algorithm), octets in expected.items():
        (trial,) = trials(name, spec, sizes=str(size), algorithm=algorithm)
        assert fabric_octets(trial.compile()) == octets, (name, algorithm)


def test_a_row_has_what_arrived_beside_what_was_named() -> None:
    got = row("sendrecv", "rail_clos:hosts=2,gpus_per_host=2", {"rx_message_octets": 4096},
              sizes="1KiB")  # fmt: skip
    assert (got["fabric_bytes"], got["fabric_bytes_derived"]) == (2048, 2048)
    without = row("sendrecv", "rail_clos:hosts=2,gpus_per_host=2", {}, sizes="1KiB")
    assert without["fabric_bytes"] is None


def test_alltoall_is_a_transposition() -> None:
    (trial,) = trials("alltoall", "rail_clos:hosts=3,gpus_per_host=1", sizes="48")
    sent = np.array([trial.inputs(rank)["input"].reshape(3, -1) for rank in range(3)])
    for rank in range(3):
        np.testing.assert_array_equal(trial.expected(rank)["output"].reshape(3, -1), sent[:, rank])


def test_ranks_in_a_row_exchange_among_themselves() -> None:
    (trial,) = trials("alltoall", "rail_clos:hosts=3,gpus_per_host=2", sizes="96", ranks="/3")
    for schedule in trial.compile():
        sends = [one for one in schedule.operations if isinstance(one, Write | Copy)]
        assert len(sends) == 2
        assert {one.peer // 3 for one in sends} == {schedule.rank // 3}


@pytest.mark.parametrize("peers", [1, 2, 3, 100])
@pytest.mark.parametrize("algorithm", ["shift", "xor", "nccl"])
def test_alltoall_has_so_many_rounds_under_way(peers: int, algorithm: str) -> None:
    (trial,) = trials("alltoall", "rail_clos:hosts=8,gpus_per_host=1", sizes="1KiB",
                      peers=str(peers), algorithm=algorithm)  # fmt: skip
    for schedule in trial.compile():
        sends = [one for one in schedule.operations if hasattr(one, "local")]
        assert len([one for one in sends if not one.after]) == min(peers, 7)


def test_rounds_that_are_one_after_the_other_have_no_peers_at_a_time() -> None:
    with pytest.raises(UserError, match="peers changes nothing beside algorithm=bruck: leave"):
        trials("alltoall", "rail_clos:hosts=8,gpus_per_host=1", algorithm="bruck", peers="2")


def test_names_of_the_nccl_tests_stand_for_ours() -> None:
    chosen = scenario.load("allreduce")
    given = {"minbytes": "64KiB", "maxbytes": "1MiB", "stepfactor": "4", "iters": "3",
             "warmup_iters": "0"}  # fmt: skip
    parameters = chosen.parameters(given)
    assert parameters.sweep == (65536, 262144, 1048576)
    assert (parameters.iterations, parameters.warmups) == (3, 0)
    with pytest.raises(UserError, match="minbytes and min_size are one parameter"):
        chosen.parameters({"minbytes": "64KiB", "min_size": "64KiB"})


def test_without_a_check_nothing_is_compared() -> None:
    (trial,) = trials("allreduce", "rail_clos:hosts=2,gpus_per_host=1", sizes="64", check="0")
    assert not trial.checked
    assert trial.expected(0) == {}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"ranks": "/x"}, "write all, host, rail, /64, or ranks such as 0-3,8"),
        ({"ranks": "/0"}, "write all, host, rail, /64, or ranks such as 0-3,8"),
        ({"ranks": "/3"}, "one of rank 3 alone"),
        ({"ranks": "0-9"}, "rank 9 does not exist: the topology has ranks 0 to 3"),
        ({"ranks": "two"}, "write all, host, rail, /64, or ranks such as 0-3,8"),
        ({"ranks": "2-1"}, "2-1 runs backwards"),
        ({"ranks": "0,1,0"}, "names rank 0 twice"),
        ({"ranks": "3"}, "one of rank 3 alone"),
        ({"ranks": ""}, "write all, host, rail, /64, or ranks such as 0-3,8"),
        ({"ranks": "²"}, "write all, host, rail, /64, or ranks such as 0-3,8"),
        ({"root": "4"}, "root is 4, and the communicator has positions 0 to 3"),
        ({"algorithm": "bush"}, "algorithm is 'bush'; choose one of ring, binomial"),
        ({"datatype": "int32", "data": "random"}, "data=random is for floats"),
        ({"datatype": "int64", "sizes": "100"}, "not divisible into 8-octet int64"),
        ({"slice_bytes": "10"}, "slice_bytes is 10, not a whole number of 4-octet"),
        ({"check": "2"}, "check is 2; it must lie in 0 .. 1"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises((UserError, TopologyError), match=why):
        trials("reduce", "rail_clos:hosts=2,gpus_per_host=2", **given)


def test_rounding_that_hides_everything_is_refused() -> None:
    with pytest.raises(UserError, match="leaves nothing to check over 128 GPUs"):
        trials("allreduce", "rail_clos:hosts=64,gpus_per_host=2", sizes="1KiB",
               datatype="bfloat16", data="random")  # fmt: skip


@pytest.mark.parametrize("name", [*PARTS, *WHOLE])
def test_one_gpu_is_not_enough(name: str) -> None:
    with pytest.raises(UserError, match="needs at least two GPUs and topology"):
        trials(name, "rail_clos:hosts=1,gpus_per_host=1")


@pytest.mark.parametrize("name", PARTS)
def test_a_part_has_at_least_sixteen_octets(name: str) -> None:
    with pytest.raises(UserError, match="no 16 octets for each of 4 ranks; take 64 B or more"):
        trials(name, "rail_clos:hosts=2,gpus_per_host=2", sizes="60")


def test_hierarchical_needs_uniform_hosts() -> None:
    (trial,) = trials("allreduce", "rail_clos:hosts=3,gpus_per_host=3", sizes="96",
                      algorithm="hierarchical", ranks="0-3,8")  # fmt: skip
    with pytest.raises(UserError, match="equally many GPUs of each host, and there are 3, 1, 1"):
        trial.compile()
