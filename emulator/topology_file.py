"""A topology as JSON and back, field by field as the model declares them.

A lab keeps the topology it was built from in its state directory. So other processes see exactly
that one, whether it came from the catalogue or from a user's own file.
"""

from __future__ import annotations

import enum
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any

from topologies.model import Port, Topology

_SCALARS = (str, int, float, bool)
WRITTEN_AS_TEXT = (IPv4Address, IPv4Interface, IPv4Network, enum.Enum)


def to_json(topology: Topology) -> str:
    return json.dumps(_plain(topology))


def from_json(document: str) -> Topology:
    """The topology that :func:`to_json` wrote.

    Raises ValueError (or its subclass TopologyError), KeyError or TypeError for anything else.
    """
    topology: Topology = _typed(Topology, json.loads(document))
    return topology


def from_record(data: Mapping[str, Any]) -> Topology:
    """The topology of a run folder's ``fabric.json`` (:func:`topologies.exports.mermaid.as_data`).

    It has more than the model, which is left out, and null for the hash seed of what has none.
    Raises as :func:`from_json`.
    """
    of_a_port = {field.name for field in fields(Port)}
    nodes = [
        {key: value for key, value in node.items() if (key, value) != ("hash_seed", None)}
        | {
            "ports": [
                {k: v for k, v in _object(port).items() if k in of_a_port} for port in node["ports"]
            ]
        }
        for node in map(_object, data["nodes"])
    ]
    known = {field.name: data[field.name] for field in fields(Topology) if field.name in data}
    topology: Topology = _typed(Topology, known | {"nodes": nodes})
    return topology


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is no object")
    return value


def _plain(value: object) -> object:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, WRITTEN_AS_TEXT):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def _typed(kind: Any, value: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (option for option in typing.get_args(kind) if option is not type(None))
        return None if value is None else _typed(inner, value)
    if origin is tuple:
        item = typing.get_args(kind)[0]
        return tuple(_typed(item, element) for element in value)
    if origin is None and isinstance(kind, type):
        if is_dataclass(kind):
            if not isinstance(value, Mapping):
                raise TypeError(f"{value!r} is no {kind.__name__}")
            hints = _hints(kind)
            return kind(**{name: _typed(hints[name], given) for name, given in value.items()})
        if issubclass(kind, WRITTEN_AS_TEXT):
            return kind(value)
        if kind in _SCALARS and not _is_scalar(kind, value):
            raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _is_scalar(kind: type, value: object) -> bool:
    """Return whether a value of JSON is one of ``kind``: an integer is a float, a truth is none."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)
