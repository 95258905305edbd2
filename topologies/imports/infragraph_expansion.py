"""An InfraGraph infrastructure expanded: every endpoint of every edge, by the schema's slices.

The schema is that of InfraGraph 3.1.  What is expanded is bounded, whatever a file claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from topologies.exports.infragraph_export import MANY_TO_MANY, ONE_TO_ONE
from topologies.model import TopologyError

Json = Mapping[str, Any]
#: Instances, edges and components that are expanded, at most.
MOST_INSTANCES, MOST_EDGES, MOST_COMPONENTS = 100_000, 1_000_000, 100_000
#: Devices inside each other.
DEEPEST = 8
#: Components of a path, each with its index: ``(("cx5", 0), ("port", 1))``.
Path = tuple[tuple[str, int], ...]
_PART = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")
_SLICE = re.compile(r"(-?\d{1,9})?(?::(-?\d{1,9})?(?::(\d{1,9}))?)?")


@dataclass(frozen=True)
class GraphEndpoint:
    """A component of a device instance."""

    instance: str
    number: int
    path: Path


def objects(container: Json, key: str, what: str) -> list[Json]:
    """Return the list of objects ``key`` of ``container``; TopologyError if it is none."""
    found = container.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise TopologyError(f"{what} {key!r} is no list of objects")
    return found


def text_of(container: Json, key: str, what: str) -> str:
    found = container.get(key)
    if not isinstance(found, str) or not found:
        raise TopologyError(f"{what} has no {key!r} that is a text")
    return found


def count_of(container: Json, what: str, most: int) -> int:
    found = container.get("count")
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= most:
        raise TopologyError(f"{what} has the count {found!r}; a number from 1 to {most} is needed")
    return found


class Devices:
    """The devices of an infrastructure by name, and what they consist of."""

    def __init__(self, infrastructure: Json) -> None:
        self._components: dict[str, dict[str, Json]] = {}
        self._totals: dict[tuple[str, str], int] = {}
        self.by_name: dict[str, Json] = {}
        for device in objects(infrastructure, "devices", "the infrastructure's"):
            name = text_of(device, "name", "a device")
            self.by_name[name] = device
            self._components[name] = {
                text_of(one, "name", f"a component of {name}"): one
                for one in objects(device, "components", f"device {name}'s")
            }

    def components(self, device: str) -> Mapping[str, Json]:
        if device not in self._components:
            raise TopologyError(f"there is no device {device!r} among the infrastructure's")
        return self._components[device]

    def number_of(self, device: str, choice: str, above: tuple[str, ...] = ()) -> int:
        """Return how many components of a ``choice`` a device has, those of inner ones included.

        ``above`` are the devices that contain it.
        """
        if (device, choice) in self._totals:
            return self._totals[device, choice]
        if device in above or len(above) > DEEPEST:
            raise TopologyError(f"device {device} contains itself, or is {DEEPEST} levels deep")
        total = 0
        for name, component in self.components(device).items():
            count = count_of(component, f"component {name} of {device}", MOST_COMPONENTS)
            if component.get("choice") == choice:
                total += count
            elif component.get("choice") == "device":
                total += count * self.number_of(name, choice, (*above, device))
        if total > MOST_COMPONENTS:
            raise TopologyError(f"device {device} has more than {MOST_COMPONENTS} components")
        self._totals[device, choice] = total
        return total

    def paths(self, device: str, text: str) -> list[Path]:
        """Return the components that ``text`` names: ``nic[0:4]``, ``cx5[0].port[1]``."""
        parts: list[list[tuple[str, int]]] = []
        total = 1
        for part in text.split("."):
            name, inside = split(part)
            component = self.components(device).get(name)
            if component is None:
                raise TopologyError(f"device {device} has no component {name!r} ({text})")
            count = count_of(component, f"component {name} of {device}", MOST_COMPONENTS)
            parts.append([(name, number) for number in indices(inside, count, text)])
            total *= len(parts[-1])
            if total > MOST_COMPONENTS:
                raise TopologyError(f"{text!r} names more than {MOST_COMPONENTS} components")
            device = name  # an inner device has its component's name
        return list(product(*parts))


def split(part: str) -> tuple[str, str]:
    """Return name and slice of ``name[slice]``; all where there is no slice."""
    match = _PART.fullmatch(part)
    if match is None:
        raise TopologyError(f"{part!r} is no name with a slice such as nic[0:4]")
    return match[1], match[2] if match[2] is not None else ":"


def indices(inside: str, count: int, text: str) -> Sequence[int]:
    """Return what a slice selects of ``count`` things, as Python has it."""
    match = _SLICE.fullmatch(inside)
    if match is None:
        raise TopologyError(f"the slice [{inside}] of {text!r} is none; write [0], [0:4] or [:]")
    start, stop, step = (int(one) if one else None for one in match.groups())
    if ":" not in inside:
        number = start if start is not None else 0
        if not -count <= number < count:
            raise TopologyError(f"{text!r} has no number {number}; there are {count}")
        return [number % count]
    if step == 0:
        raise TopologyError(f"the slice [{inside}] of {text!r} has the step 0")
    return range(*slice(start, stop, step).indices(count))


def pairs(one: Sequence[Any], other: Sequence[Any], scheme: object) -> Iterator[tuple[Any, Any]]:
    """Yield what a scheme joins; TopologyError for one that InfraGraph's own library refuses."""
    if scheme in (None, ONE_TO_ONE):
        yield from zip(one, other, strict=False)
    elif scheme == MANY_TO_MANY:
        yield from product(one, other)
    else:
        raise TopologyError(f"edges have the scheme {scheme!r}; take one2one or many2many")
