"""The JSON Schema of a fabric profile, for editors: keys, values and help, as the keys say."""

from __future__ import annotations

from topologies.fabric_keys import DEPTH, ON_OFF, SECTIONS, Key, Pattern
from topologies.parameters import Choice

DIALECT = "https://json-schema.org/draft/2020-12/schema"
QUANTITY = r"^[0-9.]+ ?[A-Za-zµ/]+$"
TITLES = {
    "segment": "servers, their GPU I/O profile, the rail switch profile",
    "gpu_io": "GPU I/O profile",
    "rail_switch": "rail switch profile",
    "pod": "segments under spines",
    "spine": "spine profile",
    "multi_pod": "pods under super-spines",
    "super_spine": "super-spine profile",
    "global": "what holds for the whole fabric",
}


def schema() -> dict[str, object]:
    """Accepts every profile whose single values are right; contradictions between them are not
    the schema's to find."""
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
    kind = key.kind
    if kind is ON_OFF:
        return about | {"enum": [*ON_OFF.words, True, False]}
    if isinstance(kind, Choice):
        return about | {"enum": list(kind.words)}
    if isinstance(kind, Pattern):
        return about | {"type": ["string", "integer" if kind is DEPTH else "number"]}
    if kind.base in ("", "bits"):
        whole = {"type": "integer", "minimum": kind.minimum, "maximum": kind.maximum}
        return about | ({"anyOf": [whole, {"type": "string", "pattern": "^/?[0-9]+$"}]})
    if kind.base == "octets":
        return about | {"type": ["string", "integer"]}
    return about | {"type": "string", "pattern": QUANTITY}
