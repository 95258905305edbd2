"""The page of a cluster's run shows its rows and networks, and takes no name for markup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emulator.cluster.run.cluster_runner import SCHEMA
from emulator.errors import UserError
from emulator.report.cluster.cluster_page import write_cluster_report
from emulator.report.cluster.cluster_record import ClusterRecord, is_cluster_run
from emulator.report.cluster.network_figures import network_figures

SAMPLES = """\
at_s,network,octets,drops
0.5,frontend,0,0
1.0,frontend,1000000,2
2.0,frontend,1000000,2
0.5,storage,10,0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    result = {
        "schema": SCHEMA,
        "scenario": "<script>alert(1)</script>",
        "topology": "cluster",
        "seed": 3,
        "parameters": {"bursts": 2, "transports": ["uet", "rocev2"]},
        "networks": [
            {"network": "frontend", "dilation": 20.0, "isolation": "vrf"},
            {"network": "storage", "dilation": 100.0},
        ],
        "rows": [{"what": "requests", "sent": 5, "ok": True}, {"what": "probe", "ok": False}],
        "events": [{"at_s": 1.0, "text": "a spine dies"}],
        "services": [],
        "errors": [],
    }
    (tmp_path / "result.json").write_text(json.dumps(result))
    (tmp_path / "networks.csv").write_text(SAMPLES)
    return tmp_path


def test_rates_are_of_the_networks_own_time(folder: Path) -> None:
    frontend, storage = network_figures(ClusterRecord.read(folder))
    assert [record["gbps"] for record in frontend.records] == [pytest.approx(0.32), 0.0]
    assert [record["drops"] for record in frontend.records] == [2, 0]
    assert storage.reason is not None


def test_the_page_names_what_is_not_as_it_should_be(folder: Path) -> None:
    page = write_cluster_report(folder).read_text()
    assert "1 rows are not as they should be" in page
    assert "a spine dies" in page
    assert "--param bursts=2 --param transports=uet,rocev2 --seed 3" in page
    assert "<script>alert" not in page
    assert (folder / "report-figures" / "frontend.csv").exists()


def test_only_the_folder_of_a_cluster_is_one(folder: Path, tmp_path: Path) -> None:
    assert is_cluster_run(folder)
    (folder / "result.json").write_text('{"schema": "uetemu.result/1"}')
    assert not is_cluster_run(folder)
    assert not is_cluster_run(tmp_path / "nothing")
    (folder / "networks.csv").write_text("at_s\nx\n")
    with pytest.raises(UserError, match="no complete folder of uetemu cluster"):
        ClusterRecord.read(folder)
