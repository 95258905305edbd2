"""Programs in nodes end by SIGINT, whatever the process that started them ignores."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from emulator.dataplane.kernel.default_signals import popen_options
from tests.system.conftest import LabFactory

#: What a program ignores: a mask of signals, in hexadecimal (proc(5)).
IGNORED = ["sed", "-n", "s/^SigIgn:[[:space:]]*//p", "/proc/self/status"]
INTERRUPTS = 1 << signal.SIGINT - 1 | 1 << signal.SIGQUIT - 1


@pytest.fixture
def background() -> Iterator[None]:
    """Let this process ignore what a job in the background of a script ignores."""
    numbers = (signal.SIGINT, signal.SIGQUIT)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ignored(**options: Any) -> int:
    done = subprocess.run(IGNORED, capture_output=True, text=True, check=True, **options)
    return int(done.stdout, 16) & INTERRUPTS


@pytest.mark.usefixtures("background")
def test_a_program_gets_default_signals() -> None:
    assert ignored() == INTERRUPTS
    assert ignored(**popen_options()) == 0


def test_nothing_is_done_where_nothing_is_ignored() -> None:
    assert popen_options() == {}


@pytest.mark.root
@pytest.mark.usefixtures("background")
def test_programs_in_nodes_have_default_signals(lab: LabFactory) -> None:
    small = lab()
    assert int(small.exec("h0g0", IGNORED).stdout, 16) & INTERRUPTS == 0
    assert small.fabric is not None
    gpu = small.fabric["h0g0"]
    assert int(gpu.cmd(" ".join(f"'{word}'" for word in IGNORED)), 16) & INTERRUPTS == 0
    gpu.sendCmd("cat")
    gpu.sendInt()
    gpu.waitOutput()


@pytest.mark.nightly
def test_the_suite_itself_can_be_started_in_the_background() -> None:
    """What tests start then ends by SIGINT, too."""
    test = (
        "import signal, subprocess\n"
        "def test_a_child():\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    child.send_signal(signal.SIGINT)\n"
        "    assert child.wait(60) == -signal.SIGINT\n"
    )
    code = f"import pathlib, tempfile, pytest, sys; test = {test!r}\n" + (
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    (pathlib.Path(folder) / 'test_it.py').write_text(test)\n"
        "    sys.exit(pytest.main(['-q', '-p', 'tests.conftest', '--rootdir', folder, folder]))\n"
    )
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", code],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
