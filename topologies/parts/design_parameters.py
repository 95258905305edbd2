"""The kinds of parameter that a topology design takes.

A design is a function whose signature is the single statement of its parameters: each is
annotated with a kind (how text becomes an integer, and its least value) and one line of help.
Callers in Python may pass the integer or the text with its unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from topologies import units
from topologies.addressing import LONGEST_PREFIX, SHORTEST_PREFIX
from topologies.model import MAX_MTU, MIN_MTU, TopologyError

AUTO = "auto"  # what the design computes
LONGEST_COUNT = 40  # digits, far beyond every limit: what is longer is not read


def parse_count(text: str) -> int:
    digits = text.removeprefix("-")  # a number below 0 is one: the limits of its kind refuse it
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= LONGEST_COUNT):
        raise TopologyError(f"{text!r} is not a whole number; write for example 6")
    return int(text)


def parse_prefix(text: str) -> int:
    """``text`` as a prefix length, which may be written with its slash."""
    return parse_count(text.removeprefix("/"))


@dataclass(frozen=True)
class ParameterKind:
    """A kind of parameter: how it is read and shown; ``base`` is the unit of its integers."""

    name: str
    base: str
    minimum: int
    maximum: int
    parse: Callable[[str], int]
    format: Callable[[int], str]

    def read(self, field: str, value: int | str) -> int:
        """``value`` in base units.  Raises TopologyError, which names ``field``."""
        try:
            number = self.parse(value) if isinstance(value, str) else value
        except TopologyError as error:
            raise TopologyError(f"{field}: {error}") from None
        if not self.minimum <= number <= self.maximum:
            low, high = self.format(self.minimum), self.format(self.maximum)
            raise TopologyError(f"{field} is {self.format(number)}; it must lie in {low} .. {high}")
        return number


@dataclass(frozen=True)
class TextKind:
    """A kind of parameter that is a text; who takes it reads it."""

    name: str

    def read(self, field: str, value: int | str) -> str:
        return str(value)

    def format(self, value: str) -> str:
        return value


@dataclass(frozen=True)
class WordKind:
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return " | ".join(self.words)

    def read(self, field: str, value: int | str) -> str:
        """``value``, if it is one of the words.  Raises TopologyError, which names ``field``."""
        if value not in self.words:
            raise TopologyError(f"{field} is {value!r}; it is one of {', '.join(self.words)}")
        return str(value)

    def format(self, value: str) -> str:
        return value


COUNT = ParameterKind("count", "", 1, 16_384, parse_count, str)
NUMBER = ParameterKind("count", "", 0, 16_384, parse_count, str)
PREFIX = ParameterKind(
    "prefix length",
    "bits",
    SHORTEST_PREFIX,
    LONGEST_PREFIX,
    parse_prefix,
    lambda length: f"/{length}",
)
RATE = ParameterKind("rate", "bit/s", 1_000, 10**15, units.parse_rate, units.format_rate)
TIME = ParameterKind("time", "ns", 0, 10**9, units.parse_time_ns, units.format_time)
SIZE = ParameterKind("size", "octets", 1, 2**40, units.parse_size, units.format_size)
TEXT = TextKind("text")
MTU = ParameterKind(
    "size", "octets", MIN_MTU, MAX_MTU, units.parse_size, lambda octets: f"{octets} B"
)
