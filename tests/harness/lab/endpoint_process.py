"""``uetemu fep`` and ``uetemu hca`` as processes of a test, with the events they tell."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from emulator.cli.main import main
from emulator.dataplane.lab import Lab

UETEMU = (sys.executable, "-c", "from emulator.cli.main import main; main()")


class _Forked:
    """Runs the command in the child of a fork, where Python and the stack are loaded already."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def __call__(self) -> None:
        """Called in the child, with the standard streams in place; never comes back."""
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8")  # noqa: SIM115
            for number, mode in enumerate("rww")
        )
        sys.argv = ["uetemu", *self._words]
        status = 1
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001  # as the end of an interpreter would
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


class Endpoint:
    """A process of a verb; ``fresh``: started as a user starts it, which takes a while."""

    def __init__(
        self, verb: str, *words: str, stdin: str | None = None, fresh: bool = False
    ) -> None:
        source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        self.process = subprocess.Popen(
            [*UETEMU, verb, *words],
            preexec_fn=None if fresh else _Forked((verb, *words)),
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if stdin is not None:
            assert self.process.stdin is not None
            self.process.stdin.write(stdin)
            self.process.stdin.close()
            self.process.stdin = None
        self.events: list[dict[str, Any]] = []
        self.error = ""

    def wait_for(self, event: str, budget: float = 20) -> dict[str, Any]:
        """Read events up to one of that name."""
        give_up = time.monotonic() + budget
        assert self.process.stdout is not None
        while time.monotonic() < give_up:
            line = self.process.stdout.readline()
            if not line:
                break
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event:
                return self.events[-1]
        self.end(signal.SIGKILL)
        raise AssertionError(f"no {event!r} came: {self.events} {self.error}")

    def end(self, number: int | None = None, budget: float = 60) -> int:
        """Its exit status, once it has ended (of itself, or by a signal)."""
        if number is not None:
            self.process.send_signal(number)
        try:
            out, self.error = self.process.communicate(timeout=budget)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, self.error = self.process.communicate()
        self.events += [json.loads(line) for line in out.splitlines() if line.endswith("}")]
        return self.process.returncode

    def completions(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [
            event
            for event in self.events
            if event["event"] == "completion" and kind in (None, event["kind"])
        ]

    @property
    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = self.events[-1]["counters"]
        return counters


@contextlib.contextmanager
def serving(verb: str, lab: Lab, gpu: str, *words: str) -> Iterator[Endpoint]:
    """A target at ``gpu`` of ``lab`` with 4 MiB of memory; what is forked from now on starts fast.

    With ``hca`` it serves the first that connects.
    """
    # Processes would spend most of their time on loading these.
    import pyroute2  # noqa: F401

    import emulator.lab.standalone.rocev2_endpoint
    import emulator.lab.standalone.uet_endpoint
    import emulator.run.endpoint_specs
    import emulator.transports.rocev2_transport
    import emulator.transports.uet_transport  # noqa: F401

    ready, more = ("card", ("--listen",)) if verb == "hca" else ("start", ())
    target = Endpoint(
        verb, "target", "--gpu", f"{lab.name}:{gpu}", "--region", "default:4M", *more, *words
    )
    try:
        target.wait_for(ready)
        yield target
    finally:
        target.end(signal.SIGTERM)
