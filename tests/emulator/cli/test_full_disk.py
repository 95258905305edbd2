"""A file that finds no room is not begun: what stood there stays, and nothing is left beside it."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner

from emulator.cli import run_verb
from emulator.cli.graph import graph_verb, qos_verb
from emulator.cli.reports import compare_verb, report_verb
from emulator.errors import UserError
from tests.harness.runs.written_folder import result, row, write_folder

ROOM = 400
OLD = "what stood there before"


@pytest.fixture
def no_room() -> Iterator[Callable[[], None]]:
    """Let no file of this process become longer than ROOM octets, from the call on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


VERBS: dict[str, tuple[Command, tuple[str, ...]]] = {
    "graph.json": (graph_verb.command, ("rail_clos", "--output", "{file}")),
    "graph.svg": (graph_verb.command, ("rail_clos", "--output", "{file}")),
    "config_db.json": (
        qos_verb.command,
        ("rail_clos", "--nos", "sonic", "--node", "rail0", "--output", "{file}"),
    ),
    "report.html": (report_verb.command, ("{run}", "--output", "{file}")),
    "compared.html": (compare_verb.command, ("{run}", "{run}", "--html", "{file}")),
}


@pytest.mark.parametrize("name", VERBS)
def test_a_file_without_room_is_not_begun(
    tmp_path: Path, name: str, no_room: Callable[[], None]
) -> None:
    there = write_folder(tmp_path / "run", result(row()))
    file = tmp_path / "out" / name
    file.parent.mkdir()
    file.write_text(OLD)
    command, words = VERBS[name]
    places = {"file": file, "run": there, "folder": file.parent}
    no_room()
    ended = CliRunner().invoke(command, [word.format(**places) for word in words])
    assert isinstance(ended.exception, UserError), ended.output
    said = str(ended.exception)
    assert said.startswith(f"cannot write {file}: File too large; make room")
    assert said.endswith(("another place", f"another place with {words[-2]}"))
    assert [(path.name, path.read_text()) for path in file.parent.iterdir()] == [(name, OLD)]


def test_a_run_without_room_leaves_no_half_of_a_file(
    tmp_path: Path, no_room: Callable[[], None]
) -> None:
    folder = tmp_path / "run"
    no_room()
    ended = CliRunner().invoke(
        run_verb.command, ["incast", "--fabric", "model", "--output", str(folder)]
    )
    assert isinstance(ended.exception, UserError), ended.output
    assert str(ended.exception).startswith(f"cannot write {folder}/result.json: File too large;")
    assert [path.name for path in folder.iterdir()] == ["events.jsonl"]


def test_a_device_is_written_and_a_link_stays_one(tmp_path: Path) -> None:
    target, link, null = tmp_path / "target", tmp_path / "link.dot", tmp_path / "null.dot"
    target.write_text(OLD)
    target.chmod(0o640)
    link.symlink_to(target)
    null.symlink_to("/dev/null")
    for place in (link, null):
        CliRunner().invoke(graph_verb.command, ["rail_clos", "-o", str(place)])
    assert link.is_symlink()
    assert target.read_text().startswith("graph ")
    assert target.stat().st_mode & 0o777 == 0o640
    assert Path("/dev/null").is_char_device()
