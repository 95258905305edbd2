"""The registry of switch operating systems whose configuration can be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emulator.lab.qos.emulated_qos import EmulatedQos

#: What every configuration says of itself.
WARNING = "Made from an emulated fabric and not verified on hardware: read it before you load it."


@dataclass(frozen=True)
class NosConfig:
    """A configuration, and sentences about what it does not express or leaves to the reader."""

    text: str
    notes: Sequence[str]


@dataclass(frozen=True)
class NosFormat:
    """An operating system by ``name``: ``port`` names its ports by their number from 0."""

    name: str
    title: str
    port: Callable[[int], str]
    write: Callable[[EmulatedQos], NosConfig]


#: The formats by name, in the order of their modules; each registers itself.
FORMATS: dict[str, NosFormat] = {}


def register(one: NosFormat) -> NosFormat:
    """Enter ``one`` into the registry; ValueError if its name is taken."""
    if one.name in FORMATS:
        raise ValueError(f"there are two formats with the name {one.name!r}")
    FORMATS[one.name] = one
    return one


def ports_note(qos: EmulatedQos) -> str:
    """Return the sentence that says which port is which."""
    first, last = qos.ports[0], qos.ports[-1]
    return (
        f"{len(qos.ports)} ports: {first.name} is {first.emulated}, and so on to {last.name}, "
        f"which is {last.emulated}; --ports gives other names."
    )
