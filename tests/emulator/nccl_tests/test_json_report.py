"""The JSON of nccl-tests: every key has the type that nccl-tests 2.19 gives it."""

import json
from typing import Any

import pytest

from emulator.nccl_tests.json_report import NcclReport, spread_of
from topologies import catalogue

#: Types of the keys that nccl-tests writes (``src/util.cu``, form 3); a truth is a text there.
TOP = {
    "version": int, "start_time": str, "end_time": str, "args": list, "env": list,
    "nccl_version": int, "config": dict, "results": list, "out_of_bounds": dict,
    "average_bus_bandwidth": dict, "errors": list,
}  # fmt: skip
CONFIG = {
    "nthreads": int, "ngpus": int, "minimum_bytes": int, "maximum_bytes": int, "step_factor": int,
    "step_bytes": int, "warmup_iters": int, "iterations": int, "aggregated_iterations": int,
    "validation": int, "graph": int, "blocking_collectives": str, "per_iter_timing": str,
    "per_iter_skip": int, "parallel_init": str, "devices": list,
}  # fmt: skip
DEVICE = {
    "rank": int, "group": int, "pid": int, "hostname": str, "device": int, "device_hex": str,
    "device_info": str,
}  # fmt: skip
ITERATIONS = {
    "skipped_iterations": int, "min_us": float, "max_us": float, "avg_us": float,
    "p50_us": float, "p95_us": float, "p99_us": float, "stdev_us": float, "cv_pct": float,
    "times_us": list, "per_process_max_times_us": list,
}  # fmt: skip
RESULT = {
    "size": int, "count": int, "type": str, "redop": str, "root": str,
    "out_of_place": (dict, type(None)), "in_place": dict,
    "out_of_place_per_iter": dict, "in_place_per_iter": dict, "actual_iterations": int,
    "experiment_name": str,
}  # fmt: skip
PLACED = {"time": float, "alg_bw": float, "bus_bw": float, "nwrong": (float, type(None))}
OUT_OF_BOUNDS = {"count": int, "okay": str}
AVERAGE = {"bandwidth": float, "okay": str}

ROW: dict[str, object] = {
    "collective": "all_reduce", "size_bytes": 65536, "count": 16384, "type": "float",
    "redop": "sum", "root": -1, "time_us": 8.0, "algbw_gbps": 8.192, "busbw_gbps": 12.288,
    "wrong": 0,
}  # fmt: skip


def written(*rows: dict[str, object], warmups: int | None = 1) -> dict[str, Any]:
    """The file that a run with ``rows`` leaves, read again."""
    fabric = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,spines=1")
    report = NcclReport(fabric, ["uetemu", "run", "allreduce"], warmups)
    for row in rows:
        report.add(row, (7000, 9000))
    content = json.loads(json.dumps(report.content(["it failed"])))
    assert isinstance(content, dict)
    return content


def typed(found: dict[str, Any], known: dict[str, Any]) -> None:
    """Hold each key of ``found`` to be one of nccl-tests, with its type."""
    for key, value in found.items():
        assert isinstance(value, known[key]), key
        assert isinstance(value, bool) is False, key


def test_every_key_is_one_of_nccl_tests_and_has_its_type() -> None:
    larger = {**ROW, "size_bytes": 131072, "in_place": True}
    content = written(ROW, larger)
    typed(content, TOP)
    typed(content["config"], CONFIG)
    typed(content["out_of_bounds"], OUT_OF_BOUNDS)
    typed(content["average_bus_bandwidth"], AVERAGE)
    for device in content["config"]["devices"]:
        typed(device, DEVICE)
    for result in content["results"]:
        typed(result, RESULT)
    outside, inside = content["results"]
    typed(outside["out_of_place"], PLACED)
    typed(outside["out_of_place_per_iter"], ITERATIONS)
    typed(inside["in_place"], PLACED)
    typed(inside["in_place_per_iter"], ITERATIONS)
    assert inside["out_of_place"] is None
    assert "in_place" not in outside  # nccl-tests has no null there


