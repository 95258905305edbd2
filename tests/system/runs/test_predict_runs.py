"""``uetemu predict``: a log of nccl-tests beside a run, from the command to its numbers."""

import json
import secrets
from pathlib import Path

import pytest

from emulator.cli.predict.floor import floor
from emulator.cli.predict.prediction import Limit
from emulator.pytest_plugin.runs import BUDGET_S
from tests.harness.runs.cluster_logs import log_2_17
from tests.harness.runs.processes import SMALL, begun, forked, without_progress

pytestmark = pytest.mark.root


def predicted(folder: Path, *arguments: str) -> tuple[int | None, str, str]:
    """Status, output and errors of ``uetemu predict`` in ``folder``."""
    lab = f"t-{secrets.token_hex(5)}"
    output = str(folder / "run")
    process = forked("predict", *SMALL, "--name", lab, "--output", output, *arguments)
    out, errors = process.communicate(timeout=BUDGET_S)
    return process.returncode, out, errors


def test_a_log_beside_the_fabric(tmp_path: Path) -> None:
    log = tmp_path / "cluster.log"
    log.write_text(log_2_17())
    status, out, errors = predicted(
        tmp_path, "--nccl-tests", str(log), "--cut-to", "256KiB", "--transport", "rocev2"
    )
    assert status == 0, errors
    content = json.loads((tmp_path / "run" / "prediction.json").read_text())
    small, large = content["rows"]
    assert (small["size_bytes"], small["run_bytes"]) == (65536, 65536)
    assert (large["size_bytes"], large["run_bytes"]) == (4194304, 262144)
    assert small["cluster_time_us"] == 24.51
    assert small["ratio"] == pytest.approx(24.51 / small["time_us"])
    assert small["time_us"] > small["ideal_us"] > 0
    lines = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [line[:2] for line in lines] == [["65536", "65536"], ["4194304", "262144"]]
    assert "Faster than ideal" not in out
    assert "compared by its bus bandwidth" in out


def test_a_run_predicts_itself(tmp_path: Path) -> None:
    first = begun(tmp_path, *SMALL, "--sizes", "4KiB,64KiB", scenario="alltoall")
    assert first.communicate()[0] == 0
    status, out, errors = predicted(
        tmp_path, "--nccl-tests", str(first.folder / "nccl-tests.json"), "--format", "json"
    )
    assert status == 0, errors
    content = json.loads(out)
    assert content["collective"] == "alltoall"
    assert [row["ratio"] for row in content["rows"]] == [1.0, 1.0]
    assert [row["cluster_placement"] for row in content["rows"]] == ["out of place"] * 2


def test_the_floor_gates_by_its_exit_status(tmp_path: Path) -> None:
    log = tmp_path / "cluster.log"
    words = ("--floor", "--log", str(log), "--cut-to", "64KiB", "--fabric", "model")
    log.write_text(log_2_17())
    status, out, errors = predicted(tmp_path, *words, "--json", str(tmp_path / "floor.json"))
    assert (status, without_progress(errors)) == (0, "")
    content = json.loads((tmp_path / "floor.json").read_text())
    assert content == json.loads((tmp_path / "run" / "floor.json").read_text())
    assert content["below"] == []
    lines = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [line[-1] for line in lines] == ["reached", "reached"]
    log.write_text(log_2_17().replace("24.51    2.67    4.01", "2451    0.03    0.04"))
    again = ("--output", str(tmp_path / "again"), "--json", "-")
    status, out, errors = predicted(tmp_path, *words, *again)
    assert status == 1
    assert "uetemu: 1 of 2 sizes lie below the floor" in errors
    content = json.loads(out)
    assert content["below"] == [65536]
    found = floor(
        content["topology"],
        log=log,
        limit=Limit(octets=65536, cut=True),
        fabric="model",
        output=tmp_path / "python",
    )
    assert found.as_dict() == content
    log.write_text("no log")
    status, out, errors = predicted(tmp_path, *words)
    assert (status, out) == (2, "")
    assert without_progress(errors).count("\n") == 1


def test_a_refusal_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "cluster.log"
    log.write_text(log_2_17().replace("float", "f8e5m2"))
    status, out, errors = predicted(tmp_path, "--nccl-tests", str(log))
    assert (status, out) == (1, "")
    assert without_progress(errors).count("\n") == 1
    assert f"{log}, line 13: " in errors
    assert not (tmp_path / "run").exists()
