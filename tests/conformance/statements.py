"""The statements a stack is tested against, read from ``statements.toml``."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: The statements of this repository.
SHIPPED = Path(__file__).with_name("statements.toml")

_FAMILY_KEYS = {"title", "prefix"}
_NEEDED = {"text", "source", "confidence"}
_ALLOWED = _NEEDED | {"note", "untested", "left_out"}
_CONFIDENCE = ("A", "B", "C", "I")


class StatementError(ValueError):
    """The file of statements cannot be used; says where and why."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One numbered statement; the keys are explained at the head of ``statements.toml``."""

    number: str
    family: str
    text: str
    source: str
    confidence: str
    note: str = ""
    untested: str = ""
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All statements by number, and the title of each family by its name."""

    titles: Mapping[str, str]
    statements: Mapping[str, Statement]

    def unknown(self, number: str) -> str:
        """Why a marker may not name ``number``: one sentence; empty if it may."""
        if number in self.statements:
            return ""
        known = list(self.statements)
        span = f"{known[0]} to {known[-1]}" if known else "none"
        return f"there is no statement {number} (there are {span}, with gaps)"


def load(path: Path = SHIPPED) -> Catalogue:
    """Read and check the statements of ``path``.

    Raises:
        StatementError: the file is missing, no TOML, or a statement lacks something.
    """
    try:
        families = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StatementError(f"{path}: {error}") from None
    titles: dict[str, str] = {}
    statements: dict[str, Statement] = {}
    for name, family in families.items():
        try:
            for statement in _family(name, family):
                if statement.number in statements:
                    raise StatementError(f"{statement.number} stands in two families")
                statements[statement.number] = statement
        except StatementError as error:
            raise StatementError(f"{path}: {error}") from None
        titles[name] = family["title"]
    return Catalogue(titles, statements)


def _family(name: str, family: object) -> list[Statement]:
    if not isinstance(family, dict) or not all(
        isinstance(family.get(key), str) for key in _FAMILY_KEYS
    ):
        raise StatementError(f"family {name} needs a title and a prefix")
    form = re.compile(re.escape(family["prefix"]) + r"-[0-9]{3}")
    found = []
    for number, entry in family.items():
        if number in _FAMILY_KEYS:
            continue
        if not form.fullmatch(number):
            raise StatementError(f"{number} is not {family['prefix']}- and three digits")
        found.append(_statement(number, name, entry))
    return found


def _statement(number: str, family: str, entry: object) -> Statement:
    if not isinstance(entry, dict):
        raise StatementError(f"{number} is not a table")
    for key, value in entry.items():
        if key not in _ALLOWED:
            raise StatementError(f"{number} has a key {key}; there are {sorted(_ALLOWED)}")
        if not isinstance(value, str) or not value.strip():
            raise StatementError(f"{number}: {key} must say something")
    if missing := _NEEDED - entry.keys():
        raise StatementError(f"{number} has no {min(missing)}")
    if entry["confidence"] not in _CONFIDENCE:
        raise StatementError(f"{number}: confidence must be one of {', '.join(_CONFIDENCE)}")
    if {"untested", "left_out"} <= entry.keys():
        raise StatementError(f"{number} is untested, so left_out has nothing to be left out of")
    return Statement(number=number, family=family, **entry)
