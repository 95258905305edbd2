"""The listed modules are those that mypyc may compile."""

import re

from emulator.compiled.hot_modules import HOT
from tests import CHECKOUT

BEARS_IT = "@mypyc_attr(allow_interpreted_subclasses=True)"


def test_hot_modules_are_there_once_each() -> None:
    assert [source for source in HOT if not (CHECKOUT / source).is_file()] == []
    assert sorted(set(HOT)) == list(HOT)


def test_no_other_module_derives_from_a_hot_class() -> None:
    """A compiled class has no derived class that is not compiled, unless it bears that."""
    classes: dict[str, str] = {}
    derived: list[tuple[str, str, str]] = []
    for floor in ("emulator", "scenarios", "topologies", "uet"):
        for path in (CHECKOUT / floor).rglob("*.py"):
            place, text = str(path.relative_to(CHECKOUT)), path.read_text()
            for name, bases in re.findall(r"^ *class (\w+)(?:\((.*?)\))?:", text, re.M | re.S):
                bare = re.sub(r"\[.*?\]", "", bases, flags=re.S)
                derived += [(place, name, base) for base in re.findall(r"\w+", bare)]
                if place in HOT and f"{BEARS_IT}\nclass {name}" not in text:
                    classes[name] = place
    assert len(classes) > 10
    assert [one for one in derived if one[2] in classes and one[0] not in HOT] == []
