"""Logs of nccl-tests: every version reads alike, and a bad one ends in a sentence with its line."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import UserError
from emulator.nccl_tests import log_file, text_log
from emulator.nccl_tests.cluster_log import COLLECTIVES, ClusterLog
from tests import DATA
from tests.harness.examples import examples
from tests.harness.runs.cluster_logs import ROWS, log_2_9, log_2_17, log_2_19


def text(log: str) -> ClusterLog:
    return text_log.read("a.log", log.splitlines())


def result(**changes: Any) -> dict[str, Any]:
    """A row as nccl-tests writes it."""
    row: dict[str, Any] = {
        "size": 65536, "count": 16384, "type": "float", "redop": "sum", "root": "    -1",
        "out_of_place": {"time": 24.51, "alg_bw": 2.67, "bus_bw": 4.01, "nwrong": 0.0},
        "in_place": {"time": 24.02, "alg_bw": 2.73, "bus_bw": 4.09, "nwrong": 0.0},
        "actual_iterations": 20, "experiment_name": "",
    }  # fmt: skip
    return {**row, **changes}


def document(**changes: Any) -> dict[str, Any]:
    """A file of ``-J`` over two processes with two GPUs each."""
    config = {
        "nthreads": 1, "ngpus": 2, "iterations": 20, "aggregated_iterations": 1,
        "devices": [
            {"rank": 0, "group": 0, "pid": 1, "hostname": "host-0", "device": 0},
            {"rank": 2, "group": 0, "pid": 1, "hostname": "host-1", "device": 0},
        ],
    }  # fmt: skip
    args = ["/opt/nccl-tests/build/all_reduce_perf", "-g", "2"]
    return {"version": 3, "args": args, "config": config, "results": [result()], **changes}


@pytest.mark.parametrize("log", [log_2_9(), log_2_17(), log_2_19()], ids=["2.9", "2.17", "2.19"])
@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:", "0: ", "2026-03-01T12:00:00Z stdout F "])
def test_every_version_reads_alike(log: str, prefix: str) -> None:
    read = text("".join(f"{prefix}{line}\n" for line in log.splitlines()))
    assert (read.ranks, dict(read.hosts)) == (4, {"host-0": 2, "host-1": 2})
    assert (read.iterations, read.aggregated) == (20, 1)
    first, second = read.rows
    assert (first.size, first.count, first.type, first.redop, first.root) == (
        65536, 16384, "float", "sum", -1,
    )  # fmt: skip
    assert first.out_of_place is not None
    assert first.in_place is not None
    assert (first.out_of_place.time_us, first.out_of_place.busbw_gbps) == (24.51, 4.01)
    assert (first.in_place.time_us, first.in_place.busbw_gbps) == (24.02, 4.09)
    assert second.in_place is not None
    assert second.in_place.algbw_gbps == 59.16


def test_a_log_names_its_test_or_the_user_does() -> None:
    assert text(log_2_17()).named(None) == "all_reduce"
    assert text(log_2_17()).version == "2.17.1"
    with pytest.raises(UserError, match="does not name its test"):
        text(log_2_9()).named(None)
    assert text(log_2_9()).named("all_reduce") == "all_reduce"
    assert text("+ mpirun -np 4 all_reduce_perf -b 8\n" + log_2_9()).named(None) == "all_reduce"
    with pytest.raises(UserError, match="--collective says alltoall"):
        text(log_2_17()).named("alltoall")
    with pytest.raises(UserError, match="is of hypercube_perf, which no scenario runs"):
        text(log_2_17(test="hypercube")).named(None)


def test_messages_between_the_rows_are_passed_over() -> None:
    noise = "host-0:4000:4000 [0] NCCL INFO comm 0x5 rank 0 nranks 4 cudaDev 0 - Init COMPLETE"
    more = "node 3 4 coll channels, 0 nvls channels, 8 p2p channels and so on and so forth for all"
    lines = log_2_17().splitlines()
    mixed = [part for line in lines for part in (line, noise, more)]
    assert len(text("\n".join(mixed)).rows) == 2


def test_bandwidths_must_be_those_of_the_collective_and_the_ranks() -> None:
    log = text(log_2_17())
    log.check_factor("all_reduce", 4)
    with pytest.raises(UserError, match=r"a.log, line 13: busbw is 1.502 of algbw.* it is 0.750"):
        log.check_factor("all_gather", 4)
    with pytest.raises(UserError, match=r"over 8 ranks it is 1.750"):
        log.check_factor("all_reduce", 8)


def test_sizes_must_be_those_of_all_parts() -> None:
    log = text(log_2_17())
    log.check_sizes("all_reduce", 4)
    with pytest.raises(UserError, match="line 13: 16384 elements of type float are 262144 B"):
        log.check_sizes("all_gather", 4)


def test_factors_are_those_of_nccl_tests() -> None:
    assert {name: form.factor(8) for name, form in COLLECTIVES.items()} == {
        "all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "alltoall": 0.875,
        "gather": 0.875, "scatter": 0.875, "broadcast": 1, "reduce": 1, "sendrecv": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("24.51", "nan", "a.log, line 13: a time of nan us is no measurement"),
        ("24.51", "0.00", "a time of 0.0 us is no measurement"),
        ("24.51", "2#", "line 13"),
        ("24.51", "24.5x", "'24.5x' stands where time should"),
        ("4.01", "inf", "bandwidths of 2.67 and inf GB/s"),
        ("float", "float3", "the type 'float3' is none of nccl-tests'"),
        ("   -1 ", "   -x ", "'-x' stands where root should"),
        ("65536 ", "999999999999999999 ", "a size of 999999999999999999 is none"),
        ("    24.02    2.73    4.09      0", "", "the row has 9 values and its heading 13"),
        ("24.51", "24510", "65536 B in 24510.0 us are 0.002674 GB/s, and algbw is 2.67"),
    ],
)
def test_a_bad_row_is_named(old: str, new: str, sentence: str) -> None:
    row = ROWS[0].replace(old, new, 1)
    log = log_2_17([row, ROWS[1]])
    if new == "2#":  # the rest of the line is a comment: the row is not one
        assert len(text(log).rows) == 1
        return
    with pytest.raises(UserError, match=sentence.replace("(", r"\(")):
        text(log)


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("", "has no row of nccl-tests"),
        ("# size count type\n", "no columns time, algbw and busbw"),
        (log_2_17().replace(" time ", " cputime "), "these are CPU times"),
        (log_2_17() + log_2_17(test="all_gather"), "here all_gather_perf begins, after all_reduce"),
        (log_2_17().replace("Rank  2", "Rank  7"), "lists 4 ranks, and the last is rank 7"),
        (log_2_17().replace("Rank  2 Group  0", "Rank  2 Group  1"), "has 2 groups of ranks"),
    ],
)
def test_what_is_no_log_of_one_test_is_refused(log: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        text(log)


def test_json_reads_like_the_table() -> None:
    read = log_file.read_json("a.json", json.dumps(document()))
    assert (read.collective, read.ranks) == ("all_reduce", 4)
    assert dict(read.hosts) == {"host-0": 2, "host-1": 2}
    (row,) = read.rows
    (other, _) = text(log_2_17()).rows
    for found, printed in ((row.out_of_place, other.out_of_place), (row.in_place, other.in_place)):
        assert found is not None
        assert printed is not None
        assert (found.time_us, found.algbw_gbps, found.busbw_gbps, found.wrong) == (
            printed.time_us, printed.algbw_gbps, printed.busbw_gbps, printed.wrong,
        )  # fmt: skip
    assert (row.size, row.count, row.type, row.redop, row.root) == (
        65536, 16384, "float", "sum", -1,
    )  # fmt: skip


def test_json_of_uetemu_names_its_collective() -> None:
    args = ["/usr/bin/uetemu", "run", "allgather", "--sizes", "1MiB"]
    assert log_file.read_json("a.json", json.dumps(document(args=args))).collective == "all_gather"
    unknown = log_file.read_json("a.json", json.dumps(document(args=["uetemu", "run"])))
    assert unknown.collective is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"results": [', "a.json, line 1: not JSON"),
        ("[" * 100_000, "too deep"),
        ('{"results": [{"size": ' + "9" * 5000 + "}]}", "a number too long"),
        (json.dumps(document(results=[])), "no list 'results' with a row"),
        (json.dumps(document(results=7)), "no list 'results' with a row"),
        (
            json.dumps(document(results=[result(), result(experiment_name="rocev2")])),
            "2 experiments, such as '' and 'rocev2'",
        ),
        (json.dumps(document(results=[3])), r"results\[0\] has no text 'type'"),
        (json.dumps(document(results=[result(size=True)])), r"results\[0\].size is 'True'"),
        (json.dumps(document(results=[result(size=-4)])), "a size of -4 is none"),
        (json.dumps(document(results=[result(root="x")])), "root is 'x'"),
        (
            json.dumps(document(results=[result(in_place={"time": "nan"})])),
            "in_place.time is 'nan'",
        ),
        (json.dumps(document(results=[result(in_place={"time": 10**400})])), "in_place.time is"),
        (json.dumps(document(results=[result(in_place={"cpu_time": 1.0})])), "these are CPU times"),
        (json.dumps(document(results=[result(in_place=None, out_of_place=None)])), "has neither"),
    ],
)
def test_bad_json_ends_in_a_sentence(content: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        log_file.read_json("a.json", content)


@examples(150)
@given(seed=st.integers(0, 2**32), whole=st.sampled_from([log_2_9(), log_2_17(), log_2_19()]))
def test_a_damaged_log_is_read_or_refused(seed: int, whole: str) -> None:
    rng = random.Random(seed)
    damaged = list(whole)
    for _ in range(rng.randint(1, 40)):
        at = rng.randrange(len(damaged))
        damaged[at : at + rng.randint(0, 3)] = rng.choice(
            ["", "#", " ", "9", "-", "\x00", "é", "\n"]
        )
    refused = ""
    rows = 0
    try:
        rows = len(text("".join(damaged)).rows)
    except UserError as error:
        refused = str(error)
    assert "\n" not in refused
    assert bool(rows) != bool(refused)


def test_a_file_is_read_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"\xff\xfe broken \x00 \n" + log_2_17().encode())
    assert len(log_file.read(path).rows) == 2
    path.write_text("\n " + json.dumps(document()))
    assert log_file.read(path).collective == "all_reduce"
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory\)"):
        log_file.read(tmp_path)
    with path.open("wb") as stream:
        stream.truncate(log_file.LARGEST_LOG_BYTES + 1)
    with pytest.raises(UserError, match="more than 64 MiB"):
        log_file.read(path)
    with path.open("wb") as stream:
        stream.write(b'{"results": [')
        stream.truncate(log_file.LARGEST_JSON_BYTES + 1)
    with pytest.raises(UserError, match="more than 16 MiB of results"):
        log_file.read(path)


#: Logs as other people have them, cut short.
LOGS = DATA / "nccl_tests"


@pytest.mark.parametrize(
    ("name", "collective", "first"),
    [
        ("nccl_debug_in_each_row.log", "all_reduce", (65536, "sum", -1, 40.0, 40.8)),
        ("nccl_debug_in_first_row.log", "all_reduce", (65536, "sum", -1, 40.0, 40.8)),
        ("alltoall_blank_redop.log", "alltoall", (2**20, "none", -1, 620.0, 626.0)),
        ("reduce_of_2_0.log", "reduce", (2**20, "sum", 0, 320.0, 323.0)),
        ("no_hashes.log", "all_reduce", (2**20, "sum", -1, 620.0, 626.0)),
        ("rccl.json", "all_reduce", (65536, "sum", -1, 40.0, 40.0)),
        ("rccl.csv", "all_reduce", (65536, "sum", -1, 40.0, 40.0)),
        ("all_reduce_perf_mpi.log", "all_reduce", (65536, "sum", -1, 40.0, 40.8)),
        ("wrong.log", "all_reduce", (65536, "sum", -1, 41.0, 41.82)),
    ],
)
def test_logs_of_others_are_read(
    name: str, collective: str, first: tuple[int, str, int, float, float]
) -> None:
    log = log_file.read(LOGS / name)
    assert (log.named(None), log.ranks) == (collective, 8)
    log.check_factor(collective, 8)
    log.check_sizes(collective, 8)
    row = log.rows[0]
    assert row.out_of_place is not None
    assert row.in_place is not None
    times = row.out_of_place.time_us, row.in_place.time_us
    assert (row.size, row.redop, row.root, *times) == first
    assert bool(log.wrong_sizes) == log.failed == (name == "wrong.log")
    assert set(log.hosts.values()) <= {4}


def test_the_sizes_that_a_cluster_got_wrong_are_known() -> None:
    log = log_file.read(LOGS / "wrong.log")
    assert log.wrong_sizes == {65536: 128}
    assert log.rows[1].out_of_place is not None
    assert log.rows[1].out_of_place.wrong == 0


def test_tests_without_mpi_are_named() -> None:
    with pytest.raises(
        UserError, match=r"rank 0 twice, as process 1320 on ip-10-0-0-20 and .*MPI=1"
    ):
        log_file.read(LOGS / "two_singletons.log")
    alone = "".join(
        f"{line}\n" for line in log_2_17().splitlines() if "Rank" not in line or "Rank  0" in line
    )
    again = alone.replace("4000", "4001")  # one test after the other, as pipes deliver them
    with pytest.raises(UserError, match="as process 4000 on host-0 and process 4001 on host-0"):
        text(alone + again)


def test_a_row_is_put_together_again_wherever_nccl_speaks() -> None:
    row = ROWS[0].split()
    for at in (5, 9):  # before the times of either placement
        head, tail = " ".join(row[:at]), " ".join(row[at:])
        for message in (
            "[2025-05-01 12:00:00] node-1:40:41 [0] NCCL INFO Connected all rings",
            "NCCL version 2.21.5+cuda12.4",
            "\nnode-1:40:41 [0] NCCL WARN 3 4 nodes\n",
        ):
            log = text(log_2_17([f"{head}{message}", "node-2:4:5 [3] NCCL INFO x", tail]))
            assert log.rows == text(log_2_17([ROWS[0]])).rows
    cut = log_2_17([" ".join(row[:5]) + "node-1:40:41 [0] NCCL INFO lost", ROWS[1]])
    with pytest.raises(UserError, match=r"line 13: the row has 5 values .* NCCL_DEBUG_FILE"):
        text(cut)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_log_of_any_encoding_may_be_packed(tmp_path: Path, encoding: str, packed: bool) -> None:
    path = tmp_path / "a.log"
    octets = log_2_17().encode(encoding)
    path.write_bytes(gzip.compress(octets) if packed else octets)
    assert len(log_file.read(path).rows) == 2


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ('{"algBw": 1}', "record 1: nodes is 'None'"),
        ('{"algBw": 1\n', "line 1: not JSON"),
        ('{"algBw": 1}\n7', "record 1: nodes|line 2: a record is no object"),
        ("name, algBw\n", "has no record of rccl-tests"),
    ],
)
def test_a_bad_record_of_rccl_tests_is_named(tmp_path: Path, records: str, sentence: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(records)
    with pytest.raises(UserError, match=sentence):
        log_file.read(path)


def test_a_list_of_rccl_tests_is_read_as_its_lines(tmp_path: Path) -> None:
    lines = (LOGS / "rccl.json").read_text().splitlines()
    path = tmp_path / "a.json"
    path.write_text(f"[{','.join(lines)}]")
    listed = log_file.read(path)
    assert [row.size for row in listed.rows] == [65536, 131072]
    other = lines[0].replace("AllReduce", "AllGather")
    path.write_text("\n".join([*lines, other]))
    with pytest.raises(UserError, match="record 5: another test"):
        log_file.read(path)
