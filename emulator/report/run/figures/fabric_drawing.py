"""The fabric's drawing, coloured by the load of its links, for each row of a run."""

from __future__ import annotations

import subprocess
from xml.etree import ElementTree

from emulator.report.run.figures.figure import Figure
from emulator.report.run.row_labels import drawn_rows
from emulator.report.run.run_record import NO_ROW, RunRecord
from emulator.run.report import row_heat
from emulator.run.report.row_heat import MEASURES
from emulator.run.report.row_ports import RecordedRun
from topologies.exports.dot import to_dot

#: Octets of all drawings together: more rows than fit are not drawn.
MOST_OCTETS = 3_000_000
#: Graphviz gets this long for one drawing (s).
LONGEST_S = 30
_SVG = "http://www.w3.org/2000/svg"
_ELEMENTS = frozenset(
    {"svg", "g", "title", "text", "tspan", "path", "polygon", "polyline", "ellipse", "line", "rect"}
)
_ATTRIBUTES = frozenset(
    {
        *(
            "viewBox",
            "width",
            "height",
            "transform",
            "class",
            "d",
            "points",
            "cx",
            "cy",
            "rx",
            "ry",
        ),
        *("x", "y", "x1", "y1", "x2", "y2", "fill", "stroke", "stroke-width", "stroke-dasharray"),
        *("text-anchor", "font-family", "font-size", "font-weight", "opacity", "fill-opacity"),
    }
)


def drawing_figure(record: RunRecord) -> Figure:
    """Return the drawing of each drawn row, or why there is none."""
    name, title, point = "fabric", "The fabric, coloured by load", "port that sent: switch or NIC"
    if record.topology is None:
        return Figure.none(name, title, point, record.missing["fabric.json"])
    if not record.rows:
        return Figure.none(name, title, point, NO_ROW)
    run = RecordedRun(
        path=record.path,
        topology=record.topology,
        scenario=str(record.result.get("scenario")),
        rows=tuple(record.rows),
        ports=record.ports,
    )
    drawings: dict[int, str] = {}
    octets = 0
    for row in reversed(drawn_rows(len(record.rows))):
        if row not in record.ports:
            continue
        try:
            svg = _drawn(to_dot(run.topology, heat=row_heat.heat(run, row, "utilisation")))
        except (OSError, subprocess.SubprocessError, ElementTree.ParseError):
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


def _drawn(source: str) -> str:
    """Graphviz's drawing of ``source``, with nothing in it but shapes and text."""
    done = subprocess.run(
        ["dot", "-Tsvg"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST_S,
    )
    return only_shapes(done.stdout)


def only_shapes(svg: str) -> str:
    """``svg`` without links, scripts, styles and event handlers, to stand in a page."""
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(svg)
    _strip(root)
    return ElementTree.tostring(root, encoding="unicode")


def _strip(element: ElementTree.Element) -> None:
    for name in [name for name in element.attrib if name not in _ATTRIBUTES]:
        del element.attrib[name]
    for child in [*element]:
        tag = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else ""
        if tag == "a":  # its content stays
            child.tag = f"{{{_SVG}}}g"
        elif tag not in _ELEMENTS:
            element.remove(child)
            continue
        _strip(child)
