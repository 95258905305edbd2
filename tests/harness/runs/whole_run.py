"""Checks that hold for every run that ends well, whatever it ran."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from emulator.topology_file import from_record
from tests.harness.runs.conservation import troubles
from tests.harness.runs.frame_order import overtaken


def held(folder: Path, *, sprayed: bool = True) -> dict[str, Any]:
    """Return ``result.json`` of ``folder``, held against what is true of all runs that end well.

    Every octet is right, nothing is faster than its ideal, frames and octets are conserved.  Where
    neither switches spray (``sprayed``) nor cables fail, no packet of one path overtakes another,
    by the capture of all GPUs.
    """
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    topology = from_record(json.loads((folder / "fabric.json").read_text()))
    rows = result["rows"]
    found = [f"wrong elements: {row}" for row in rows if row["wrong"]]
    found += [f"faster than its ideal: {row}" for row in rows if (row["efficiency"] or 0) > 1]
    found += troubles(result, topology)
    if not sprayed:
        found += overtaken(folder / "capture.pcapng", {gpu.name for gpu in topology.gpus})
    assert found == [], found
    return result


def assert_same_files(one: Path, other: Path, names: Iterable[str | Path]) -> None:
    """Assert that the files called ``names`` are equal in both folders, octet by octet."""
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
