"""Run folders as their readers have them."""

from pathlib import Path
from typing import Any

from emulator.metrics import ENDPOINT
from emulator.report.run_folder import RunRecord

ROWS = [
    {"transport": "uet", "collective": "incast", "senders": number, "acknowledgements": 10 * number}
    for number in (2, 4)
]
#: As a folder has it of a user's file, which readers do not have.
METRIC = {
    **{"key": "acknowledgements", "meaning": "ACKs", "heading": "ACKs", "unit": ""},
    **{"observed_at": ENDPOINT, "point_key": "", "better": 0, "scale": 1, "decimals": 2},
    "place": 1000,
}


def record(*metrics: dict[str, Any]) -> RunRecord:
    return RunRecord(path=Path(), result={"rows": ROWS, "metrics": list(metrics)})


def test_a_users_metric_parts_no_rows() -> None:
    assert record().parting_facts == ["senders", "acknowledgements"]
    found = record(METRIC)
    assert found.parting_facts == ["senders"]
    assert found.labels == ["1: uet, incast, senders 2", "2: uet, incast, senders 4"]
