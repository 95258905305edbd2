"""The choice of an algorithm by NCCL's model, against times reckoned by hand."""

from pathlib import Path

import pytest

from emulator import scenario
from emulator.errors import UserError
from scenarios.collectives.communicators import Communicator, communicators
from scenarios.collectives.tuning import NCCL_TUNING, choose_allreduce, read_tuning
from topologies.catalogue import load


def over(spec: str) -> Communicator:
    (communicator,) = communicators(load(spec), "all", "AllReduce")
    return communicator


def test_times_are_latency_and_size_over_bandwidth() -> None:
    """6 hosts of 4 GPUs with 400G NICs: 200 GB/s a host; 46 steps, of which 10 between hosts."""
    choice = choose_allreduce(NCCL_TUNING, over("rail_clos:hosts=4,gpus_per_host=4"), 10**6)
    ring = 6.6 + 24 * 0.6 + 6 * 2.7 + 10**6 / (1000 * 200 * 0.5 * 16 / 30)
    tree = 8.4 + 2 * (3 * 4.0 + 2 * 14) + 10**6 / (1000 * 200 * 0.92 / 2)
    assert choice.times_us["ring/LL"] == pytest.approx(ring)
    assert choice.times_us["tree/Simple"] == pytest.approx(tree)


@pytest.mark.parametrize(
    ("size", "algorithm"), [(4096, "double-tree"), (2**20, "double-tree"), (2**30, "ring")]
)
def test_trees_are_for_small_sizes(size: int, algorithm: str) -> None:
    choice = choose_allreduce(NCCL_TUNING, over("rail_clos"), size)
    assert choice.algorithm == algorithm
    assert choice.times_us[min(choice.times_us, key=choice.times_us.__getitem__)] > 0


def test_one_host_is_bound_by_its_scale_up_network() -> None:
    one = over("rail_clos:hosts=1,gpus_per_host=4")
    expected = 8.4 + 6 * 3.4 + 2**30 / (1000 * 450 * 4 / 6)  # 3.6 Tb/s a GPU
    times = choose_allreduce(NCCL_TUNING, one, 2**30).times_us
    assert times["ring/Simple"] == pytest.approx(expected)


def test_a_row_names_the_choice(tmp_path: Path) -> None:
    chosen, topology = scenario.load("allreduce"), load("rail_clos")
    path = tmp_path / "tuning.yaml"
    path.write_text("tree:\n  LL: {base_us: 1000}\n  LL128: {base_us: 1000}\n"
                    "  Simple: {base_us: 1000}\n")  # fmt: skip
    for given, algorithm in (({}, "double-tree"), ({"tuning": str(path)}, "ring")):
        parameters = chosen.parameters({"sizes": "64KiB", "algorithm": "auto", **given})
        (trial,) = chosen.schedules(parameters, topology, 1)
        assert trial.facts["algorithm"] == algorithm
        assert len(trial.facts["model_us"]) == 6


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "is not YAML"),
        ("", "has None where it has names of algorithms; known are ring, tree"),
        ("rings: {}", "has algorithm 'rings', did you mean ring|has algorithm 'rings'"),
        ("ring: {LL: {base_us: -1}}", "ring LL base_us is -1; write a number"),
        ("ring: {LL: {base_us: .inf}}", "ring LL base_us is inf; write a number"),
        ("ring: {LL: {bandwidth: 0}}", "ring LL bandwidth is 0; write a number, for bandwidth"),
        ("ring: {LL: {speed: 1}}", "has constant 'speed'"),
        ("ring: 7", "has 7 where it has names of protocols"),
    ],
)
def test_what_the_model_does_not_have_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "tuning.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=why):
        read_tuning(path)


def test_constants_that_decide_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="decides nothing with algorithm=ring; take algorithm=auto"):
        scenario.load("allreduce").parameters({"tuning": str(tmp_path / "tuning.yaml")})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file or directory; give a YAML file"):
        read_tuning(tmp_path / "none")
