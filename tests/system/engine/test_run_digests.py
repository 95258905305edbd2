"""Runs in virtual time come again to the bit, and their digest says so."""

import shlex
import tomllib
from functools import partial
from pathlib import Path

import pytest

from emulator.dataplane.doctor import capabilities
from emulator.sim.event_queue import EventQueue, Source
from emulator.sim.frame_digest import digest
from emulator.sim.line import Line
from emulator.sim.line_state import LineState
from tests import DATA
from tests.harness.runs.processes import SMALL, begun, ended, refused, without_progress
from tests.harness.runs.whole_run import assert_same_files
from topologies.model import CableEnd

RUNS = tomllib.loads((DATA / "run_digests.toml").read_text())["run"]

#: Files of a run folder that tell of nothing but the fabric.
REPEATED = (
    "result.json",
    "telemetry.csv",
    "line_telemetry.csv",
    "timeline.json",
    "fabric.json",
    "capture.pcapng",
)


@pytest.mark.root
@pytest.mark.parametrize("listed", RUNS, ids=[run["name"] for run in RUNS])
def test_listed_runs_have_their_digests(listed: dict[str, str], tmp_path: Path) -> None:
    if (feature := listed.get("needs")) and not capabilities.has(feature):
        pytest.skip(f"this kernel has no {feature}")
    scenario, *arguments = shlex.split(listed["command"])
    requested = ("--check-digest", listed["digest"])
    run = begun(tmp_path, "--capture", "none", *requested, *arguments, scenario=scenario)
    ended(run)


@pytest.mark.root
@pytest.mark.parametrize(
    ("arguments", "logged"),
    [
        (("incast", "--param", "senders=4", "--param", "size=128KiB"), True),
        (("allreduce", *SMALL, "--sizes", "64KiB", "--transport", "uet:tss=direct"), True),
        (("permutation", *SMALL, "--sizes", "64KiB", "--transport", "rocev2:adaptive"), False),
    ],
    ids=["trimming", "secured", "rocev2"],
)
def test_a_run_comes_again_to_the_bit(
    arguments: tuple[str, ...], logged: bool, tmp_path: Path, busy: None
) -> None:
    scenario, *rest = arguments
    more = ["--capture", "all", "--snaplen", "full", "--iterations", "1"]
    more += ["--event-log", "all"] if logged else []
    runs = [begun(tmp_path, *more, *rest, scenario=scenario) for _ in range(2)]
    for run in runs:
        ended(run)
    one, other = (run.folder for run in runs)
    logs = [path.relative_to(one) for path in sorted(one.glob("event-logs/*"))]
    assert bool(logs) == logged
    assert_same_files(one, other, (*REPEATED, *logs))


@pytest.mark.root
def test_another_seed_has_another_digest_and_fails_the_check(tmp_path: Path) -> None:
    listed = next(run for run in RUNS if run["name"] == "uet")
    scenario, *arguments = shlex.split(listed["command"])
    check = ("--check-digest", listed["digest"].upper(), "--seed", "2", "--capture", "none")
    run = begun(tmp_path, *check, *arguments, scenario=scenario)
    status, _, errors = run.communicate()
    assert status == 1
    assert without_progress(errors).count("\n") == 1
    assert f"the digest of this run is {run.result['digest']}, not {listed['digest']}" in errors


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--check-digest", "12ab"), "the 64 hexadecimal digits"),
        (("--check-digest", "g" * 64), "the 64 hexadecimal digits"),
    ],
)
def test_a_digest_that_cannot_be_checked_is_refused(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    assert complaint in refused(tmp_path, *arguments)


class TestDigest:
    FRAME = bytes(range(100))

    def lines(self, frames: list[tuple[int, bytes]], *names: str) -> list[Line]:
        """Lines that have carried ``frames``, which come to them at times in ps."""
        events = EventQueue()
        made = [
            Line(events, number, CableEnd(name, "eth0"), rate_bps=10**9, delay_ns=5)
            for number, name in enumerate(names, start=1)
        ]
        source = Source()
        for line in made:
            line.far = lambda frame: None
            for at, frame in frames:
                events.at(at, source.next(), partial(line.enqueue, queue=3), frame)
        events.run()
        return made

    def digest(self, lines: list[Line]) -> str:
        return digest({line.end: LineState.of(line) for line in lines})

    def test_says_octets_times_lengths_and_ports(self) -> None:
        base = self.digest(self.lines([(0, self.FRAME)], "a", "b"))
        changed = [
            [(0, self.FRAME[:-1] + b"\0")],
            [(1, self.FRAME)],
            [(0, self.FRAME + b"\0")],
            [(0, self.FRAME), (0, self.FRAME)],
            [],
        ]
        found = [self.digest(self.lines(frames, "a", "b")) for frames in changed]
        found.append(self.digest(self.lines([(0, self.FRAME)], "a", "c")))
        assert len({base, *found}) == len(changed) + 2

    def test_does_not_depend_on_the_order_of_ports(self) -> None:
        lines = self.lines([(0, self.FRAME), (7, self.FRAME[:60])], "b", "a", "c")
        assert self.digest(lines) == self.digest(lines[::-1])

    def test_says_what_was_lost_on_the_cable(self) -> None:
        lines = []
        for pulled in (False, True):
            events = EventQueue()
            line = Line(events, 1, CableEnd("a", "eth0"), rate_bps=10**9, delay_ns=5)
            line.far = lambda frame: None
            line.enqueue(self.FRAME, 3)
            if pulled:
                line.pull()
            events.run()
            lines.append(line)
        whole, cut = lines
        assert whole.crc == cut.crc
        assert self.digest([whole]) != self.digest([cut])
