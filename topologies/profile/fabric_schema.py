"""The JSON Schema of a fabric profile, for editors: keys, values and help."""

from __future__ import annotations

from topologies.parts.design_parameters import AUTO, PREFIX, TIME, ParameterKind, WordKind
from topologies.profile.fabric_keys import ON_OFF, QUEUES, SECTIONS, SHARE, Key, Queues, TextPattern
from topologies.units import UNITS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NUMBER = r"[0-9]+(\.[0-9]+)?"
#: Of a DSCP, by its number or its name in any case.
CODE_POINT = r"^([0-9]|[1-5][0-9]|6[0-3]|[EeDd][Ff]|[Ll][Ee]|[Cc][Ss][0-7]|[Aa][Ff][1-4][1-3])$"
TITLES = {
    "segment": "servers, their GPU I/O profile, the rail switch profile",
    "gpu_io": "GPU I/O profile",
    "rail_switch": "rail switch profile",
    "pod": "segments under spines",
    "spine": "spine profile",
    "multi_pod": "pods under super-spines",
    "super_spine": "super-spine profile",
    "global": "what holds for the whole fabric",
    "networks": "the other networks of the servers, each there if it is named",
    "frontend": "the network to users",
    "storage": "the network to storage nodes",
    "management": "the network of all machines that carries no data of jobs",
}


def schema() -> dict[str, object]:
    """Return a schema that accepts every profile whose single values are right.

    Contradictions between values are not found by it.
    """
    return {"$schema": DIALECT, "title": "uetemu fabric profile"} | _section(())


def _section(path: tuple[str, ...]) -> dict[str, object]:
    inner = [each for each in SECTIONS if each[:-1] == path]
    properties = {each[-1]: {"description": TITLES[each[-1]]} | _section(each) for each in inner}
    properties |= {key.name: _key(key) for key in SECTIONS.get(path, ())}
    return {
        "type": "object" if not path else ["object", "null"],
        "additionalProperties": False,
        "properties": properties,
    }


def _key(key: Key) -> dict[str, object]:
    about: dict[str, object] = {"description": key.help}
    forms = _forms(key.kind)
    if key.automatic:
        forms.append({"enum": [AUTO]})
    return about | (forms[0] if len(forms) == 1 else {"anyOf": forms})


def _forms(kind: ParameterKind | WordKind | TextPattern | Queues) -> list[dict[str, object]]:
    """Return what a value of ``kind`` can be."""
    if isinstance(kind, WordKind):
        booleans = [True, False] if set(ON_OFF.words) <= set(kind.words) else []
        return [{"enum": [*kind.words, *booleans]}]
    if isinstance(kind, Queues):
        queue = {"enum": list(QUEUES)}
        return [
            {
                "type": "object",
                "patternProperties": {CODE_POINT: queue},
                "additionalProperties": False,
            }
        ]
    if isinstance(kind, TextPattern):
        number = {"type": "integer", "minimum": 0}
        if kind is SHARE:
            number = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
        return [number, {"type": "string", "pattern": f"^({kind.form})$"}]
    whole = {"type": "integer", "minimum": kind.minimum, "maximum": kind.maximum}
    if kind.base in ("", "bits"):
        slash = "/?" if kind is PREFIX else ""
        return [whole, {"type": "string", "pattern": f"^{slash}[0-9]+$"}]
    units = "|".join(UNITS[kind.base])
    quantity: dict[str, object] = {"type": "string", "pattern": rf"^\s*{NUMBER}\s*({units})\s*$"}
    if kind.base == "octets":
        return [whole, quantity]
    return [quantity, {"enum": [0, "0"]}] if kind is TIME else [quantity]
