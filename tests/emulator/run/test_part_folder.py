"""Folders of processes that are not the first, and how their files come to it."""

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.dataplane import cleanup
from emulator.errors import UserError
from emulator.run.results import PartFolder, gather_files
from emulator.workers.ranks.exchange import Ranks
from tests.harness.engine.memory_channel import ranks_of


@pytest.fixture
def lab() -> str:
    return f"t-{secrets.token_hex(4)}"


@pytest.fixture
def folder(lab: str) -> Iterator[PartFolder]:
    made = PartFolder(lab)
    yield made
    made.close()


def test_nothing_is_left_of_it(lab: str) -> None:
    made = PartFolder(lab)
    (made.path / "telemetry.csv").write_text("t_us\n")
    made.close()
    assert not cleanup.exists(lab)


def test_it_is_no_leftover_while_its_rank_lives(lab: str, folder: PartFolder) -> None:
    assert cleanup.exists(lab)
    assert lab not in cleanup.leftovers()
    with pytest.raises(UserError, match="cannot make /dev/shm/uetemu"):
        PartFolder(lab)


def test_what_all_ranks_know_is_not_written(folder: PartFolder) -> None:
    before = sorted(folder.path.iterdir())
    folder.event("begin", lab="demo")
    folder.write("result.json", {})
    assert sorted(folder.path.iterdir()) == before


def test_that_of_a_dead_rank_is_a_leftover(lab: str, folder: PartFolder) -> None:
    folder._held.close()  # noqa: SLF001  as the kernel does when a process dies
    assert lab in cleanup.leftovers()


def test_logs_come_to_the_first_rank(tmp_path: Path) -> None:
    ranks = ranks_of(2, patience_s=20)
    folders = [tmp_path / "first", tmp_path / "second"]
    for name, one in zip(("h0g0", "h0g1"), folders, strict=True):
        one.mkdir()
        (one / f"{name}.sqlog").write_text(name)

    def bring(one: Ranks) -> None:
        gather_files(one, folders[one.number])

    threads = [threading.Thread(target=bring, args=(one,)) for one in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {path.name: path.read_text() for path in folders[0].iterdir()}
    assert found == {"h0g0.sqlog": "h0g0", "h0g1.sqlog": "h0g1"}
    assert [path.name for path in folders[1].iterdir()] == ["h0g1.sqlog"]
