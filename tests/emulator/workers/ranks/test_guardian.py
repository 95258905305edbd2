"""Guardians of ranks that are plain programs: who says what of a rank that dies, and when."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from emulator.workers.ranks.guardian import Listener
from tests.harness.lab.traffic import within

BUDGET_S = 60.0
#: A rank that exchanges the contact through the file CONTACT, and then does as its last word says.
PROGRAM = """
import json, os, pathlib, signal, sys, time
from emulator.workers.ranks.guardian import Aftermath, guarded
from emulator.dataplane.kernel.launcher import RankPlace

folder, number, do = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def remove(lab):
    (folder / f"removed-{lab}").touch()

def note(run, sentence):
    (folder / f"noted-{run}").write_text(sentence)

watch = guarded(RankPlace(number, 2), Aftermath(remove=remove, note=note), 300.0)
contact = folder / "contact"
if number == 0:
    (folder / "part").write_text(json.dumps(watch.contact))
    (folder / "part").rename(contact)
while not contact.exists():
    time.sleep(0.01)
watch.introduce(["a", "b"], json.loads(contact.read_text()))
watch.holds(lab=f"lab{number}")
if number == 0:
    watch.holds(folder="run")
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
(folder / f"part-{number}").write_text(str(os.getpid()))
(folder / f"part-{number}").rename(folder / f"rank-{number}")
if do == "exit":
    os._exit(3)
while not ended and not (do == "end" and (folder / "go").exists()):
    time.sleep(0.01)
if do == "vanish":
    os._exit(4)
death = watch.death()
(folder / f"heard-{number}").write_text("" if death is None else death.sentence)
watch.over()
"""


class Pair:
    """Guardians of ranks 0 and 1, which do as ``acts`` say."""

    def __init__(self, folder: Path, *acts: str) -> None:
        self.folder = folder
        self.guardians = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(folder), str(number), act],
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for number, act in enumerate(acts)
        ]
        within(BUDGET_S, lambda: all(self._named(one).exists() for one in range(2)), "ranks run")

    def _named(self, number: int) -> Path:
        return self.folder / f"rank-{number}"

    def rank(self, number: int) -> int:
        """Return the process of a rank."""
        return int(self._named(number).read_text())

    def said(self) -> list[str]:
        """Return the lines of both guardians, once they have ended."""
        ends = [one.communicate(timeout=BUDGET_S)[1] for one in self.guardians]
        return "".join(ends).splitlines()

    def files(self, name: str) -> list[str]:
        """Return the files that begin with ``name``."""
        return sorted(path.name for path in self.folder.glob(f"{name}-*"))


@pytest.mark.parametrize("dead", [0, 1])
def test_a_killed_rank_is_named_once_and_its_lab_removed(dead: int, tmp_path: Path) -> None:
    pair = Pair(tmp_path, "wait", "wait")
    os.kill(pair.rank(dead), signal.SIGKILL)
    (sentence,) = pair.said()
    name = f"MPI rank {dead} on {'ab'[dead]} was killed"
    assert sentence.startswith(f"uetemu: {name}")
    assert pair.guardians[dead].returncode == -signal.SIGKILL
    assert f"removed-lab{dead}" in pair.files("removed")
    assert (tmp_path / f"heard-{1 - dead}").read_text().startswith(name)
    assert (tmp_path / "noted-run").read_text() in sentence


def test_a_rank_that_mpi_ends_is_not_taken_for_the_dead_one(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "vanish", "wait")
    os.kill(pair.rank(1), signal.SIGKILL)
    (sentence,) = pair.said()
    assert sentence.startswith("uetemu: MPI rank 1 on b was killed")
    assert pair.files("removed") == ["removed-lab0", "removed-lab1"]
    assert (tmp_path / "noted-run").read_text().startswith("MPI rank 1 on b was killed")


@pytest.mark.parametrize("dead", [0, 1])
def test_a_machine_without_any_process_left_is_named_by_the_other(
    dead: int, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, "wait", "wait")
    os.killpg(pair.guardians[dead].pid, signal.SIGKILL)
    (sentence,) = pair.said()
    assert sentence.startswith(f"uetemu: MPI rank {dead} on {'ab'[dead]} ended without a word")
    assert (tmp_path / f"heard-{1 - dead}").read_text() in sentence


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_whose_guardian_is_killed_ends(dead: int, tmp_path: Path) -> None:
    pair = Pair(tmp_path, "wait", "wait")
    os.kill(pair.guardians[dead].pid, signal.SIGKILL)
    (sentence,) = pair.said()
    assert sentence.startswith(f"uetemu: MPI rank {dead} on {'ab'[dead]} ended without a word")
    assert pair.files("heard") == ["heard-0", "heard-1"]
    assert "lost the process" in (tmp_path / f"heard-{dead}").read_text()


def _ends(pair: Pair) -> None:
    (pair.folder / "go").touch()


def _terminated(pair: Pair) -> None:
    for one in pair.guardians:
        one.terminate()


@pytest.mark.parametrize("how", [_ends, _terminated])
def test_ranks_that_end_by_themselves_are_no_dead_ones(
    how: Callable[[Pair], None], tmp_path: Path
) -> None:
    pair = Pair(tmp_path, "end", "end")
    how(pair)
    assert pair.said() == []
    assert [one.returncode for one in pair.guardians] == [0, 0]
    assert pair.files("noted") == []
    assert (tmp_path / "heard-0").read_text() == ""


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener()) as made:
        yield made


def says(listener: Listener, octets: bytes) -> object:
    """Return what the listener makes of a stranger who says ``octets`` and stops talking."""
    with socket.create_connection(("127.0.0.1", listener.contact.port), BUDGET_S) as stranger:
        stranger.sendall(octets)
        stranger.shutdown(socket.SHUT_WR)
        assert select.select([listener], [], [], BUDGET_S)[0]
        return listener.accepted()


def hello(listener: Listener, **changes: Any) -> bytes:
    words = {"token": listener.contact.token, "number": 3, "machine": "c"} | changes
    return json.dumps(words).encode() + b"\n"


def test_a_guardian_of_the_job_is_heard(listener: Listener) -> None:
    accepted = says(listener, hello(listener))
    assert isinstance(accepted, tuple)
    assert accepted[:2] == (3, "c")
    accepted[2].close()


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\n",
        b"[" * 50_000 + b"\n",
        b"[]\n",
        b"17\n",
        b'{"number": 1, "machine": "b"}\n',
        '{"token": "\u00e9", "number": 1, "machine": "b"}\n'.encode(),
    ],
    ids=["nothing", "line", "http", "no text", "deep", "list", "number", "no token", "other token"],
)
def test_a_stranger_is_not(listener: Listener, octets: bytes) -> None:
    assert says(listener, octets) is None
    assert isinstance(says(listener, hello(listener)), tuple)


@pytest.mark.parametrize("changes", [{"number": "3"}, {"machine": 1}, {"number": None}])
def test_a_hello_without_its_facts_is_none(listener: Listener, changes: dict[str, object]) -> None:
    assert says(listener, hello(listener, **changes)) is None
