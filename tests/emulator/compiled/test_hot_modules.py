"""The listed modules are compiled, and none is imported that a changed source has outdated."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from emulator.compiled import hot_modules
from emulator.compiled.hot_modules import HOT, compiled, digest_of, extension_of
from emulator.errors import UserError

SOURCE = HOT[0]


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with one source, its compiled module and the record of a build."""
    monkeypatch.setattr(hot_modules, "ROOT", tmp_path)
    monkeypatch.setattr(hot_modules, "RECORD", tmp_path / "record.json")
    source = tmp_path / SOURCE
    source.parent.mkdir(parents=True)
    source.write_text("one = 1\n")
    extension_of(SOURCE).write_bytes(b"")
    (tmp_path / "record.json").write_text(json.dumps({SOURCE: digest_of(SOURCE)}))
    return source


def test_hot_modules_are_there_once_each() -> None:
    assert [source for source in HOT if not (hot_modules.ROOT / source).is_file()] == []
    assert sorted(set(HOT)) == list(HOT)


def test_no_other_module_derives_from_a_hot_class() -> None:
    """A compiled class has no derived class that is not compiled."""
    root = hot_modules.ROOT
    classes: dict[str, str] = {}
    derived: list[tuple[str, str, str]] = []
    for floor in ("emulator", "scenarios", "topologies", "uet"):
        for path in (root / floor).rglob("*.py"):
            place = str(path.relative_to(root))
            for name, bases in re.findall(
                r"^ *class (\w+)(?:\((.*?)\))?:", path.read_text(), re.M | re.S
            ):
                bare = re.sub(r"\[.*?\]", "", bases, flags=re.S)
                derived += [(place, name, base) for base in re.findall(r"\w+", bare)]
                if place in HOT:
                    classes[name] = place
    assert len(classes) > 10
    assert [one for one in derived if one[2] in classes and one[0] not in HOT] == []


def test_a_compiled_module_of_its_source_is_in_use(built: Path) -> None:
    assert compiled() == [SOURCE]
    extension_of(SOURCE).unlink()
    assert compiled() == []


def test_a_changed_source_asks_for_another_build(built: Path) -> None:
    built.write_text("one = 2\n")
    with pytest.raises(UserError, match=f"{SOURCE} is not what .* compile it again by"):
        compiled()


@pytest.mark.parametrize("record", [None, "", "{"])
def test_a_build_without_its_record_is_refused(built: Path, record: str | None) -> None:
    path = hot_modules.RECORD
    path.unlink() if record is None else path.write_text(record)
    with pytest.raises(UserError, match="--remove"):
        compiled()
