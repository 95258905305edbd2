"""The tutorial's commands do what it says, one after the other as a reader types them."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT

TUTORIAL = (CHECKOUT / "scenarios/TUTORIAL.md").read_text()
MANUAL = (CHECKOUT / "scenarios/README.md").read_text()
#: The command, on a fabric that needs no root.
UETEMU = f"""
uetemu() {{
    local model=
    [ "$1" != run ] || model="--fabric model"
    {sys.executable} -c "from emulator.cli.main import main; main()" "$@" $model
}}
"""


@pytest.mark.nightly
def test_the_tutorial_can_be_typed(tmp_path: Path) -> None:
    commands = re.findall(r"^    (.+)$", TUTORIAL, flags=re.MULTILINE)
    example = MANUAL.partition("## Write your own")[2].partition("\n## ")[0]
    lines = re.findall(r"^(?:    .*|)$", example, flags=re.MULTILINE)
    (tmp_path / "pair.py").write_text("\n".join(line[4:] for line in lines))
    (tmp_path / "topologies").mkdir()
    shutil.copy(CHECKOUT / "topologies/pod.yaml", tmp_path / "topologies")
    script = "\n".join(["set -e", UETEMU, *commands])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr)
    results = {path.parent.name: path for path in tmp_path.glob("runs/*/result.json")}
    assert set(results) == {"first", "compared", "fault", "mine", "pair"}
    assert all(not json.loads(path.read_text())["errors"] for path in results.values())
    assert (tmp_path / "runs/compared/report.html").exists()
    lost = [line for line in done.stdout.splitlines() if line.startswith("# Faults")]
    assert lost
    assert not any("lost 0 packets" in line for line in lost)
    assert "64 GPUs" in done.stdout
