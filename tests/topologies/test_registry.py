"""Registries: what is refused, in which order names stand, and when modules are imported."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from topologies.registry import Registry, RegistryError, describe_parameters, parameter


@dataclass(frozen=True)
class Entry:
    name: str
    meaning: str = "something"
    parameters: type | None = None


@dataclass(frozen=True)
class Explained:
    gain: float = parameter(1.5, help="how much")
    limit: int | None = parameter(None, help="at most")


@dataclass(frozen=True)
class Unexplained:
    gain: float = 1.5


def test_names_stand_as_registered_behind_the_default() -> None:
    things: Registry[Entry] = Registry("thing", first="b")
    for name in "abc":
        things.register(Entry(name))
    assert list(things) == ["b", "a", "c"]
    assert things.names("c") == ("c", "a", "b")


@pytest.mark.parametrize(
    ("entry", "refusal"),
    [
        (Entry("a"), "there already is an item 'a' "),
        (Entry("a,b"), "'a,b' is no name of an item"),
        (Entry("b", " "), "the item b has no meaning"),
        (Entry("b", parameters=Unexplained), "the parameter gain of the item b has no meaning"),
    ],
)
def test_what_is_refused_names_its_line(entry: Entry, refusal: str) -> None:
    items: Registry[Entry] = Registry("item")
    items.register(Entry("a"))
    with pytest.raises(RegistryError, match=rf"^{__file__}, line \d+: {refusal}"):
        items.register(entry)
    assert list(items) == ["a"]


def test_parameters_are_described_with_their_defaults() -> None:
    assert describe_parameters(Explained, "x.") == {
        "x.gain=1.5": "how much",
        "x.limit=auto": "at most",
    }


def test_a_look_up_imports_no_more_than_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tmp_path / "room_of_things"
    room.mkdir()
    (room / "__init__.py").write_text(
        "from topologies.registry import Registry\n"
        "from tests.topologies.test_registry import Entry\n"
        "THINGS = Registry('thing', __name__)\n"
    )
    for name in ("first", "second"):
        (room / f"{name}.py").write_text(
            f"from room_of_things import THINGS, Entry\nTHINGS.register(Entry({name!r}))\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    from room_of_things import THINGS  # type: ignore[import-not-found]

    assert THINGS["second"].name == "second"
    assert "room_of_things.first" not in sys.modules
    assert list(THINGS) == ["first", "second"]
    with pytest.raises(KeyError):
        THINGS["third"]
