"""What a run need not try again, as it has worked since the machine was started."""

from pathlib import Path

import pytest

from emulator.dataplane.doctor import capabilities, known_to_work, probes


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where it stands in this test, which does not exist yet."""
    path = tmp_path / "cache" / "works"
    monkeypatch.setattr(known_to_work, "RECORD", path)
    return path


def test_it_is_known_until_something_else_stands_there(record: Path) -> None:
    assert not known_to_work.is_known()
    known_to_work.note()
    assert known_to_work.is_known()
    record.write_text("of another start")
    assert not known_to_work.is_known()


def test_a_cache_that_cannot_be_written_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(known_to_work, "RECORD", tmp_path / "file" / "works")
    known_to_work.note()
    assert not known_to_work.is_known()


def test_only_who_asks_for_it_goes_by_what_is_known(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    refused: dict[str, str | None] = {}

    def refusals(names: list[str]) -> dict[str, str | None]:
        tried.extend(names)
        return {name: refused.get(name) for name in names}

    monkeypatch.setattr(probes, "refusals", refusals)
    refused["switch-asic"] = "no"
    assert not capabilities.probe(known=True)["switch-asic"].present
    assert not record.exists()
    refused.clear()
    for known, count in ((True, 2), (True, 2), (False, 3)):
        assert capabilities.probe(known=known)["switch-asic"].present
        assert tried.count("switch-asic") == count
