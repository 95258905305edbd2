"""The counters of the endpoints for each row of a run: written while it runs.

``events.jsonl`` has a line for each row, behind how long its messages took::

    {"event": "endpoints", "row": 2, "transport": "uet",
     "counters": {"tx_data_packets": 4416, "rx_acks": 1104, "rto_expirations": 3, ...}}

``row`` counts from 1.  The counters are sums over all endpoints and the iterations that count;
those that did not change may be left out.
"""

from __future__ import annotations

from emulator.scenario import Outcome

EVENT = "endpoints"


def endpoints_of(row: int, transport: str, outcome: Outcome) -> dict[str, object]:
    """Return the event of the ``row``-th row (from 1), which ran with ``transport``."""
    return {"row": row, "transport": transport, "counters": dict(sorted(outcome.counters.items()))}
