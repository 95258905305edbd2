"""Measure NVMe/TCP against plain TCP, both between two namespaces over one veth pair.

Both ends are processes of Python.  Each round has every measurement of both, in turn; told are
medians of the rounds' ratios, and of the measurements themselves.
"""

import contextlib
import json
import secrets
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

ADDRESS, NQN = "10.96.0.1", "nqn.2026-01.example:bench"
LARGE, SMALL = 1 << 17, 1 << 12
STREAM, TURNS = 2000, 2000
ROUNDS = 5
_UETEMU = (sys.executable, "-c", "from emulator.cli.main import main; main()", "nvme")
_TCP = (sys.executable, "-m", "tests.bench.plain_tcp")


def measure(*, rounds: int = ROUNDS) -> dict[str, float]:
    """Ratios of octets a second and of round trips, and the measurements behind them."""
    seen: dict[str, list[float]] = {}
    with _namespaces() as (there, here), _serving(there):
        for _ in range(rounds):
            for key, value in _round(here).items():
                seen.setdefault(key, []).append(value)
    return {key: statistics.median(values) for key, values in seen.items()}


def _round(here: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind, pattern in (("out", "read"), ("in", "write")):
        plain = LARGE * STREAM / _tcp(here, kind, LARGE, STREAM)
        for name, words in (("", ()), ("_digests", ("--digests", "both"))):
            rate = _nvme(here, pattern, LARGE, 32, STREAM, *words)["octets_per_second"]
            found[f"nvme_{pattern}{name}_ratio"] = rate / plain
            found[f"nvme_{pattern}{name}_mb_s"] = rate / 1e6
        found[f"tcp_{pattern}_mb_s"] = plain / 1e6
    plain = _tcp(here, "turns", SMALL, TURNS)
    one, many = (_nvme(here, "read", SMALL, depth, TURNS) for depth in (1, 32))
    found["nvme_turn_ratio"] = one["latency_us"]["p50"] / 1e6 / plain
    found["tcp_turn_us"] = plain * 1e6
    for depth, measured in ((1, one), (32, many)):
        found[f"nvme_depth{depth}_us"] = measured["latency_us"]["p50"]
        found[f"nvme_depth{depth}_s"] = measured["commands_per_second"]
    return found


@contextlib.contextmanager
def _namespaces() -> Iterator[tuple[str, str]]:
    tag = secrets.token_hex(4)
    names = (f"benchn{tag}t", f"benchn{tag}h")
    with contextlib.ExitStack() as undo:
        for name in names:
            _ip("netns", "add", name)
            undo.callback(_ip, "netns", "del", name)
        _ip("link", "add", "e0", "netns", names[0], "type", "veth",
            "peer", "name", "e0", "netns", names[1])  # fmt: skip
        for number, name in enumerate(names, start=1):
            _ip("-n", name, "addr", "add", f"10.96.0.{number}/24", "dev", "e0")
            _ip("-n", name, "link", "set", "e0", "up")
        yield names


@contextlib.contextmanager
def _serving(there: str) -> Iterator[None]:
    inside = ("ip", "netns", "exec", there)
    commands = (
        (*inside, *_UETEMU, "target", "--memory", "256M", "-l", ADDRESS, "-s", NQN),
        (*inside, *_TCP, "serve", ADDRESS),
    )
    with contextlib.ExitStack() as undo:
        for command in commands:
            process = undo.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            undo.callback(process.terminate)
            assert process.stdout is not None
            process.stdout.readline()  # it is ready
        yield


def _tcp(here: str, kind: str, octets: int, count: int) -> float:
    words = (*_TCP, "ask", ADDRESS, kind, str(octets), str(count))
    return float(_out("ip", "netns", "exec", here, *words))


def _nvme(here: str, pattern: str, size: int, depth: int, count: int, *words: str) -> Any:
    return json.loads(
        _out(
            *("ip", "netns", "exec", here, *_UETEMU, "bench", ADDRESS, "-s", NQN),
            *("--pattern", pattern, "--size", str(size), "--depth", str(depth)),
            *("--count", str(count), "--format", "json", *words),
        )
    )


def _out(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def _ip(*words: str) -> None:
    _out("ip", *words)
