"""A keeper runs its program when its starter was killed, and else ends with the block."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from emulator.dataplane.kernel.keeper import NAME
from tests import CHECKOUT
from tests.harness.lab.traffic import within

BUDGET_S = 60.0
#: Has a keeper that makes a file, and a child that holds what it inherits, as agents do.
STARTER = """
import os, signal, sys
from emulator.dataplane.kernel.keeper import kept
code = "import sys; from pathlib import Path; import emulator; Path(sys.argv[1]).touch()"
with kept(code, sys.argv[1]):
    child = os.fork()
    if child == 0:
        signal.pause()
    print(child, flush=True)
    sys.stdin.readline()
print("over", flush=True)
sys.stdin.readline()
os.kill(child, signal.SIGKILL)
"""


class Starter:
    """A process with a keeper, whose program makes the file ``done``."""

    def __init__(self, folder: Path) -> None:
        self.done = folder / "done"
        self.process = subprocess.Popen(
            [sys.executable, "-c", STARTER, str(self.done)],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.child = int(self.line())
        (self.keeper,) = self.keepers()

    def line(self) -> str:
        """Return the next line of the process."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        """Let the process take its next step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def keepers(self) -> list[psutil.Process]:
        """Return the keepers that wait."""
        found = psutil.process_iter(["name", "cmdline"])
        return [
            one
            for one in found
            if one.info["name"] == NAME and str(self.done) in (one.info["cmdline"] or [])
        ]

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send ``number`` to the process and its child."""
        os.killpg(self.process.pid, number)

    def close(self) -> None:
        """End what there is."""
        for one in (self.process.pid, self.child):
            if psutil.pid_exists(one):
                os.kill(one, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    made = Starter(tmp_path)
    yield made
    made.close()


def _with_its_child(starter: Starter) -> None:
    starter.kill()


def _alone(starter: Starter) -> None:
    starter.process.kill()


@pytest.mark.parametrize("killed", [_with_its_child, _alone])
def test_the_program_runs_once_its_starter_is_killed(
    killed: Callable[[Starter], None], starter: Starter
) -> None:
    killed(starter)
    within(BUDGET_S, starter.done.exists, "the program has run")
    within(BUDGET_S, lambda: not starter.keeper.is_running(), "its process has ended")


def test_the_program_does_not_run_after_the_block(starter: Starter) -> None:
    starter.go_on()
    assert starter.line() == "over"
    within(BUDGET_S, lambda: not starter.keepers(), "the keeper has ended")
    starter.kill()
    starter.process.wait()
    assert not starter.done.exists()


def test_signals_of_a_session_do_not_end_a_keeper(starter: Starter) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        starter.keeper.send_signal(number)
    assert os.getsid(starter.keeper.pid) != starter.process.pid
    starter.kill(signal.SIGTERM)
    within(BUDGET_S, starter.done.exists, "the program has run")


def test_a_keeper_has_no_stream_of_its_starter(starter: Starter) -> None:
    held = {
        os.readlink(one) for one in Path(f"/proc/{starter.keeper.pid}/fd").iterdir() if one.exists()
    }
    theirs = {os.readlink(f"/proc/{starter.process.pid}/fd/{stream}") for stream in range(3)}
    assert "/dev/null" in held
    assert not held & theirs


def test_a_process_whose_keeper_was_killed_goes_on(starter: Starter) -> None:
    starter.keeper.kill()
    within(BUDGET_S, lambda: not starter.keepers(), "the keeper is gone")
    starter.go_on()
    assert starter.line() == "over"
    starter.go_on()
    assert starter.process.wait(BUDGET_S) == 0
