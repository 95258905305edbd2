"""Ring order, reduce-scatter and all-gather, proven in memory."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import UserError
from emulator.sim.endpoint.operations.schedule import Copy, Write
from scenarios.collectives import ring
from scenarios.collectives.blocks import Ring
from scenarios.collectives.communicators import Communicator
from scenarios.collectives.program import Program
from tests.harness.examples import examples
from tests.harness.runs.schedule_executor import Executor, hazards
from topologies.catalogue import load


def grid(hosts: int, width: int) -> list[list[int]]:
    return [[host * width + local for local in range(width)] for host in range(hosts)]


def shuffled_rings(hosts: int, width: int, seed: int) -> list[Ring]:
    topology = load(f"rail_clos:hosts={hosts},gpus_per_host={width}")
    return Communicator(tuple(range(hosts * width)), topology, seed).rings


def compile_allreduce(
    hosts: int, width: int, elements: int, slice_bytes: int, rings: list[Ring] | None = None
) -> Program:
    program = Program([rank // width for rank in range(hosts * width)])
    for rank in range(hosts * width):
        program.allocate(rank, "input", 4 * elements)
        program.allocate(rank, "output", 4 * elements)
    parts = ring.channels(rings or ring.rail_rings(grid(hosts, width)), elements, 4)
    ready = ring.reduce_scatter(
        program,
        parts,
        source="input",
        result="output",
        staging="staging",
        slice_bytes=slice_bytes,
        dtype="float32",
    )
    ring.all_gather(program, parts, result="output", slice_bytes=slice_bytes, ready=ready)
    return program


@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 8])
def test_rail_rings_visit_every_rank_once(hosts: int, width: int) -> None:
    rings = ring.rail_rings(grid(hosts, width))
    assert len(rings) == width
    for order in rings:
        assert sorted(order) == list(range(hosts * width))


@pytest.mark.parametrize("hosts", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 8])
def test_rail_rings_stay_on_their_rail_and_share_the_nics_evenly(hosts: int, width: int) -> None:
    sends: Counter[int] = Counter()
    receives: Counter[int] = Counter()
    crossings = 0
    for order in ring.rail_rings(grid(hosts, width)):
        for rank, successor in zip(order, (*order[1:], order[0]), strict=True):
            if rank // width != successor // width:
                sends[rank] += 1
                receives[successor] += 1
                crossings += rank % width != successor % width
    assert set(sends.values()) == {1}
    assert set(receives.values()) == {1}
    assert len(sends) == len(receives) == hosts * width
    assert crossings == (width if hosts % 2 and width > 1 else 0)


@pytest.mark.parametrize(("hosts", "width"), [(1, 8), (2, 8), (3, 8), (4, 4), (2, 2)])
def test_rings_over_a_mesh_use_each_link_once_each_way(hosts: int, width: int) -> None:
    rings = ring.rail_rings(grid(hosts, width), shape="mesh")
    hops = [hop for order in rings for hop in zip(order, (*order[1:], order[0]), strict=True)]
    inside = [(a, b) for a, b in hops if a // width == b // width]
    assert len(inside) == len(set(inside)) == hosts * width * (width - 1)
    assert all(sorted(order) == list(range(hosts * width)) for order in rings)
    rails = [(a % width, b % width) for a, b in hops if a // width != b // width]
    assert sum(a != b for a, b in rails) == (width if hosts % 2 and hosts > 1 else 0)


def test_the_drawing_of_channel_0() -> None:
    first = ring.rail_rings(grid(4, 4))[0]
    assert [rank % 4 for rank in first] == [0, 2, 3, 1, 1, 3, 2, 0, 0, 2, 3, 1, 1, 3, 2, 0]


def test_uneven_servers_are_refused() -> None:
    with pytest.raises(UserError, match="equally many GPUs"):
        ring.rail_rings([[0, 1], [2]])


def test_shuffled_rings_are_a_seeded_relabelling() -> None:
    assert shuffled_rings(4, 2, 7) == shuffled_rings(4, 2, 7)
    assert shuffled_rings(4, 2, 7) != shuffled_rings(4, 2, 8)
    for order in shuffled_rings(4, 2, 7):
        assert sorted(order) == list(range(8))


@given(elements=st.integers(0, 200), parts=st.integers(1, 20), first=st.integers(0, 5))
def test_split_covers_every_element_once_and_evenly(elements: int, parts: int, first: int) -> None:
    blocks = ring.split(elements, parts, 4, first=first)
    assert len(blocks) == parts
    position = 4 * first
    for block in blocks:
        assert block.offset == position
        position += block.length
    assert position == 4 * (first + elements)
    assert max(b.length for b in blocks) - min(b.length for b in blocks) <= 4


@examples(40)
@given(
    hosts=st.integers(1, 4),
    width=st.integers(1, 3),
    elements=st.integers(1, 60),
    slice_elements=st.integers(1, 8),
    seed=st.integers(0, 2**32),
    shuffled=st.booleans(),
)
def test_allreduce_equals_numpy_in_any_legal_order(
    hosts: int, width: int, elements: int, slice_elements: int, seed: int, shuffled: bool
) -> None:
    ranks = hosts * width
    if ranks < 2:
        return
    rings = shuffled_rings(hosts, width, seed) if shuffled else None
    program = compile_allreduce(hosts, width, elements, 4 * slice_elements, rings)
    executor = Executor(program.schedules(), random.Random(seed))
    rng = np.random.default_rng(seed)
    inputs = rng.integers(-1000, 1000, (ranks, elements)).astype("float32")
    for rank in range(ranks):
        executor.memory[rank]["input"].view("float32")[:] = inputs[rank]
    executor.run()
    for rank in range(ranks):
        np.testing.assert_array_equal(
            executor.memory[rank]["output"].view("float32"), inputs.sum(axis=0)
        )
        np.testing.assert_array_equal(executor.memory[rank]["input"].view("float32"), inputs[rank])


def test_the_hazard_check_sees_a_race() -> None:
    """An all-gather right after a reduce-scatter in the same buffer: its writes race with reads."""
    program = Program([0, 1])
    for rank in range(2):
        program.allocate(rank, "data", 16)
    parts = ring.channels([(0, 1)], 4, 4)
    ready = ring.reduce_scatter(
        program,
        parts,
        source="data",
        result="data",
        staging="staging",
        slice_bytes=16,
        dtype="float32",
    )
    ring.all_gather(program, parts, result="data", slice_bytes=16, ready=ready)
    assert hazards(program.schedules())


@pytest.mark.parametrize(("hosts", "width"), [(6, 4), (3, 4), (2, 2)])
def test_every_rank_sends_its_share_and_no_more(hosts: int, width: int) -> None:
    ranks = hosts * width
    elements = 12 * ranks * width
    schedules = compile_allreduce(hosts, width, elements, 16).schedules()
    for schedule in schedules:
        fabric = sum(op.local.length for op in schedule.operations if isinstance(op, Write))
        inside = sum(op.local.length for op in schedule.operations if isinstance(op, Copy))
        assert fabric + inside == 2 * (ranks - 1) * 4 * elements // ranks
        assert fabric == (fabric + inside) // width
