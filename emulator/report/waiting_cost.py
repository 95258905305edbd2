"""What GPUs that wait for the network cost: power, energy and money, at the user's prices.

Rows of training, of traces and of PyTorch scripts have ``exposed``, the share of the time in which
a GPU stands still for communication.  Of a trace it is that of its busiest rank, so that the others
wait longer.  Nothing here has a price of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from emulator.errors import UserError
from emulator.report.run_folder import RunRecord


@dataclass(frozen=True, kw_only=True)
class WaitingPrices:
    """Watts of a GPU and of its NIC while they wait, and a GPU's price for an hour."""

    gpu_watts: float | None = None
    nic_watts: float | None = None
    gpu_hour: float | None = None

    @property
    def given(self) -> bool:
        return (self.gpu_watts, self.nic_watts, self.gpu_hour) != (None, None, None)


def with_cost(record: RunRecord, prices: WaitingPrices) -> RunRecord:
    """Return ``record`` with what waiting costs in its rows, if any price is given.

    UserError where no row has GPUs that wait.
    """
    if not prices.given:
        return record
    rows = [{**row, **_cost(record.result, row, prices)} for row in record.rows]
    if not any("waiting_gpus" in row for row in rows):
        raise UserError(
            f"nothing in {record.path} waits for the network beside computing: take prices out, or "
            "name the folder of a run with the column `exposed`, such as one of llm, jobs or trace"
        )
    return replace(record, result={**record.result, "rows": rows})


def sentences(record: RunRecord) -> Iterator[str]:
    """Yield a sentence on each row that has a cost."""
    for label, row in zip(record.labels, record.rows, strict=True):
        if "waiting_gpus" in row:
            parts = [f"on average {row['waiting_gpus']:.2f} GPUs wait for the network"]
            if "waiting_watts" in row:
                energy = f"{row['waiting_joules']:.4g} J an iteration"
                parts.append(f"{row['waiting_watts']:.1f} W, {energy}")
            if "waiting_cost_hour" in row:
                parts.append(f"{row['waiting_cost_hour']:.2f} an hour")
            yield f"{label}: {'; '.join(parts)}"


def _cost(
    result: Mapping[str, Any], row: Mapping[str, Any], prices: WaitingPrices
) -> dict[str, float]:
    exposed = row.get("exposed")
    if not isinstance(exposed, int | float):
        return {}
    waiting = exposed * row.get("gpus", row.get("ranks", result["ranks"]))
    found = {"waiting_gpus": waiting}
    if prices.gpu_watts is not None or prices.nic_watts is not None:
        watts = waiting * ((prices.gpu_watts or 0) + (prices.nic_watts or 0))
        found |= {"waiting_watts": watts, "waiting_joules": watts * row["time_us"] / 1e6}
    if prices.gpu_hour is not None:
        found["waiting_cost_hour"] = waiting * prices.gpu_hour
    return found
