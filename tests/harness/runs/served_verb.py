"""A verb of ``uetemu`` that serves HTTP, as a process of its own."""

import re
import signal
import subprocess
import time
from types import TracebackType
from typing import Self
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tests.harness.runs.processes import uetemu

BUDGET_S = 120.0


class ServedVerb:
    """``uetemu ARGUMENT... --listen 127.0.0.1:0``; ``url`` is what its first line names."""

    def __init__(self, *arguments: str) -> None:
        self.process: subprocess.Popen[str] = uetemu(*arguments, "--listen", "127.0.0.1:0")
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, (line, self.process.communicate(timeout=BUDGET_S))
        self.url = found[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=BUDGET_S)

    def get(self, accept: str = "text/plain") -> str:
        with urlopen(Request(self.url, headers={"Accept": accept}), timeout=BUDGET_S) as answer:
            return answer.read().decode()

    def values(self) -> dict[str, float]:
        """Return the samples of a page of metrics by name and labels."""
        lines = [line for line in self.get().splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def until(self, name: str, value: float) -> dict[str, float]:
        """Return the samples as soon as ``name`` has this value."""
        deadline = time.monotonic() + BUDGET_S
        while True:
            try:
                found = self.values()
                if found.get(name) == value:
                    return found
            except (HTTPError, URLError, ConnectionError):
                assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, f"{name} is {found.get(name)}, not {value}"
            time.sleep(0.05)

    def interrupted(self) -> tuple[int, str]:
        """Return the status and standard error of the process after Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=BUDGET_S)
        return self.process.returncode, err
