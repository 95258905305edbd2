"""A log beside a run: which sizes are run with what, and what is made of the numbers."""

import pytest

from emulator.cli.predict import prediction
from emulator.cli.predict.prediction import (
    Limit,
    check_work,
    collective_of,
    parameters_of,
    run_once,
    scenario_of,
    sizes_of,
)
from emulator.errors import UserError
from emulator.nccl_tests import text_log
from emulator.nccl_tests.cluster_log import ClusterLog
from tests.harness.runs.cluster_logs import ROWS, log_2_9, log_2_17
from topologies.catalogue import load

FABRIC = load("rail_clos:hosts=2,gpus_per_host=2,spines=1")
LARGER = load("rail_clos:hosts=1,gpus_per_host=4,spines=1")


def read(log: str) -> ClusterLog:
    return text_log.read("a.log", log.splitlines())


def changed(old: str, new: str) -> ClusterLog:
    return read(log_2_17([row.replace(old, new, 1) for row in ROWS]))


def test_ranks_are_those_of_the_log() -> None:
    assert collective_of(read(log_2_17()), None, FABRIC) == "all_reduce"
    way_out = "4 ranks on 2 hosts, and .* 8 GPUs; .* rail_clos:hosts=2,gpus_per_host=2"
    with pytest.raises(UserError, match=way_out):
        collective_of(read(log_2_17()), None, load("rail_clos:hosts=2,gpus_per_host=4"))


def test_ranks_that_no_line_lists_follow_from_the_bandwidths() -> None:
    unlisted = read("\n".join(line for line in log_2_9().splitlines() if "Rank" not in line))
    assert collective_of(unlisted, "all_reduce", FABRIC) == "all_reduce"
    with pytest.raises(UserError, match=r"over 8 ranks it is 1.750"):
        collective_of(unlisted, "all_reduce", load("rail_clos:hosts=2,gpus_per_host=4"))


def test_a_collective_without_a_scenario_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulator.scenario.names", lambda: ["allreduce"])
    assert scenario_of(read(log_2_17()), "all_reduce").name == "allreduce"
    with pytest.raises(UserError, match=r"alltoall_perf, which no scenario runs.* are all_reduce$"):
        scenario_of(read(log_2_17()), "alltoall")


def test_sizes_are_limited_only_as_the_user_says() -> None:
    log = read(log_2_17())
    assert [(one.size, one.run) for one in sizes_of(log, Limit())] == [
        (65536, 65536), (4194304, 4194304),
    ]  # fmt: skip
    assert [(one.size, one.run) for one in sizes_of(log, Limit(octets=2**20))] == [(65536, 65536)]
    cut = sizes_of(log, Limit(octets=2**20, cut=True))
    assert [(one.size, one.run) for one in cut] == [(65536, 65536), (4194304, 2**20)]
    with pytest.raises(UserError, match=r"all sizes of a.log are above --largest 4 KiB"):
        sizes_of(log, Limit(octets=4096))


def test_a_size_of_nothing_is_left_out_and_rows_of_one_size_are_one() -> None:
    empty = " 0  0 float sum -1  5.0 0.00 0.00 0 5.0 0.00 0.00 0"
    log = read(
        log_2_17([empty, *ROWS, ROWS[0].replace("24.51    2.67    4.01", "26.51    2.47    3.71")])
    )
    first, second = sizes_of(log, Limit())
    assert (first.size, len(first.rows), len(second.rows)) == (65536, 2, 1)
    times, in_place = first.times(in_place=False)
    assert times.time_us == pytest.approx(25.51)
    assert not in_place
    with pytest.raises(UserError, match="rows of size 0 only"):
        sizes_of(read(log_2_17([empty])), Limit())


def test_too_much_work_asks_for_a_limit() -> None:
    log = read(log_2_17())
    sizes = sizes_of(log, Limit())
    check_work(log.source, sizes, 4, 2)
    with pytest.raises(UserError, match=r"a.log, line 14: .* --largest 64MiB .* --cut-to 64MiB"):
        check_work(log.source, sizes, 4, 4000)


def test_a_size_that_several_are_cut_to_is_run_once() -> None:
    sizes = sizes_of(read(log_2_17()), Limit(octets=32768, cut=True))
    assert run_once(sizes) == [(32768, 1)]
    scenario = scenario_of(read(log_2_17()), "all_reduce")
    assert parameters_of(scenario, sizes, {"iterations": "3"}) == {
        "sizes": "32768", "iterations": "3", "algorithm": "auto",
    }  # fmt: skip
    ring = parameters_of(scenario, sizes, {"algorithm": "ring"})
    assert ring["algorithm"] == "ring"
    library = {"library": "nccl"}
    timed = sizes_of(read(log_2_17()), Limit(octets=2**20, cut=True), library)
    assert run_once(timed) == [(65536, 1), (2**20, 4)]
    given = parameters_of(scenario, timed, library)
    assert (given["sizes"], given["cut"]) == ("65536,1048576", "1,4")
    assert scenario.parameters(given).cut == (1, 4)
    with pytest.raises(UserError, match=r"--cut-to says the cut of each size; leave --param cut"):
        sizes_of(read(log_2_17()), Limit(octets=2**20, cut=True), {**library, "cut": "4"})
    gather = parameters_of(scenario_of(read(log_2_17()), "gather"), sizes_of(
        changed("sum", "none"), Limit()), {})  # fmt: skip
    assert "algorithm" not in gather


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("float", "f8e4m3", "line 13: scenario allreduce has no elements of type f8e4m3"),
        ("sum", "mulsum", "line 13: scenario allreduce has no operation mulsum"),
        ("   -1 ", "    3 ", "line 13: scenario allreduce has no root other than rank 0"),
    ],
)
def test_what_the_scenario_has_not_is_refused(old: str, new: str, sentence: str) -> None:
    log = changed(old, new)
    with pytest.raises(UserError, match=sentence):
        parameters_of(scenario_of(log, "all_reduce"), sizes_of(log, Limit()), {})


