"""A picture of a fabric as Graphviz source.

Tiers are rows; where cables join switches of one tier (a torus, the groups of a dragonfly) there is
nothing to put in rows. There Graphviz's neato places the boxes by the length of paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TypeVar

from topologies.exports.heat import Heat
from topologies.exports.picture import Box, Picture, PictureLine, PictureRow, picture
from topologies.model import Topology

FONT = "Helvetica,Arial,sans-serif"
FAINT = "#8a8a8a"
#: Of a tool tip: dot reads strings of 16 KiB at most.
MOST_LISTED = 128
_Item = TypeVar("_Item")


def to_dot(topology: Topology, *, full: bool = False, heat: Heat | None = None) -> str:
    """Graphviz source of ``topology``, of readable size unless ``full``; see :func:`picture`."""
    return source(picture(topology, full=full, heat=heat), topology.name)


def source(drawing: Picture, name: str, *, numbered: bool = False) -> str:
    """``drawing`` for the program ``dot``.

    ``numbered`` gives each line a class in the SVG: ``line-0`` for the first, and so on.
    """
    lines = [
        f"graph {_quoted(name)} {{",
        f"  graph [{_layout(drawing)}, bgcolor=white, fontname={_quoted(FONT)},"
        f" labelloc=t, label=<{_heading(drawing)}>];",
        f"  node [shape=plain, fontname={_quoted(FONT)}, fontsize=11];",
        f"  edge [fontname={_quoted(FONT)}, fontsize=10];",
    ]
    if not drawing.direct:
        lines += _pods(drawing)
    lines += map(_box, drawing.boxes)
    if not drawing.direct:
        for row in drawing.rows:
            lines += _row(row)
        titles = [_quoted(_title_of(row)) for row in drawing.rows]
        if len(titles) > 1:
            lines.append(f"  {' -- '.join(titles)} [style=invis, weight=1000];")
    for number, line in enumerate(drawing.lines):
        name_of = f"line-{number}" if numbered else None
        lines.append(_line(line, straight=not drawing.direct, name=name_of))
    return "\n".join([*lines, "}", ""])


def _layout(drawing: Picture) -> str:
    if drawing.direct:
        return 'layout=neato, overlap=scalexy, sep="+24", splines=true'
    widest = max(sum(max(1, len(box.cells)) for box in row.boxes) for row in drawing.rows)
    between = max(1.2, 0.06 * widest)  # inches: a wide row needs height too
    # remincross: rows have their order, and dot need not look for one with fewer crossings
    rows = "rankdir=BT, newrank=true, remincross=false, splines=line"
    return f"{rows}, nodesep=0.35, ranksep={between:g}"


def _heading(drawing: Picture) -> str:
    first, *more = drawing.title
    rows = [f'<TR><TD><FONT POINT-SIZE="15"><B>{escape(first)}</B></FONT></TD></TR>']
    rows += [f"<TR><TD>{escape(text)}</TD></TR>" for text in more]
    if drawing.heat is not None:
        rows.append(f"<TR><TD>{_legend(drawing.heat)}</TD></TR>")
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="2">{"".join(rows)}</TABLE>'


def _legend(heat: Heat) -> str:
    cells = "".join(
        f'<TD BGCOLOR="{colour}" WIDTH="22" HEIGHT="12" FIXEDSIZE="TRUE"></TD>'
        f'<TD ALIGN="LEFT">{escape(text)}  </TD>'
        for colour, text in heat.legend()
    )
    several = (
        '<TR><TD COLSPAN="12">a line is coloured by the busiest of its links and directions; '
        "↑ away from GPUs, ↓ towards them</TD></TR>"
    )
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="3"><TR>{cells}</TR>{several}</TABLE>'


def _box(box: Box) -> str:
    # An HTML-like label: dot loses edges between neighbours whose shape is "record".
    top = "".join(
        f'<TD PORT="{escape(cell.key)}">{"<BR/>".join(map(escape, cell.text))}</TD>'
        for cell in box.cells
    )
    top = f"<TR>{top}</TR>" if top else ""
    name, *more = (escape(text) for text in box.title)
    text = "<BR/>".join([f"<B>{name}</B>", *more])
    span = max(1, len(box.cells))
    style = f'COLOR="{box.colour}" CELLBORDER="1" CELLSPACING="0" CELLPADDING="5"'
    label = f'<TABLE BORDER="2" {style}>{top}<TR><TD COLSPAN="{span}">{text}</TD></TR></TABLE>'
    if box.count > 1:  # a second frame: more than one
        label = f'<TABLE BORDER="1" {style}><TR><TD BORDER="0">{label}</TD></TR></TABLE>'
    return f"  {_quoted(box.key)} [label=<{label}>, tooltip={_quoted(_listed(box.members))}];"


def _row(row: PictureRow) -> Iterator[str]:
    title = _quoted(_title_of(row))
    first, *more = (escape(text) for text in row.title)
    text = "<BR/>".join([f"<B>{first}</B>", *more])
    yield f'  {title} [label=<<FONT COLOR="{FAINT}">{text}</FONT>>];'
    order = [title, *(_quoted(box.key) for box in row.boxes)]
    yield f"  {{ rank=same; {'; '.join(order)}; }}"
    # keeps the row in its order; the edges' crossings do not decide it
    yield f"  {' -- '.join(order)} [style=invis];"


def _pods(drawing: Picture) -> Iterator[str]:
    """A frame around the boxes of each pod, if there are several."""
    pods: dict[int, list[str]] = {}
    for box in drawing.boxes:
        if box.pod is not None:
            pods.setdefault(box.pod, []).append(_quoted(box.key))
    if len(pods) < 2:
        return
    # the titles of rows first, in a frame of their own: else dot does not keep the pods in order
    titles = "; ".join(_quoted(_title_of(row)) for row in drawing.rows)
    yield f'  subgraph "cluster titles" {{ label=""; peripheries=0; {titles}; }}'
    for pod, keys in pods.items():
        yield (
            f'  subgraph "cluster pod {pod}" {{ label="pod {pod}"; labeljust=l; color="{FAINT}"; '
            f'style=dashed; fontcolor="{FAINT}"; {"; ".join(keys)}; }}'
        )


def _line(line: PictureLine, *, straight: bool, name: str | None) -> str:
    cables = _listed(line.links, lambda link: f"{link.a} - {link.b}")
    reported = _quoted(f"{line.text}\n{cables}".strip())
    style = [f'color="{line.colour}"', f"penwidth={line.width:g}", f"edgetooltip={reported}"]
    if line.standby:
        style.append("style=dashed")
    if name is not None:
        style.append(f"class={_quoted(name)}")
    lower, upper = _quoted(line.lower), _quoted(line.upper)
    if straight and line.cell is not None:
        lower, upper = f"{lower}:{_quoted(line.cell)}:n", f"{upper}:s"
    if line.cell is None and line.text:
        text = "<BR/>".join(map(escape, line.text.split("\n")))
        style.append(f'label=<<TABLE BORDER="0" BGCOLOR="white"><TR><TD>{text}</TD></TR></TABLE>>')
    return f"  {lower} -- {upper} [{', '.join(style)}];"


def _listed(items: Sequence[_Item], shown: Callable[[_Item], str] = str) -> str:
    more = len(items) - MOST_LISTED
    reported = ", ".join(map(shown, items[:MOST_LISTED]))
    return f"{reported} and {more} more" if more > 0 else reported


def _title_of(row: PictureRow) -> str:
    return f"row {row.height}"  # no name of a node has a blank


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def scalable(drawing: str) -> str:
    """Return ``drawing``, whose root has a viewBox, no wider than the page that it is shown in."""
    return drawing.replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)
