"""Compiles for some of the GPUs: their schedules are those of the whole, others have buffers."""

from itertools import product

import pytest

from emulator.sim.endpoint.operations.schedule import (
    Barrier,
    Receive,
    Reduce,
    Region,
    Write,
    only_operations_of,
)
from scenarios.collectives.program import Program
from scenarios.traces.replay import Replay, ReplayChoice
from scenarios.traces.trace_model import Collective, Trace, TraceCollective, TraceCompute
from tests.harness.runs.collective_benchmarks import ALL, IN_PLACE
from tests.harness.runs.wanted_parts import assert_parts
from tests.scenarios.collectives.test_collective_schedules import trial
from topologies.catalogue import load

#: Powers of two and other numbers, one GPU a host and several.
FABRICS = ("rail_clos:hosts=3,gpus_per_host=2", "rail_clos:hosts=4,gpus_per_host=1")
#: Both members of a host, and some of several.
WANTED = (frozenset({0, 1}), frozenset({3}), frozenset({1, 2}))


@pytest.mark.parametrize(("name", "algorithm"), ALL)
def test_the_wanted_schedules_are_those_of_the_whole(name: str, algorithm: str) -> None:
    given = {"sizes": "768", "algorithm": algorithm}
    variants = [given]
    if name in IN_PLACE:
        variants.append({**given, "in_place": "1"})
    if name in ("allreduce", "reducescatter", "reduce"):
        variants.append({**given, "op": "avg"})
    for spec, chosen in product(FABRICS, variants):
        whole = trial(name, spec, **chosen).compile()
        for ranks in WANTED:
            with only_operations_of(ranks):
                some = trial(name, spec, **chosen).compile()
            assert_parts(some, whole, ranks)


@pytest.mark.parametrize("kind", Collective)
def test_traces_are_written_in_part(kind: Collective) -> None:
    group = (0, 1, 2, 3, 5)
    root = 3 if kind.rooted else None
    operations = [
        TraceCompute(where="line 1", duration_ns=7),
        TraceCollective(where="line 2", after=(0,), kind=kind, octets=400, group="g", root=root),
    ]
    lists = tuple(operations if rank in group else [] for rank in range(6))
    choice = ReplayChoice(compute_scale=1.0, slice_bytes=64, seed=3)
    replay = Replay(Trace("t", lists, {"g": group}), load(FABRICS[0]), choice)
    for ranks in WANTED:
        with only_operations_of(ranks):
            some = replay.compile()
        assert_parts(some, replay.compile(), ranks)


def test_a_program_keeps_no_operation_that_is_not_wanted() -> None:
    with only_operations_of({1}):
        program = Program(range(4))
    block = Region("data", 0, 8)
    for source in range(4):
        program.transfer(source, (source + 1) % 4, block, block)
        program.reduce(source, block, block, dtype="int8")
        program.append(source, Barrier(name="all"))
    kept = [one.operations for one in program.schedules()]
    assert [len(one) for one in kept] == [0, 4, 0, 0]
    assert [type(one) for one in kept[1]] == [Receive, Write, Reduce, Barrier]