def test_a_size_out_of_place_and_in_place_is_one_result() -> None:
    inside = {**ROW, "in_place": True, "time_us": 9.0, "busbw_gbps": 10.0}
    content = written(ROW, inside, {**ROW, "size_bytes": 131072}, inside)
    both, out_alone, in_alone = content["results"]
    assert (both["out_of_place"]["time"], both["in_place"]["time"]) == (8.0, 9.0)
    assert {"out_of_place_per_iter", "in_place_per_iter"} <= set(both)
    assert "in_place" not in out_alone
    assert in_alone["out_of_place"] is None
    mean = pytest.approx((2 * 12.288 + 2 * 10.0) / 4)
    assert content["average_bus_bandwidth"]["bandwidth"] == mean


def test_the_values_are_those_of_the_rows() -> None:
    content = written(ROW, {**ROW, "size_bytes": 131072, "busbw_gbps": 20.0, "wrong": 3})
    assert content["version"] == 3
    first = content["results"][0]
    assert (first["size"], first["count"], first["root"]) == (65536, 16384, "    -1")
    assert first["out_of_place"] == {"time": 8.0, "alg_bw": 8.192, "bus_bw": 12.288, "nwrong": 0.0}
    assert first["out_of_place_per_iter"]["times_us"] == [7.0, 9.0]
    assert content["out_of_bounds"] == {"count": 1, "okay": "false"}
    assert content["average_bus_bandwidth"] == {
        "bandwidth": pytest.approx(16.144), "okay": "unchecked",
    }  # fmt: skip
    config = content["config"]
    assert (config["minimum_bytes"], config["maximum_bytes"]) == (65536, 131072)
    assert (config["step_factor"], config["warmup_iters"], config["iterations"]) == (2, 1, 2)
    assert [(one["hostname"], one["device"]) for one in config["devices"]] == [
        ("h0", 0), ("h0", 1), ("h1", 0), ("h1", 1),
    ]  # fmt: skip
    assert content["errors"] == ["it failed"]


@pytest.mark.parametrize(
    ("sizes", "step"),
    [
        ((1024, 2048, 3072), {"step_bytes": 1024}),
        ((1024, 4096, 16384), {"step_factor": 4}),
        ((1024, 4096, 5000), {}),
        ((1024,), {}),
    ],
)
def test_a_step_is_there_if_it_says_all_sizes(sizes: tuple[int, ...], step: dict[str, int]) -> None:
    config = written(*({**ROW, "size_bytes": size} for size in sizes), warmups=None)["config"]
    assert {key: config[key] for key in ("step_factor", "step_bytes") if key in config} == step
    assert "warmup_iters" not in config


def test_rows_that_nobody_checked_say_so() -> None:
    content = written(ROW, {**ROW, "wrong": None})
    assert content["config"]["validation"] == 0
    assert content["results"][1]["out_of_place"]["nwrong"] is None
    assert content["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert written(ROW)["config"]["validation"] == 1


def test_groups_of_gpus_are_no_list_of_ranks() -> None:
    assert "devices" in written({**ROW, "members": 4})["config"]
    assert "devices" not in written({**ROW, "members": 2})["config"]


def test_rows_of_other_patterns_make_no_file() -> None:
    fabric = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,spines=1")
    report = NcclReport(fabric, [], 1)
    report.add({"collective": "incast", "size_bytes": 4096, "time_us": 8.0}, (8000,))
    assert report.content([]) is None


def test_percentiles_and_deviation_are_those_of_nccl_tests() -> None:
    spread = spread_of([float(number) for number in range(100, 0, -1)])
    assert (spread["p50_us"], spread["p95_us"], spread["p99_us"]) == (51.0, 95.0, 99.0)
    assert spread["stdev_us"] == pytest.approx(28.866070)
    assert spread_of([4.0])["p99_us"] == 4.0
