"""The storage scenarios of a cluster run from the command line and state what became of octets."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.runs.processes import forked

LONGEST_S = 300
SMALL = (
    "cluster:hosts=2,gpus_per_host=1,spines=0,networks=storage,storage_leaves=1,storage_spines=0"
)

pytestmark = pytest.mark.root


def cluster(folder: Path, *arguments: str) -> tuple[int | None, dict[str, dict[str, Any]], str]:
    """Run a scenario; return its status, its rows by name, and what it printed."""
    process = forked("cluster", *arguments, "-o", str(folder))
    out, err = process.communicate(timeout=LONGEST_S)
    path = folder / "result.json"
    result = json.loads(path.read_text()) if path.exists() else {"rows": []}
    return process.returncode, {row["what"]: row for row in result["rows"]}, out + err


def rows_of(folder: Path, scenario: str, *parameters: str) -> dict[str, dict[str, object]]:
    given = [word for pair in parameters for word in ("--param", pair)]
    status, rows, printed = cluster(folder, scenario, "--topology", SMALL, *given)
    assert status == 0, printed
    return rows


def test_a_dataset_is_streamed_and_caches_take_what_they_hold(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path, "dataset", "shards=8", "shard=64KiB", "epochs=2", "sampling=whole", "cache=1MiB"
    )
    first, second = rows["epoch 1"], rows["epoch 2"]
    assert (first["hits"], first["network_octets"]) == (0, 2 * 8 * 2**16)
    assert (second["hits"], second["network_octets"]) == (16, 0)
    assert first["wrong"] == second["wrong"] == 0
    sent = sum(int(str(rows[f"port of storage{n}"]["sent_octets"])) for n in (0, 1))
    assert 2 * 8 * 2**16 < sent < 1.2 * 2 * 8 * 2**16


def test_a_checkpoint_is_lost_with_its_only_storage_node(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "checkpoint_storage", "timeout=500ms", "lost=500ms")
    assert rows["checkpoint 1, storage0"]["committed"] == 1
    victim, other = rows["checkpoint 2, storage0"], rows["checkpoint 2, storage1"]
    assert victim["committed"] == 0
    assert 0 < int(str(victim["lost_octets"])) < 2**24
    assert (other["committed"], other["lost_octets"]) == (1, 0)
    restored = rows["restore"]
    assert (restored["from_2"], restored["no_copy_left"], restored["wrong"]) == (1, 1, 0)
    assert restored["job_restores"] is None


def test_a_checkpoint_outlasts_an_outage_by_retries(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path, "checkpoint_storage", "kill=outage", "timeout=500ms", "outage=600ms", "lost=20s"
    )
    victim = rows["checkpoint 2, storage0"]
    assert (victim["committed"], victim["lost_octets"]) == (1, 0)
    assert int(str(victim["retries"])) > 0
    assert int(str(victim["reconnects"])) > 0
    assert rows["restore"]["job_restores"] == 2


def test_a_model_reaches_all_servers_in_every_way(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "model_push", "file=1MiB", "sources=storage,s3,head")
    assert {what: row["right"] for what, row in rows.items()} == {
        "nfs, all at once": 2,
        "s3, all at once": 2,
        "http, one at a time": 2,
        "http, all at once": 2,
        "http, tree": 2,
        "relays, chain": 2,
        "http, one at a time from head0": 2,
        "http, all at once from head0": 2,
        "http, tree from head0": 2,
        "relays, chain from head0": 2,
    }
    sent = {what: int(str(row["source_sent"])) for what, row in rows.items()}
    assert all(sent[what] > 2 * 2**20 for what in sent if "at once" in what)
    assert all(2**20 < sent[what] < 2 * 2**20 for what in sent if "chain" in what)


def test_a_state_in_the_shared_file_system_is_restored_by_another_server(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "checkpoint_shared", "state=3000001")
    for what in ("written", "restored by others"):
        row = rows[what]
        assert (row["servers"], row["octets"], row["right"]) == (2, 2 * 3_000_001, 2)
        assert 0 < float(str(row["port_share"])) <= 1


@pytest.mark.nightly
def test_tcp_stands_beside_rdma_with_the_same_octets_and_hits(tmp_path: Path) -> None:
    given = ("shards=4", "shard=64KiB", "sampling=whole", "state=64KiB", "transports=uet")
    words = [word for pair in given for word in ("--param", pair)]
    process = forked(
        "cluster", "storage_compare", "--topology", SMALL, *words, "-o", str(tmp_path), "--report"
    )
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, out + err
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    table, clocks, (digests,) = rows[:8], rows[8:11], rows[11:]
    works = ["epoch 1", "epoch 2", "checkpoint", "restore"]
    assert [row["what"] for row in table] == [what for what in works for _ in range(2)]
    for tcp, rdma in zip(table[::2], table[1::2], strict=True):
        assert (tcp["transport"], tcp["clock"]) == ("nvme/tcp", "host/100")
        assert (rdma["transport"], rdma["clock"]) == ("uet", "virtual")
        assert (tcp["octets"], tcp["hit_share"]) == (rdma["octets"], rdma["hit_share"])
        assert tcp["busy_share"] > 0
        if tcp["octets"]:
            assert 0 < tcp["port_share"] <= 1
            assert tcp["bound_by"] in {"machine", "network", "neither"}
            assert rdma["port_share"] > 0
        else:
            assert tcp["bound_by"] == rdma["bound_by"] == "cache"
    assert [row["octets"] for row in table[::2]] == [2**19, 0, 2**17, 2**17]
    assert [row["what"] for row in clocks] == ["clock host/100", "clock virtual", "across clocks"]
    assert digests["fidelity"] == "exact"
    page = (tmp_path / "report.html").read_text()
    assert "nvme/tcp" in page
    assert 'id="figure-storage-ports"' in page
    assert str(digests["digest"]) in page


def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for number, (arguments, stated) in enumerate(
        (
            (("checkpoint_storage", "--param", "copies=3"), "there are 2 storage nodes"),
            (("dataset", "--service-param", "nvme.size=4096"), "do not fit into the 4096"),
            (
                ("dataset", "--param", "command=1000"),
                "command is 1000 octets, no whole blocks",
            ),
        )
    ):
        folder = tmp_path / str(number)
        status, _, printed = cluster(folder, arguments[0], "--topology", SMALL, *arguments[1:])
        assert status == 1
        assert stated in printed
