"""A run comes to the same frames, times and files with any number of workers, or of MPI ranks."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.pytest_plugin.runs import RunProcess
from emulator.sim.endpoint.operations.schedule import (
    Barrier,
    Compute,
    Operation,
    Receive,
    Region,
    Schedule,
    Write,
)
from tests.harness.engine.bench_of_gpus import gpu_bench
from tests.harness.nightly import nightly
from tests.harness.runs.processes import begun, ended
from tests.harness.runs.ranked_runs import left_by, ranked
from tests.harness.runs.whole_run import assert_same_files
from tests.system.engine.test_run_digests import REPEATED

EIGHT = ("--topology", "rail_clos:hosts=2,gpus_per_host=4,spines=2")
#: Leaf switches, where there are fewer than the most workers here.
MOST = {"two ports": 2}
LOOKAHEAD_NS = 600  # a cable
TWELVE = ("--topology", "rail_clos:hosts=3,gpus_per_host=4,spines=2")
SEEN = ("--capture", "all", "--snaplen", "full", "--iterations", "1")
RUNS = {
    "rails": ("allreduce", *EIGHT, "--sizes", "4KiB,16KiB", "--event-log", "all"),
    "sprayed": (
        "permutation",
        *EIGHT,
        "--sizes",
        "64KiB",
        "--transport",
        "rocev2@deep:balance=packet",
    ),
    "trimmed": (
        *("incast", *TWELVE, "--param", "placement=any", "--param", "senders=6"),
        *("--param", "size=128KiB"),
    ),
    "struck": (
        *("permutation", *EIGHT, "--sizes", "128KiB", "--switch", "shallow"),
        *("--fault", "t=3us link rail0:up0 down; t=5us link rail1:up1 rate=100G; t=30us heal"),
    ),
    "two ports": ("permutation", "--topology", "pod:hosts=2,gpus_per_host=4", "--sizes", "64KiB"),
    "paused": (
        *("incast", *TWELVE, "--param", "placement=any", "--param", "senders=6"),
        *("--param", "size=128KiB", "--transport", "rocev2:adaptive"),
    ),
    "pulled behind a pipeline": (
        *("permutation", *EIGHT, "--sizes", "64KiB", "--switch", "shallow:latency=400ns"),
        *("--fault", "t=3us link rail0:up0 down; t=30us link rail0:up0 up"),
    ),
    "replayed and credited": (
        *("permutation", *EIGHT, "--sizes", "64KiB", "--switch", "lossless:llr=on,cbfc=on"),
        *("--fault", "t=0 link rail0:up0 ber=1e-6; t=5us link rail1:up1 down; t=30us up"),
    ),
    "quick scale-up": (
        *("allreduce", "--topology"),
        "rail_clos:hosts=2,gpus_per_host=4,spines=2,scale_up_latency=50ns",
        *("--sizes", "64KiB"),
    ),
    "exchanged": ("alltoall", *EIGHT, "--sizes", "16KiB"),
    "secured": ("allreduce", *EIGHT, "--sizes", "16KiB", "--transport", "uet:tss=cluster"),
}
#: How many ranks besides: what they exchange differs from that of workers of one machine, which
#: share memory, tables of the switch program, and files.
RANKS = {
    "rails": (2,),
    "struck": (2,),
    "paused": (4,),
    "replayed and credited": (2,),
}
MORE_RANKS = {
    "rails": (4,),
    "quick scale-up": (2,),
    "struck": (4,),
    "paused": (2, 3),
    "exchanged": (2, 4),
    "sprayed": (2,),
    "trimmed": (3,),
    "two ports": (2,),
    "pulled behind a pipeline": (3,),
    "secured": (4,),
}


def with_workers() -> Iterator[object]:
    """Yield each run with two workers or with three, in turn, and at night with the others."""
    for number, name in enumerate(RUNS):
        now, later = (2, 3) if number % 2 else (3, 2)
        yield name, now
        yield nightly((name, later))


@pytest.mark.root
@pytest.mark.parametrize(("name", "workers"), list(with_workers()))
def test_files_are_equal(name: str, workers: int, tmp_path: Path) -> None:
    scenario, *arguments = RUNS[name]
    runs = {
        count: begun(tmp_path, "--workers", str(count), *SEEN, *arguments, scenario=scenario)
        for count in (1, workers)
    }
    for count, run in runs.items():
        ended(run)
        environment = json.loads((run.folder / "environment.json").read_text())
        assert environment["workers"] == min(count, MOST.get(name, count))
    alone, *others = runs.values()
    others += [spread(name, count, tmp_path) for count in RANKS.get(name, ())]
    for other in others:
        assert_equal(alone, other)


@pytest.mark.root
def test_files_are_equal_for_parts_by_hand(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    parts.write_text(
        "rail0 rail3  # both spines are with the second\n\nrail1 rail2 spine0 spine1\n"
    )
    scenario, *arguments = RUNS["rails"]
    given = (("--workers", "1"), ("--parts", str(parts)))
    runs = [begun(tmp_path, *one, *SEEN, *arguments, scenario=scenario) for one in given]
    for run in runs:
        ended(run)
    assert json.loads((runs[1].folder / "environment.json").read_text())["workers"] == 2
    assert_equal(*runs)


@pytest.mark.root
@pytest.mark.nightly
@pytest.mark.parametrize("name", MORE_RANKS)
def test_files_of_more_ranks_are_equal(name: str, tmp_path: Path) -> None:
    scenario, *arguments = RUNS[name]
    alone = begun(tmp_path, "--workers", "1", *SEEN, *arguments, scenario=scenario)
    ended(alone)
    for count in MORE_RANKS[name]:
        assert_equal(alone, spread(name, count, tmp_path))


def spread(name: str, count: int, folder: Path) -> RunProcess:
    """The run called ``name``, when ``count`` ranks have done it."""
    scenario, *arguments = RUNS[name]
    run = ranked(folder, count, *SEEN, *arguments, scenario=scenario)
    ended(run)
    assert not left_by(run, count)
    return run


def assert_equal(one: RunProcess, other: RunProcess) -> None:
    logs = [path.relative_to(one.folder) for path in sorted(one.folder.glob("event-logs/*"))]
    assert_same_files(one.folder, other.folder, (*REPEATED, *logs))


LATE_NS = 5_000
MESSAGE = Region("x", 0, 4096)


def schedules() -> list[Schedule]:
    """Every rank writes to the next, meets all others, and writes again; rank 1 comes late."""
    made = []
    for rank in range(4):
        near, far = (rank + 1) % 4, (rank - 1) % 4
        busy = Compute(duration_ns=LATE_NS if rank == 1 else 0)
        operations = (
            busy,
            Write(peer=near, tag=1, local=MESSAGE, remote=Region("y", 0, 4096), after=(0,)),
            Receive(peer=far, tag=1, into=Region("y", 0, 4096)),
            Barrier(name="all", after=(1, 2)),
            Write(peer=near, tag=2, local=MESSAGE, remote=Region("y", 4096, 4096), after=(3,)),
            Receive(peer=far, tag=2, into=Region("y", 4096, 4096)),
        )
        made.append(Schedule(rank=rank, buffers={"x": 4096, "y": 8192}, operations=operations))
    return made


@pytest.mark.root
def test_a_barrier_is_passed_by_all_a_lookahead_after_the_last_has_come() -> None:
    found = []
    for workers in (1, 2):
        name = f"t-{secrets.token_hex(4)}"
        spec = "rail_clos:hosts=2,gpus_per_host=2,spines=1"
        with gpu_bench(name, spec, workers=workers) as bench:
            assert len(bench.fabric.workers) == workers
            found.append(bench.run(schedules()))
    alone, shared = found
    for one, other in zip(alone, shared, strict=True):
        assert (one.start_ns, one.end_ns) == (other.start_ns, other.end_ns)
        assert list(one.operation_start) == list(other.operation_start)
        assert list(one.operation_end) == list(other.operation_end)
    last = max(max(one.operation_end[1], one.operation_end[2]) for one in alone)
    assert {one.operation_end[3] for one in alone} == {last + LOOKAHEAD_NS}


@pytest.mark.root
def test_barriers_of_one_instant_are_passed_in_the_order_of_their_names() -> None:
    """Two pairs of ranks complete a barrier each at the same time, and rank 4 waits at both."""
    found = []
    for workers in (1, 2):
        name = f"t-{secrets.token_hex(4)}"
        spec = "rail_clos:hosts=2,gpus_per_host=4,spines=1"
        with gpu_bench(name, spec, workers=workers) as bench:
            found.append([list(one.operation_end) for one in bench.run(of_two_barriers())])
    assert found[0] == found[1]


def of_two_barriers() -> list[Schedule]:
    operations: dict[int, tuple[Operation, ...]] = {
        0: (Compute(duration_ns=2000), Barrier(name="b", after=(0,))),
        1: (Compute(duration_ns=2000), Barrier(name="a", after=(0,))),
        4: (
            Barrier(name="a"),
            Barrier(name="b"),
            Write(peer=5, tag=1, local=MESSAGE, remote=Region("y", 0, 4096), after=(0,)),
            Write(peer=5, tag=2, local=MESSAGE, remote=Region("y", 4096, 4096), after=(1,)),
        ),
        5: (
            Receive(peer=4, tag=1, into=Region("y", 0, 4096)),
            Receive(peer=4, tag=2, into=Region("y", 4096, 4096)),
        ),
    }
    return [
        Schedule(rank=rank, buffers={"x": 4096, "y": 8192}, operations=operations.get(rank, ()))
        for rank in range(8)
    ]


IDLE_NS = 40_000
ROUNDS = 40


def local_schedules() -> list[Schedule]:
    """Ranks 0 and 2, on one leaf switch, write to and fro; the others compute all the time."""
    made = []
    for rank in range(4):
        if rank % 2:
            operations: list[Operation] = [Compute(duration_ns=IDLE_NS)]
        else:
            operations = []
            for tag in range(ROUNDS):
                after = (len(operations) - 1,) if operations else ()
                if rank == (2 * tag) % 4:
                    operations.append(
                        Write(
                            peer=2 - rank,
                            tag=tag,
                            local=MESSAGE,
                            remote=Region("y", 0, 4096),
                            after=after,
                        )
                    )
                else:
                    operations.append(
                        Receive(peer=2 - rank, tag=tag, into=Region("y", 0, 4096), after=after)
                    )
        buffers = {"x": 4096, "y": 4096}
        made.append(Schedule(rank=rank, buffers=buffers, operations=tuple(operations)))
    return made


@pytest.mark.root
def test_a_worker_with_idle_neighbours_goes_on_without_word_from_them() -> None:
    found, exchanges = [], 0
    for workers in (1, 2):
        name = f"t-{secrets.token_hex(4)}"
        spec = "rail_clos:hosts=2,gpus_per_host=2,spines=1"
        with gpu_bench(name, spec, workers=workers) as bench:
            before = bench.fabric.exchanges
            found.append(bench.run(local_schedules()))
            exchanges = bench.fabric.exchanges - before
    alone, shared = found
    for one, other in zip(alone, shared, strict=True):
        assert (one.start_ns, one.end_ns) == (other.start_ns, other.end_ns)
        assert list(one.operation_end) == list(other.operation_end)
    busy = max(one.end_ns for one in alone) - min(one.start_ns for one in alone)
    assert exchanges < busy / LOOKAHEAD_NS / 4
