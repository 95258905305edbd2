"""Pages of HTML: strict templates, hashes of their own scripts, drawings that stand in them."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from importlib.resources import files
from xml.etree import ElementTree

import jinja2

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


def page_environment(package: str) -> jinja2.Environment:
    """Return the environment of the templates of ``package``: all values are escaped."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def source_of(package: str, name: str) -> str:
    """Return the text of the file ``name`` beside the templates of ``package``, as it is."""
    return (files(package) / "templates" / name).read_text(encoding="utf-8")


def policy_hash(text: str) -> str:
    """Return the expression by which a content-security policy lets ``text`` run (CSP 2)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class DrawingError(Exception):
    """Graphviz is not there, or cannot draw something."""


def drawn_by_graphviz(source: str) -> str:
    """Return Graphviz's drawing of ``source``, with nothing in it but shapes and text."""
    try:
        done = subprocess.run(
            ["dot", "-Tsvg"],
            input=source,
            capture_output=True,
            text=True,
            check=True,
            timeout=LONGEST_S,
        )
        return only_shapes(done.stdout)
    except (OSError, subprocess.SubprocessError, ElementTree.ParseError) as error:
        raise DrawingError(str(error)) from error


def only_shapes(svg: str) -> str:
    """Return ``svg`` without links, scripts, styles and event handlers, to stand in a page."""
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
