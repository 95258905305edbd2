"""YAML text as mappings that keep the line of each key."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.composer import ComposerError
from ruamel.yaml.constructor import ConstructorError, RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from topologies.model import TopologyError

LARGEST_TEXT = 1 << 16  # characters
LONGEST_SHOWN = 40  # characters of a value that cannot be read
DEEPEST = 64  # brackets that are open at once: the parser takes long for thousands


@dataclass(frozen=True)
class Problem:
    """A problem of a text, and its line, counted from 1."""

    line: int
    stated: str


class TextError(TopologyError):
    """A text that is not what it should be: ``problems`` in the order of their lines."""

    def __init__(self, problems: list[Problem], name: str) -> None:
        self.problems = sorted(problems, key=lambda problem: problem.line)
        self.name = name
        first, more = self.problems[0], len(self.problems) - 1
        rest = f" ({more} more: uetemu validate {name})" if more else ""
        super().__init__(f"{name}:{first.line}: {first.stated}{rest}")


def parse_mapping(text: str, name: str) -> CommentedMap:
    """The mapping that ``text`` is.  Raises TextError for anything else; ``name`` is its file's."""
    if len(text) > LARGEST_TEXT:
        raise TextError([Problem(1, f"longer than {LARGEST_TEXT} characters")], name)
    if bracket_depth(text) > DEEPEST:
        raise TextError([Problem(1, f"more than {DEEPEST} brackets are open at once")], name)
    yaml = YAML(typ="rt", pure=True)
    yaml.Constructor = _Constructor
    try:
        content = yaml.load(text)
    except ReaderError as error:
        line = 1 + text.count("\n", 0, error.position)
        stated = f"not YAML: the character #x{error.character:04x} is not allowed"
        raise TextError([Problem(line, stated)], name) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        stated = f"not YAML: {error.problem or error.context}"
        if isinstance(error, ComposerError) and stated.endswith("but found another document"):
            stated = "another document begins here: a fabric profile is a single one"
        raise TextError([Problem(mark.line + 1 if mark else 1, stated)], name) from None
    except RecursionError:
        raise TextError([Problem(1, "nested too deeply")], name) from None
    except (YAMLError, ValueError) as error:
        stated = str(error).partition("\n")[0]
        raise TextError([Problem(1, f"not YAML: {stated}")], name) from None
    if not isinstance(content, CommentedMap):
        raise TextError([Problem(1, "not a mapping: write for example 'segment:'")], name)
    return content


class _Constructor(RoundTripConstructor):
    """A constructor that reports the place of every value that cannot be made.

    This holds whatever the value's maker raises.
    """

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            kind, value = str(node.tag).rpartition(":")[2], str(node.value)
            if len(value) > LONGEST_SHOWN:
                value = f"{value[:LONGEST_SHOWN]}..."
            raise ConstructorError(
                problem=f"{value!r} cannot be read as {kind}",
                problem_mark=node.start_mark,
            ) from None


def bracket_depth(text: str) -> int:
    steps = (1 if character in "[{" else -1 for character in text if character in "[]{}")
    return max(accumulate(steps), default=0)


def line_of(mapping: CommentedMap, key: Any, default: int = 1) -> int:
    """The line of ``key``; ``default`` for one that a merge brought."""
    place = mapping.lc.data.get(key) if mapping.lc.data else None
    return place[0] + 1 if place else default
