"""One packet sniffer (dumpcap or tcpdump) inside a namespace.

A sniffer must not lose what it has seen.  Three things make that so:

* *start*: it counts as started when it reports that its sockets are open, not after a pause;
* *stop*: the kernel hands frames over in blocks, and a block that is not full only when its timer
  (250 ms in dumpcap) runs out.  A sniffer that is interrupted earlier forgets the block without
  counting it. So :meth:`Sniffer.drain` first waits until the timer must have run out and no thread
  of the sniffer is busy;
* *death of the runner*: the kernel sends the sniffer SIGTERM, at which it closes its file properly.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from emulator.dataplane.kernel.default_signals import popen_options
from emulator.dataplane.kernel.ending_with_us import ending_with_us
from emulator.errors import UserError

#: How long a partly filled block may stay with the kernel (ns of the wall clock): dumpcap's
#: read timeout, and some more because the kernel's timer may fire late.
BLOCK_TIMEOUT_NS = 300_000_000
#: Octets that dumpcap may queue between the threads that read a port and the one that writes the
#: file.  Its own limit, 1000 packets, drops most of a burst as soon as there are two ports.
QUEUE_BYTES = 256 << 20

_POLL_S = 0.01
_DUMPCAP_COUNT = re.compile(r"^Packets received/dropped on interface '(.+)': (\d+)/(\d+) ", re.M)
_TCPDUMP_CAPTURED = re.compile(r"^(\d+) packets? captured", re.M)
_TCPDUMP_DROPPED = re.compile(r"^(\d+) packets? dropped by (?:kernel|interface)", re.M)


@dataclass(frozen=True)
class PortCount:
    """The frames that a sniffer reports for ``port`` (``node:port``): written and missed."""

    port: str
    received: int
    dropped: int


def wait_idle(process: subprocess.Popen[Any], timeout_s: float) -> bool:
    """Wait until ``process`` sleeps (no frame is left) or ends; False after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    idle = 0
    while process.poll() is None and idle < 3:
        idle = idle + 1 if _asleep(process.pid) else 0
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _asleep(pid: int) -> bool:
    """Return whether every thread sleeps: one that runs, or waits for the disk, does not."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            # The state follows the command name, which stands in parentheses.
            if (task / "stat").read_text().rpartition(")")[2].split()[0] != "S":
                return False
    except (FileNotFoundError, ProcessLookupError):
        return False  # a thread has just ended
    return True


class Sniffer:
    """A running sniffer process.

    It lives in a session of its own, so that Ctrl-C on the terminal reaches the runner only. It
    dies with the *thread* that started it: start it from one that lasts as long as the capture.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        ready: str,
        namespace: str | None = None,
        stdout: IO[bytes] | int = subprocess.DEVNULL,
    ) -> None:
        """Start ``argv``; ``ready`` is what it prints on stderr once its sockets are open."""
        self.program = argv[0]
        self._ready = ready
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  close() ends it
        # nsenter replaces itself by the next program: the process stays the same.
        inside = [] if namespace is None else ["nsenter", f"--net=/run/netns/{namespace}"]
        self._process = subprocess.Popen(
            ending_with_us(signal.SIGTERM, [*inside, *argv]),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=self._log,
            start_new_session=True,
            **popen_options(),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """Everything the sniffer has printed on stderr so far."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def wait_ready(self, timeout_s: float = 20.0) -> None:
        """Return once every frame from now on will be seen; :class:`UserError` if that fails."""
        deadline = time.monotonic() + timeout_s
        while self._ready not in self.log:
            if not self.running:
                raise UserError(f"the capture could not start: {self.complaint()}")
            if time.monotonic() > deadline:
                raise UserError(
                    f"the capture could not start: {self.program} was not ready within "
                    f"{timeout_s:g} s; capture fewer ports or free the processors"
                )
            time.sleep(_POLL_S)

    def complaint(self) -> str:
        """The sniffer's own words about why it ended, or its exit status when it has none."""
        for line in reversed(self.log.splitlines()):
            stated = line.partition(f"{self.program}: ")[2] or line.partition("nsenter: ")[2]
            if stated and not stated.startswith("listening on "):
                return f"{self.program} says: {stated}"
        status = self._process.poll()
        if status is not None and status < 0:
            return f"{self.program} was killed by {signal.Signals(-status).name}"
        if status == 0:
            return f"{self.program} was told to end; was the lab taken down?"
        return f"{self.program} ended with exit status {status}"

    def drain(self, since_ns: int, timeout_s: float = 30.0) -> bool:
        """Wait until every frame that was seen before ``since_ns`` has left the kernel.

        ``since_ns`` is a ``time.monotonic_ns`` value.  False if the sniffer was still busy with
        frames after ``timeout_s`` (traffic that does not end also looks like that).
        """
        time.sleep(max(0, since_ns + BLOCK_TIMEOUT_NS - time.monotonic_ns()) / 1e9)
        return wait_idle(self._process, timeout_s)

    def interrupt(self) -> None:
        """Interrupt it, so that it writes its statistics, closes its file and ends."""
        if self.running:
            self._process.send_signal(signal.SIGINT)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Return the exit status (negative: a signal); kill the process after ``timeout_s``."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def kill(self) -> None:
        """End it at once; frames it had not yet written are lost."""
        self._process.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Forget what an ended sniffer has printed."""
        self._log.close()

    def counts(self) -> list[PortCount]:
        """Return the frames per port; empty if the sniffer died before it could report."""
        raise NotImplementedError


class Dumpcap(Sniffer):
    """dumpcap on several ports of one node, written as pcapng with interfaces ``node:port``."""

    def __init__(  # noqa: PLR0913  options of dumpcap
        self,
        node: str,
        ports: Sequence[str],
        *,
        namespace: str,
        output: str,
        snaplen: int,
        buffer_mib: int,
        comment: str = "",
        count: int | None = None,
        stdout: IO[bytes] | int = subprocess.DEVNULL,
    ) -> None:
        """``output`` is a file name, or ``-`` for ``stdout``; ``buffer_mib`` is per port."""
        # Not promiscuous: a veth end hands every frame to its taps anyway.
        argv = ["dumpcap", "-q", "-n", "-p", "-s", str(snaplen), "-B", str(buffer_mib)]
        argv += ["-t", "-C", str(QUEUE_BYTES)] if len(ports) > 1 else []
        argv += ["--capture-comment", comment] if comment else []
        argv += ["-c", str(count)] if count is not None else []
        for port in ports:
            argv += ["-i", port, "--ifname", f"{node}:{port}"]
        super().__init__(
            [*argv, "-w", output], ready="\nFile: ", namespace=namespace, stdout=stdout
        )

    def counts(self) -> list[PortCount]:
        return [
            PortCount(name, int(received), int(dropped))
            for name, received, dropped in _DUMPCAP_COUNT.findall(self.log)
        ]


class Tcpdump(Sniffer):
    """tcpdump on one port, for machines without dumpcap; writes a pcap file without names."""

    def __init__(
        self,
        node: str,
        port: str,
        *,
        namespace: str,
        output: str,
        snaplen: int,
        buffer_mib: int,
    ) -> None:
        self._port = f"{node}:{port}"
        argv = ["tcpdump", "-n", "-p", "-i", port, "-s", str(snaplen), "-B", str(buffer_mib << 10)]
        argv += ["--time-stamp-precision=nano", "--immediate-mode", "-U", "-Z", "root"]
        super().__init__([*argv, "-w", output], ready="listening on ", namespace=namespace)

    def counts(self) -> list[PortCount]:
        captured = _TCPDUMP_CAPTURED.search(self.log)
        if captured is None:
            return []
        dropped = sum(int(number) for number in _TCPDUMP_DROPPED.findall(self.log))
        return [PortCount(self._port, int(captured[1]), dropped)]
