"""The listed modules are those that mypyc may compile."""

from __future__ import annotations

import re

from emulator.compiled.hot_modules import HOT
from tests import CHECKOUT


def test_hot_modules_are_there_once_each() -> None:
    assert [source for source in HOT if not (CHECKOUT / source).is_file()] == []
    assert sorted(set(HOT)) == list(HOT)


def test_no_other_module_derives_from_a_hot_class() -> None:
    """A compiled class has no derived class that is not compiled."""
    classes: dict[str, str] = {}
    derived: list[tuple[str, str, str]] = []
    for floor in ("emulator", "scenarios", "topologies", "uet"):
        for path in (CHECKOUT / floor).rglob("*.py"):
            place = str(path.relative_to(CHECKOUT))
            for name, bases in re.findall(
                r"^ *class (\w+)(?:\((.*?)\))?:", path.read_text(), re.M | re.S
            ):
                bare = re.sub(r"\[.*?\]", "", bases, flags=re.S)
                derived += [(place, name, base) for base in re.findall(r"\w+", bare)]
                if place in HOT:
                    classes[name] = place
    assert len(classes) > 10
    assert [one for one in derived if one[2] in classes and one[0] not in HOT] == []
