"""Every topology design by name, and ``NAME:param=value,...`` turned into a topology."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping

from topologies.advice import question
from topologies.garbage import uncollected
from topologies.model import Topology, TopologyError
from topologies.parts.design import DESIGNS as DESIGNS
from topologies.parts.design import CatalogueEntry
from topologies.parts.design_parameters import AUTO

DEFAULT = "rail_clos"


def load(spec: str = DEFAULT) -> Topology:
    """Build the topology that ``spec`` (``NAME`` or ``NAME:param=value,...``) describes.

    Raises TopologyError for an unknown design, parameter, unit or value, naming the way out.
    """
    name, _, rest = spec.strip().partition(":")
    values: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not (key and equals and value):
            raise TopologyError(f"{item!r} in {spec!r} is not param=value, such as hosts=6")
        if key in values:
            raise TopologyError(f"{key} is given twice in {spec!r}; keep one of them")
        values[key] = value
    return build(name, values)


def build(name: str, values: Mapping[str, str]) -> Topology:
    """Build design ``name`` with parameters as text; those left out keep their defaults."""
    if name not in DESIGNS:
        raise TopologyError(f"there is no topology {name!r}; {_way_out(name, DESIGNS)}")
    design = DESIGNS[name]
    arguments: dict[str, int | str] = {}
    for key, value in values.items():
        if key not in design.fields:
            way_out = _way_out(key, design.fields)
            raise TopologyError(f"topology {name} has no parameter {key!r}; {way_out}")
        parameter = design.fields[key]
        if value == AUTO and parameter.default == AUTO:
            continue
        arguments[key] = parameter.kind.read(key, value)
    with uncollected():
        return design.parameters(**arguments).topology()


def rebuilt(topology: Topology, **changes: str) -> Topology:
    """The fabric that the design of ``topology`` builds with ``changes`` of its parameters."""
    return build(topology.name, {**_texts(topology), **changes})


def spec_of(topology: Topology) -> str:
    """A spec that builds ``topology`` again: its design with every parameter spelled out."""
    items = (f"{name}={text}" for name, text in _texts(topology).items())
    return f"{topology.name}:{','.join(items)}"


def _texts(topology: Topology) -> dict[str, str]:
    """Every parameter of ``topology`` that has a value, as text."""
    design = DESIGNS.get(topology.name)
    if design is None:
        raise TopologyError(f"topology {topology.name} is not of the catalogue")
    texts = {}
    for name, parameter in design.fields.items():
        value = topology.parameters[name]
        if value is None:
            continue
        shown = parameter.kind.format(value)  # type: ignore[arg-type]
        texts[name] = shown.replace(" ", "")
    return texts


def describe() -> str:
    """Every design with its parameters, kinds, defaults and meanings, for ``--help``.

    Of a design that is another with other defaults, only those.
    """
    lines = []
    for design in DESIGNS.values():
        lines.append(f"{design.name}: {design.meaning}")
        base = next((each for each in DESIGNS.values() if each.parameters in _bases(design)), None)
        known = {} if base is None else base.fields
        changed = []
        for p in design.fields.values():
            if p.name not in known:
                lines.append(f"  {f'{p.name}={p.default}':<24} {p.help} ({p.kind.name})")
            elif p.default != known[p.name].default:
                changed.append(f"{p.name}={p.default}")
        if base is not None:
            lines += textwrap.wrap(
                f"as {base.name}{' with ' if changed else ''}{', '.join(changed)}",
                width=96,
                initial_indent="  ",
                subsequent_indent="    ",
            )
    return "\n".join(lines)


def _bases(design: CatalogueEntry) -> tuple[type, ...]:
    return design.parameters.__mro__[1:]


def _way_out(word: str, known: Iterable[str]) -> str:
    names = list(known)
    asked = question(word, names)
    return f"{asked}{' ' if asked else ''}known are {', '.join(names)}"
