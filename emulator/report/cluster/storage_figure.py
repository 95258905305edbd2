"""The figure of storage over TCP beside RDMA: use of the storage nodes' ports, with each clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from emulator.report.cluster.cluster_record import ClusterRecord
from emulator.report.run.figures import vega_lite
from emulator.report.run.figures.figure import Figure
from emulator.report.run.figures.vega_lite import encoding, tooltip

NAME, TITLE = "storage-ports", "Storage: use of the storage nodes' ports"
POINT = "clients, by octets and time; virtual rows: messages of the run by RDMA"
NOTE = (
    "Bars of the host's clock that the machine binds say how fast this machine is; those in "
    "virtual time are the network's and the transport's."
)
#: What a row has to have.
KEYS = ("what", "transport", "clock", "port_share", "busy_share", "bound_by", "GBps")
HEIGHT = 220


def storage_figures(record: ClusterRecord) -> Iterator[Figure]:
    """Yield the figure, if the run has rows over several transports."""
    rows = [row for row in record.result.get("rows", ()) if all(key in row for key in KEYS)]
    if not rows:
        return
    records = [{key: row[key] for key in KEYS} | {"by": _by(row)} for row in rows]
    drawn = [one for one in records if one["port_share"] is not None]
    order = list(dict.fromkeys(one["what"] for one in records))
    yield Figure(name=NAME, title=TITLE, point=POINT, note=NOTE, records=drawn, spec=_spec(order))


def _by(row: Mapping[str, Any]) -> str:
    return f"{row['transport']}, {row['clock']} clock"


def _spec(order: list[str]) -> vega_lite.Json:
    bars = {
        "mark": {"type": "bar"},
        "encoding": {
            "x": encoding("what", "N", None, sort=order, axis={"labelAngle": 0}),
            "xOffset": {"field": "by", "sort": None},
            "y": encoding("port_share", "Q", "use of ports (1 is all)", scale={"domain": [0, 1]}),
            "color": encoding("by", "N", None, sort=None),
            "tooltip": tooltip(
                ("what", "work"),
                ("by", "over"),
                ("port_share", "use of ports"),
                ("GBps", "GB/s of a server"),
                ("bound_by", "bound by"),
                ("busy_share", "processors busy"),
            ),
        },
    }
    return vega_lite.figure([bars], by_row=False, height=HEIGHT)
