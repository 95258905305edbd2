"""All scenarios, compiled for some of the GPUs: theirs are as in the whole, others have buffers."""

import gc
from pathlib import Path

import pytest

from emulator import scenario
from emulator.scenario import Trial
from emulator.sim.endpoint.operations.schedule import Schedule, only_operations_of
from tests.harness.runs.wanted_parts import assert_parts
from topologies.catalogue import load
from topologies.model import Topology

#: Fabrics that are smaller than those by default.
SMALL = "rail_clos:hosts=3,gpus_per_host=2,spines=1"
COLLECTIVES = (
    *("allgather", "allreduce", "alltoall", "alltoallv", "barrier", "broadcast", "gather"),
    *("reduce", "reducescatter", "scatter", "sendrecv"),
)
#: Rows that need no more to be of every kind of operation.
GIVEN = {name: {"sizes": "768,64KiB"} for name in COLLECTIVES if name != "barrier"} | {
    "moe": {"tokens": "4", "hidden": "8", "experts": "16", "feed_forward": "8"},
    "lbsweep": {"size": "64KiB"},
}
#: Networks in other shapes than by default.
SHAPES = [
    ("fnn", {"widths": "4,6,5,3", "epochs": "3"}),
    ("model_parallel", {"show": "steps"}),
    ("data_parallel", {"widths": "3,5,1", "epochs": "2", "resumed": "1"}),
    ("convolutional", {"side": "7", "epochs": "2"}),
    ("recurrent", {"length": "3", "epochs": "2"}),
    ("attention", {"parts": "4", "blocks": "3", "epochs": "2", "rate": "0.002"}),
    ("attention", {"parts": "1"}),
    ("tensor_parallel", {"parts": "4", "widths": "8,8,4"}),
    ("pipeline_parallel", {"stages": "2", "micro_batches": "3"}),
    ("three_d", {"groups": "3", "micro_batches": "3", "epochs": "2"}),
    ("model_fit", {"models": "405b", "layers": "2", "scale": "262144"}),
    ("model_fit", {"models": "8b", "layers": "2"}),
]


def made(name: str, given: dict[str, str]) -> tuple[Topology, list[Trial]]:
    """Return the trials of a scenario as it makes them, without what keeps schedules for it."""
    found = scenario.load(name)
    parameters = found.parameters(given)
    fabric = SMALL if name in COLLECTIVES else found.topology(parameters)
    topology = load(fabric) if isinstance(fabric, str) else fabric
    return topology, found.module.schedules(parameters, topology, 1)


def of_default(name: str, folder: Path) -> dict[str, str]:
    """Return the parameters of a scenario that needs some, or whose rows are large."""
    if name != "trace":
        return GIVEN.get(name, {})
    trace = folder / "a.csv"
    trace.write_text("operation,size,ranks,root,duration\ncompute,,,,8us\nall_reduce,4KiB\n")
    return {"files": str(trace), "ranks": "4"}


def kept_schedules() -> list[Schedule]:
    """Return all schedules in memory that have operations."""
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, Schedule) and len(one.operations)]


def assert_compiled_in_part(name: str, given: dict[str, str]) -> None:
    """Assert that ranks which want few operations get those alone, as the whole has them."""
    topology, trials = made(name, given)
    ranks = range(len(topology.gpus))
    for trial in trials:
        whole = trial.compile()
        for some in ({0}, {len(ranks) - 1}, set(ranks[1::2]), set(ranks[: len(ranks) // 2])):
            with only_operations_of(some):
                part = trial.compile()
            assert_parts(part, whole, frozenset(some))


@pytest.mark.parametrize("name", scenario.names())
def test_a_wanted_schedule_is_that_of_the_whole(name: str, tmp_path: Path) -> None:
    assert_compiled_in_part(name, of_default(name, tmp_path))


@pytest.mark.parametrize(("name", "given"), SHAPES)
def test_networks_of_any_shape_are_compiled_in_part(name: str, given: dict[str, str]) -> None:
    assert_compiled_in_part(name, given)


@pytest.mark.parametrize("name", scenario.names())
def test_trials_keep_no_operations(name: str, tmp_path: Path) -> None:
    given = of_default(name, tmp_path)
    before = kept_schedules()
    _, trials = made(name, given)
    assert trials
    assert len(kept_schedules()) == len(before)
