"""Runs over scale-up networks of every shape: right, and never faster than the ideal."""

from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests.harness.runs.processes import ended

#: Every GPU that the scale-up network joins to rank 0 copies to it at once.
GATHER = '''"""Fan-in over the scale-up network."""
from dataclasses import dataclass

import numpy as np

from emulator.scenario import Trial
from scenarios.collectives.program import Program
from topologies.parts.scale_up import ScaleUpDomains

SIZE = 1 << 20


@dataclass(frozen=True)
class Parameters:
    pass


def topology(parameters):
    return "rail_clos:hosts=1,gpus_per_host=4"


def schedules(parameters, topology, seed):
    peers = ScaleUpDomains(topology).peers("h0g0")
    senders = [r for r, gpu in enumerate(topology.gpus) if gpu.name in peers]

    def program():
        made = Program.on(topology)
        for rank in range(len(topology.gpus)):
            made.allocate(rank, "own", SIZE)
        for rank in senders:
            made.transfer(rank, 0, made.allocate(rank, "out", SIZE), made.allocate(0, "in", SIZE))
        return made.schedules()

    def content(rank):
        return np.full(SIZE, rank, np.uint8)

    return [
        Trial(
            collective="gather",
            size_bytes=SIZE,
            compile=program,
            inputs=lambda rank: {"out": content(rank)} if rank in senders else {},
            expected=lambda rank: {}
            if rank
            else {"in": np.concatenate([content(sender) for sender in senders])},
        )
    ]


def measures(parameters, topology, trial, outcome):
    return {}
'''


@pytest.mark.parametrize(
    ("parameters", "gather_us"),
    [  # 1 MiB is 2.33 us at 450 GB/s
        ("", 3 * 2.33),
        (",scale_up=mesh", 3 * 2.33),
        (",scale_up=ring", 2 * 2.33),
        (",scale_up=nvswitch2", 3 * 3.5),  # 300 GB/s, which three copies share
        (",scale_up=mi300x", 16.4),  # each has a link of 64 GB/s
    ],
)
def test_a_gather_takes_what_the_receiver_can_take(
    start: Callable[..., RunProcess], tmp_path: Path, parameters: str, gather_us: float
) -> None:
    path = tmp_path / "gather.py"
    path.write_text(GATHER)
    run = start(
        *("--topology", f"rail_clos:hosts=1,gpus_per_host=4{parameters}"),
        *("--capture", "none"),
        scenario=str(path),
    )
    ended(run)
    (row,) = run.result["rows"]
    assert row["wrong"] == 0
    assert row["ideal_us"] == pytest.approx(gather_us + 0.7, rel=0.01)
    assert row["time_min_us"] >= row["ideal_us"] * 0.999


@pytest.mark.parametrize(
    ("fault", "gather_us"),
    [
        ("t=0us scale-up h0g0 links=6", 3 * 2.33 * 3),
        ("t=2us scale-up h0g0 links=6; t=5us heal", 3 * 2.33 + 2),
        ("t=2us scale-up h0g0 down; t=22us up", 3 * 2.33 + 20),
    ],
)
def test_copies_into_a_gpu_share_the_links_that_it_has_left(
    start: Callable[..., RunProcess], tmp_path: Path, fault: str, gather_us: float
) -> None:
    path = tmp_path / "gather.py"
    path.write_text(GATHER)
    run = start(
        *("--topology", "rail_clos:hosts=1,gpus_per_host=4,scale_up=nvswitch3", "--fabric"),
        *("model", "--fault", fault, "--capture", "none"),
        scenario=str(path),
    )
    out = ended(run)
    (row,) = run.result["rows"]
    assert row["time_min_us"] == pytest.approx(gather_us + 0.7, rel=0.01)
    assert row["slowdown"] == pytest.approx((gather_us + 0.7) / (3 * 2.33 + 0.7), rel=0.02)
    assert f"{fault.partition(';')[0]}: inside the server" in out


@pytest.mark.parametrize(
    "parameters",
    ["gpus_per_host=4,scale_up=ring", "gpus_per_host=4,scale_up=mesh"],
)
def test_allreduce_over_links_without_a_switch(
    start: Callable[..., RunProcess], parameters: str
) -> None:
    run = start(
        *("--topology", f"rail_clos:hosts=2,{parameters}", "--sizes", "16KiB"),
        *("--iterations", "1", "--capture", "none"),
    )
    ended(run)
    (row,) = run.result["rows"]
    assert row["wrong"] == 0
    assert row["cross_rail_hops"] == 0  # the ring stays on links and rails
    assert row["efficiency"] <= 1


def test_a_domain_of_several_servers_keeps_its_traffic(start: Callable[..., RunProcess]) -> None:
    run = start(
        *("--topology", "rail_clos:hosts=4,gpus_per_host=2,scale_up_hosts=4", "--sizes", "16KiB"),
        *("--iterations", "1", "--capture", "none"),
    )
    ended(run)
    (row,) = run.result["rows"]
    assert row["wrong"] == 0
    assert row["data_packets"] == 0  # all GPUs are in one network
    copies = [counters["scale_up.copies_out"] for counters in run.result["endpoints"].values()]
    assert min(copies) > 0


def test_a_time_below_the_ideal_is_an_internal_error(
    start: Callable[..., RunProcess], tmp_path: Path
) -> None:
    """A bound that is far too high ends the run with an error; what was measured is kept."""
    path = tmp_path / "gather.py"
    too_high = (
        "from emulator.run.plan import trial_load\n\ntrial_load.ideal_ns = lambda *_, **__: 1e6\n"
    )
    path.write_text(GATHER.replace("SIZE = 1 << 20\n", f"SIZE = 1 << 10\n{too_high}"))
    run = start("--capture", "none", scenario=str(path))
    status, out, err = run.communicate()
    assert status == 1, (out, err)
    assert "internal error: an iteration took" in err
    (error,) = run.result["errors"]
    assert error.startswith("row 1: internal error: an iteration took")
    assert "less than the ideal time of 1000.000 us" in error
    assert run.result["rows"][0]["wrong"] == 0
