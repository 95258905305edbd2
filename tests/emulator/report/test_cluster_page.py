"""A run in virtual time has a figure of all its ports, or the reason why it has none."""

import json
from pathlib import Path

import pytest

from emulator.cluster.run.cluster_runner import SCHEMA
from emulator.dataplane.switch.telemetry import COLUMNS, FILE
from emulator.errors import UserError
from emulator.report.cluster_page import (
    ClusterRecord,
    is_cluster_run,
    job_start_figures,
    network_figures,
    storage_figures,
    virtual_run_figures,
    write_cluster_report,
)

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


def record(*rows: dict[str, object]) -> ClusterRecord:
    return ClusterRecord(path=Path("none"), result={"rows": rows}, samples=())


def test_every_phase_of_every_job_is_drawn() -> None:
    phases = {"register_ms": 1.0, "barrier_ms": 2.0, "exchange_ms": 3.0, "broadcast_ms": 4.0}
    (figure,) = job_start_figures(
        record({"what": "start of tenant0", **phases}, {"what": "rank 3 missing"})
    )
    assert [(one["job"], one["phase"], one["ms"]) for one in figure.records] == [
        ("start of tenant0", "register", 1.0),
        ("start of tenant0", "barrier", 2.0),
        ("start of tenant0", "exchange", 3.0),
        ("start of tenant0", "broadcast", 4.0),
    ]


def test_without_a_job_there_is_none() -> None:
    assert not list(job_start_figures(record({"what": "requests", "sent": 5})))


def row(transport: str, clock: str, port_share: float | None) -> dict[str, object]:
    known = {"what": "epoch 1", "busy_share": 1.0, "bound_by": "machine", "GBps": 2.0}
    return {**known, "transport": transport, "clock": clock, "port_share": port_share}


def test_every_bar_names_its_clock() -> None:
    (figure,) = storage_figures(
        record(row("nvme/tcp", "host/100", 0.1), row("uet", "virtual", 0.9), {"what": "clocks"})
    )
    assert [(one["by"], one["port_share"]) for one in figure.records] == [
        ("nvme/tcp, host/100 clock", pytest.approx(0.1)),
        ("uet, virtual clock", pytest.approx(0.9)),
    ]
    assert figure.spec is not None


def test_an_epoch_of_the_cache_has_no_bar() -> None:
    (figure,) = storage_figures(
        record(row("nvme/tcp", "host/100", 0.1), row("uet", "virtual", None))
    )
    assert len(figure.records) == 1


def test_other_scenarios_have_no_such_figure() -> None:
    assert list(storage_figures(record({"what": "requests", "sent": 5}))) == []


ZEROS = ",0" * (len(COLUMNS) - 6)


def written(folder: Path, *samples: tuple[float, str, int]) -> None:
    folder.mkdir()
    lines = [f"{at},{port},0,0,0,{octets}{ZEROS}" for at, port, octets in samples]
    (folder / FILE).write_text("\n".join([",".join(COLUMNS), *lines, ""]))


def test_the_rates_of_all_ports_are_added(tmp_path: Path) -> None:
    assert COLUMNS[5] == "tx_bytes"
    written(
        tmp_path / "training1",
        *((0.0, "rail0:up0", 0), (0.0, "rail0:up1", 0)),
        *((10.0, "rail0:up0", 5000), (10.0, "rail0:up1", 2500)),
    )
    (figure,) = virtual_run_figures(ClusterRecord(path=tmp_path, result={}, samples=()))
    assert figure.name == "virtual-training1"
    assert {round(record["gbps"], 9) for record in figure.records} == {6.0}
    assert figure.records[-1]["t_us"] == pytest.approx(10.0)


def test_a_damaged_file_and_no_run_at_all(tmp_path: Path) -> None:
    record = ClusterRecord(path=tmp_path, result={}, samples=())
    assert not list(virtual_run_figures(record))
    written(tmp_path / "training1", (0.0, "rail0:up0", 0))
    (tmp_path / "training1" / FILE).write_text("t_us\n")
    (figure,) = virtual_run_figures(record)
    assert figure.reason is not None
    assert "another version" in figure.reason