def test_what_the_log_says_is_not_for_the_user() -> None:
    log = read(log_2_17())
    with pytest.raises(UserError, match="--param sizes is the log's to say"):
        parameters_of(scenario_of(log, "all_reduce"), sizes_of(log, Limit()), {"sizes": "1MiB"})


def test_several_types_in_one_log_are_refused() -> None:
    log = read(log_2_17([ROWS[0], ROWS[1].replace("float", "half")]))
    with pytest.raises(UserError, match=r"line 14: type half.* after float"):
        parameters_of(scenario_of(log, "all_reduce"), sizes_of(log, Limit()), {})


def measured(size: int, time_us: float, ideal_us: float) -> dict[str, object]:
    """A row of the run."""
    algbw = size / time_us / 1000
    return {
        "size_bytes": size, "time_us": time_us, "ideal_us": ideal_us, "algbw_gbps": algbw,
        "busbw_gbps": algbw * 1.5, "wrong": 0, "efficiency": ideal_us / time_us,
    }  # fmt: skip


def test_ratio_and_shares_of_the_ideal() -> None:
    small, _ = sizes_of(read(log_2_17()), Limit())
    row = prediction.row_of(small, measured(65536, 8.0, 6.0))
    assert row["ratio"] == pytest.approx(24.51 / 8)
    assert row["cluster_efficiency"] == pytest.approx(6 / 24.51)
    assert row["efficiency"] == 0.75
    assert row["cluster_placement"] == "out of place"
    inside = {**measured(65536, 8.0, 6.0), "in_place": True}
    row = prediction.row_of(small, inside)
    assert (row["cluster_placement"], row["cluster_time_us"]) == ("in place", 24.02)


def test_a_cut_size_is_compared_by_bandwidth() -> None:
    _, large = sizes_of(read(log_2_17()), Limit(octets=2**20, cut=True))
    row = prediction.row_of(large, measured(2**20, 20.0, 16.0))
    assert row["ratio"] == pytest.approx(2**20 / 20_000 * 1.5 / 89.46)
    assert row["cluster_efficiency"] is None
    heading, _, line = prediction.table_of([row]).lines(row)
    assert heading[1:].split()[:3] == ["size", "run", "with"]
    assert len(line) <= 120


def test_the_algorithm_and_the_model_have_columns_where_they_are_known() -> None:
    small, _ = sizes_of(read(log_2_17()), Limit())
    row = measured(65536, 8.0, 6.0)
    plain = prediction.row_of(small, row)
    chosen = prediction.row_of(
        small, {**row, "algorithm": "ring", "model_us": {"ring/LL": 16.0, "tree/LL": 18.0}}
    )
    assert (chosen["algorithm"], chosen["model_us"]) == ("ring", 16.0)
    heading, *_ = prediction.table_of([plain]).lines(plain)
    assert heading.split()[-1] == "#wrong"
    heading, *_ = prediction.table_of([chosen]).lines(chosen)
    assert heading.split()[-2:] == ["model", "algorithm"]


def test_what_the_cluster_got_wrong_is_a_line() -> None:
    log = read(log_2_17([ROWS[0].replace("4.01      0", "4.01    128"), ROWS[1]]))
    sizes = sizes_of(log, Limit(octets=65536))
    row = prediction.row_of(sizes[0], measured(65536, 30.0, 25.0))
    assert row["cluster_wrong"] == 128
    below = " ".join(" ".join(prediction.closing_lines(log, sizes, [row])).split())
    assert "wrong in 1 of its sizes, such as 128 elements of 65536 B" in below
    failed = read(log_2_17().replace("values : 0 OK", "values : 1 FAILED"))
    assert "out of bounds" in " ".join(prediction.closing_lines(failed, sizes, [row]))


def test_the_lines_say_what_is_not_alike() -> None:
    log = read(log_2_17([*ROWS, " 0 0 float sum -1 5.0 0.00 0.00 0 5.0 0.00 0.00 0"]))
    sizes = sizes_of(log, Limit(octets=65536))
    rows = [prediction.row_of(sizes[0], measured(65536, 30.0, 25.0))]
    above = "\n".join(prediction.cluster_lines(log, "all_reduce", LARGER, rows))
    assert "all_reduce_perf over 4 ranks on 2 hosts by nccl-tests 2.17.1" in above
    assert "2 of 2 GPUs, and this fabric 1 of 4 GPUs" in above
    below = " ".join(" ".join(prediction.closing_lines(log, sizes, rows)).split())
    assert "median 0.82" in below
    assert "1 of 1 sizes, such as 65536 B: no schedule" in below
    assert "2 of the log's sizes: those of 0 B, which send nothing, and above 64 KiB" in below
