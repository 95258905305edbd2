"""The fabric's drawing, coloured by the load of its links, for each row of a run."""

from __future__ import annotations

from emulator.html_page import DrawingError, drawn_by_graphviz
from emulator.report import row_heat
from emulator.report.row_heat import MEASURES
from emulator.report.run.figures.figure import Figure
from emulator.report.run_folder import NO_ROW, RunRecord, drawn_rows
from topologies.exports.dot import to_dot

#: Octets of all drawings together: more rows than fit are not drawn.
MOST_OCTETS = 3_000_000


def drawing_figure(record: RunRecord) -> Figure:
    """Return the drawing of each drawn row, or why there is none."""
    name, title, point = "fabric", "The fabric, coloured by load", "port that sent: switch or NIC"
    if record.topology is None:
        return Figure.none(name, title, point, record.missing["fabric.json"])
    if not record.rows:
        return Figure.none(name, title, point, NO_ROW)
    drawings: dict[int, str] = {}
    octets = 0
    for row in reversed(drawn_rows(len(record.rows))):
        if row not in record.ports:
            continue
        try:
            svg = drawn_by_graphviz(
                to_dot(record.topology, heat=row_heat.heat(record, row, "utilisation"))
            )
        except DrawingError:
            return Figure.none(
                name,
                title,
                point,
                "Graphviz's program dot is missing, or could not draw it: "
                "vagrant/provision.sh --with drawings brings it",
            )
        octets += len(svg)
        if drawings and octets > MOST_OCTETS:
            break
        drawings[row] = svg
    if not drawings:
        reason = record.missing.get("events.jsonl", "events.jsonl does not tell what ports saw")
        return Figure.none(name, title, point, reason)
    left_out = len(record.ports) - len(drawings)
    more = f" {left_out} rows are not drawn." if left_out > 0 else ""
    records = [
        {
            "row": row,
            "port": str(port),
            "to": str(to),
            "utilisation_percent": round(
                MEASURES["utilisation"].value(counted, str(port), link), 3
            ),
        }
        for row, counted in record.ports.items()
        if row in drawings
        for link in record.topology.links
        for port, to in (link.ends, link.ends[::-1])
    ]
    return Figure(
        name=name,
        title=title,
        point=point,
        note="Share of the row's time in which each link sent, all classes, in its busier "
        f"direction. Boxes that are alike are drawn as one; uetemu graph --full draws all.{more}",
        records=records,
        svg=drawings,
        by_row=True,
    )
