"""The AllReduce scenario: parameters, schedules and its ideal time, without any kernel."""

import numpy as np
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.measures.ideal import ideal_ns
from emulator.scenario import Trial
from emulator.sim.endpoint.operations.gpu_memory import Layout
from emulator.sim.endpoint.operations.operation_table import OperationTable
from emulator.sim.endpoint.operations.schedule_program import ScheduleProgram
from emulator.transports.wire_cost import WireCost
from topologies.catalogue import load

WIRE = WireCost(around_bytes=122, payload_mtu=4096)


def trials(
    spec: str = "rail_clos:hosts=2,gpus_per_host=2", seed: int = 1, **given: str
) -> list[Trial]:
    allreduce = scenario.load("allreduce")
    return allreduce.schedules(allreduce.parameters(given), load(spec), seed)


def test_the_default_sweep() -> None:
    assert [trial.size_bytes for trial in trials()] == [2**15, 2**19, 2**23]


def test_agents_accept_the_schedules_of_the_reference_cluster() -> None:
    topology = load("rail_clos")
    (trial,) = trials("rail_clos", sizes="1MiB")
    schedules = trial.compile()
    layouts = {schedule.rank: Layout(schedule.buffers) for schedule in schedules}
    gpus = topology.gpus
    for schedule in schedules:
        server = [r for r, gpu in enumerate(gpus) if gpu.server == gpus[schedule.rank].server]
        ScheduleProgram(schedule, layouts, fabric=range(len(gpus)), scale_up=server)


def test_sums_are_exact_in_any_order() -> None:
    (trial,) = trials(sizes="64KiB")
    parts = [trial.inputs(rank)["input"].astype(np.int64) for rank in range(4)]
    assert np.abs(parts).sum(axis=0).max() <= 2**24
    np.testing.assert_array_equal(sum(parts), trial.expected(0)["output"].astype(np.int64))


def test_inputs_depend_on_seed_rank_and_size() -> None:
    (one,), (other,) = trials(sizes="64"), trials(sizes="64", seed=2)
    assert np.array_equal(one.inputs(0)["input"], trials(sizes="64")[0].inputs(0)["input"])
    assert not np.array_equal(one.inputs(0)["input"], one.inputs(1)["input"])
    assert not np.array_equal(one.inputs(0)["input"], other.inputs(0)["input"])


@pytest.mark.parametrize(
    ("spec", "order", "hops"),
    [
        ("rail_clos", "rail", 0),
        ("rail_clos:hosts=3,gpus_per_host=4", "rail", 4),
        ("rail_clos:hosts=3,gpus_per_host=1", "rail", 0),
        ("rail_clos:hosts=1,gpus_per_host=4", "rail", 0),
    ],
)
def test_cross_rail_hops_are_told(spec: str, order: str, hops: int) -> None:
    (trial,) = trials(spec, sizes="1MiB", order=order)
    assert trial.facts["cross_rail_hops"] == hops


def test_shuffled_placement_crosses_rails_and_loads_the_nics() -> None:
    topology = load("rail_clos")
    (rail,) = trials("rail_clos", sizes="16MiB")
    (shuffled,) = trials("rail_clos", sizes="16MiB", order="shuffled")
    assert int(str(shuffled.facts["cross_rail_hops"])) > 30
    ratio = ideal_ns(topology, shuffled.compile(), WIRE) / ideal_ns(topology, rail.compile(), WIRE)
    assert ratio > 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sizes": "10"}, "take 12 B"),
        ({"sizes": "2"}, "take 4 B"),
        ({"sizes": "64 parsecs"}, "unknown unit"),
        ({"sizes": ","}, "sizes is empty"),
        ({"min_size": "1MiB", "max_size": "64KiB"}, "max_size of at least"),
        ({"factor": "1"}, "factor of at least 2"),
        ({"slice_bytes": "6"}, "multiple of 4"),
        ({"order": "rial"}, "did you mean rail"),
        ({"iteration": "3"}, "did you mean iterations"),
        ({"iterations": "0"}, "must lie in 1"),
        ({"iterations": "many"}, "whole number"),
    ],
)
def test_bad_parameters_are_one_sentence(given: dict[str, str], words: str) -> None:
    with pytest.raises((UserError, ValueError), match=words) as caught:
        scenario.load("allreduce").parameters(given)
    assert "\n" not in str(caught.value)


def test_slices_that_would_never_compile_are_refused() -> None:
    (trial,) = trials("rail_clos", sizes="8MiB", slice_bytes="4")
    with pytest.raises(UserError, match=r"take slice_bytes=\d+ or more") as caught:
        trial.compile()
    enough = str(caught.value).partition("slice_bytes=")[2].split()[0]
    (trial,) = trials("rail_clos", sizes="8MiB", slice_bytes=str(4 * int(enough)))
    assert trial.compile()


def test_the_program_of_512_gpus_is_small() -> None:
    """Ten million operations at fifty octets each, of which every GPU has as many."""
    allreduce = scenario.load("allreduce")
    topology = load("clos:hosts=64,gpus_per_host=8")
    (trial,) = allreduce.schedules(allreduce.parameters({"sizes": "1MiB"}), topology, 1)
    tables = [schedule.operations for schedule in trial.compile()]
    assert {len(table) for table in tables} == {5 * 511 * 8}
    octets = sum(
        sum(column.nbytes for column in (*table.columns.values(), table.begin, table.after))
        for table in tables
        if isinstance(table, OperationTable)
    )
    assert 0 < octets < 50 * 512 * len(tables[0])


def test_warmups_may_be_left_out() -> None:
    assert trials(sizes="64", warmups="0")[0].warmups == 0
