"""YAML text as mappings that know the line of each key."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from topologies.model import TopologyError

LARGEST_TEXT = 1 << 16  # characters
DEEPEST = 64  # brackets that are open at once: the parser takes long for thousands


@dataclass(frozen=True)
class Problem:
    """What is wrong with a text, and in which line, counted from 1."""

    line: int
    said: str


class TextError(TopologyError):
    """A text that is not what it should be: ``problems`` in the order of their lines."""

    def __init__(self, problems: list[Problem], name: str) -> None:
        self.problems = sorted(problems, key=lambda problem: problem.line)
        self.name = name
        first, more = self.problems[0], len(self.problems) - 1
        rest = f" ({more} more: uetemu validate {name})" if more else ""
        super().__init__(f"{name}:{first.line}: {first.said}{rest}")


def parse_mapping(text: str, name: str) -> CommentedMap:
    """The mapping that ``text`` is.  Raises TextError for anything else; ``name`` is its file's."""
    if len(text) > LARGEST_TEXT:
        raise TextError([Problem(1, f"longer than {LARGEST_TEXT} characters")], name)
    if _depth(text) > DEEPEST:
        raise TextError([Problem(1, f"more than {DEEPEST} brackets are open at once")], name)
    try:
        content = YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = f"not YAML: {error.problem or error.context}"
        raise TextError([Problem(mark.line + 1 if mark else 1, said)], name) from None
    except (YAMLError, RecursionError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise TextError([Problem(1, f"not YAML: {said}")], name) from None
    if not isinstance(content, CommentedMap):
        raise TextError([Problem(1, "not a mapping: write for example 'segment:'")], name)
    return content


def _depth(text: str) -> int:
    steps = (1 if character in "[{" else -1 for character in text if character in "[]{}")
    return max(accumulate(steps), default=0)


def line_of(mapping: CommentedMap, key: Any, default: int = 1) -> int:
    """The line of ``key``; ``default`` for one that a merge brought."""
    place = mapping.lc.data.get(key) if mapping.lc.data else None
    return place[0] + 1 if place else default
