"""``uetemu -v`` and ``UETEMU_LOG``: what is logged, and how wrong words are refused."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from emulator import logs
from emulator.errors import UserError


@pytest.fixture(autouse=True)
def _loggers() -> Iterator[None]:
    """Leave the loggers as they were."""
    names = [*logs.ROOTS, "emulator.dataplane.kernel"]
    kept = [
        (logger, logger.level, logger.handlers, logger.propagate)
        for logger in map(logs.plain_logger, names)
    ]
    yield
    for logger, level, handlers, propagate in kept:
        logger.setLevel(level)
        logger.handlers, logger.propagate = handlers, propagate


def level_of(name: str) -> int:
    return logs.plain_logger(name).getEffectiveLevel()


@pytest.mark.parametrize(
    ("verbosity", "requested", "everywhere", "kernel"),
    [
        (1, "", logging.INFO, logging.INFO),
        (2, "", logging.DEBUG, logging.DEBUG),
        (0, "info", logging.INFO, logging.INFO),
        (2, "error", logging.ERROR, logging.ERROR),
        (0, "emulator.dataplane.kernel=debug", logging.WARNING, logging.DEBUG),
        (1, "emulator.dataplane.kernel=ERROR", logging.INFO, logging.ERROR),
        (0, "info, emulator.dataplane.kernel=debug,", logging.INFO, logging.DEBUG),
    ],
)
def test_levels(verbosity: int, requested: str, everywhere: int, kernel: int) -> None:
    logs.configure(verbosity, requested)
    assert level_of("emulator.dataplane.lab") == level_of("uet.fep") == everywhere
    assert level_of("emulator.dataplane.kernel.programs.compiler") == kernel


def test_without_either_nothing_is_touched() -> None:
    before = logging.getLogger("emulator").handlers
    logs.configure(0, "")
    assert logging.getLogger("emulator").handlers is before


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ("loud", "'loud' is no level; give one of debug"),
        ("emulator=", "'emulator=' is no level"),
        ("os=debug", "'os=debug' names no logger of uetemu"),
    ],
)
def test_wrong_words_are_refused(requested: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        logs.configure(0, requested)


def test_the_command_says_what_is_wrong_with_the_variable() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from emulator.cli.main import main; main()", "status"],
        env={**os.environ, logs.VARIABLE: "loud"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("uetemu: UETEMU_LOG: 'loud' is no level")
    assert done.stderr.count("\n") == 1


def test_the_command_logs_to_standard_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from emulator.cli.main import main; main()", "-v", "doctor"],
        capture_output=True,
        text=True,
    )
    assert "INFO" not in done.stdout
    logged = [
        line for line in done.stderr.splitlines() if " INFO emulator.dataplane.doctor." in line
    ]
    assert all("probe" in line for line in logged)
    refused = [line for line in done.stdout.splitlines() if "not supported" in line]
    assert bool(logged) >= bool(refused)


def test_mininet_hides_no_line() -> None:
    source = (
        "import logging, mininet.log\n"
        "from emulator import logs\n"
        "from emulator.dataplane import lab\n"
        "from emulator.dataplane.kernel.fabric import build\n"
        "logs.configure(2)\n"
        "for name, logger in logging.Logger.manager.loggerDict.items():\n"
        "    if name.startswith('emulator.') and isinstance(logger, logging.Logger):\n"
        "        logger.debug('line')\n"
        "        print(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    assert "emulator.dataplane.lab" in names
    shown = [line.split(" DEBUG ")[1] for line in done.stderr.splitlines()]
    assert shown == [f"{name}: line" for name in names]
