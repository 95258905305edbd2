"""A live capture: one pcapng stream of the chosen ports, for a program that reads along.

    dumpcap in node a  ─┐ FIFO
                        ├──> dumpcap ──> the stream        (several nodes)
    dumpcap in node b  ─┘

A dumpcap sees the ports of one namespace; when there are several, one more joins their streams
and keeps the names of the interfaces.  With a single node its dumpcap writes the stream itself.
Frames appear at most 250 ms after they passed, in order of time at each port.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from emulator.dataplane.capture.fabric_capture import SNAPLEN_HEADERS, Tap, buffer_mib
from emulator.dataplane.capture.sniffer import QUEUE_BYTES, Dumpcap, PortCount, Sniffer
from emulator.errors import UserError

_CAPTURED = re.compile(r"Packets captured: (\d+)")


class LiveStream:
    """A context manager: sniffers run inside the block and are gone after it."""

    def __init__(
        self,
        taps: Sequence[Tap],
        *,
        namespace: Callable[[str], str],
        out: int,
        snaplen: int = SNAPLEN_HEADERS,
        comment: str = "",
        count: int | None = None,
    ) -> None:
        """Write to the descriptor ``out``; ``count`` ends the stream after that many packets."""
        self._taps = tuple(taps)
        self._namespace = namespace
        self._out = out
        self._snaplen = snaplen
        self._comment = comment
        self._count = count
        self._sniffers: list[Dumpcap] = []
        self._writer: Sniffer | None = None

    def __enter__(self) -> LiveStream:
        if shutil.which("dumpcap") is None:
            raise UserError("a live capture needs dumpcap: install the Debian package tshark")
        try:
            if len(self._taps) == 1:
                self._writer = self._start(self._taps[0], "-", self._out, self._count)
                self._writer.wait_ready()
            else:
                with tempfile.TemporaryDirectory(prefix="uetemu-capture-") as folder:
                    self._start_joined(Path(folder))
        except BaseException:
            self._kill()
            raise
        return self

    def _start(self, tap: Tap, output: str, out: int, count: int | None) -> Dumpcap:
        sniffer = Dumpcap(
            tap.node,
            tap.ports,
            namespace=self._namespace(tap.node),
            output=output,
            snaplen=self._snaplen,
            buffer_mib=buffer_mib(sum(len(tap.ports) for tap in self._taps)),
            comment=self._comment,
            count=count,
            stdout=out,
        )
        self._sniffers.append(sniffer)
        return sniffer

    def _start_joined(self, folder: Path) -> None:
        """The FIFOs need names only until both ends are open."""
        argv = ["dumpcap", "-q", "-n", "-t", "-C", str(QUEUE_BYTES)]
        argv += ["--capture-comment", self._comment] if self._comment else []
        argv += ["-c", str(self._count)] if self._count is not None else []
        for tap in self._taps:
            fifo = str(folder / tap.node)
            os.mkfifo(fifo, 0o600)
            argv += ["-i", fifo]
        self._writer = Sniffer([*argv, "-w", "-"], ready="\nFile: ", stdout=self._out)
        for tap in self._taps:
            self._start(tap, str(folder / tap.node), self._out, None)
        for sniffer in (*self._sniffers, self._writer):
            sniffer.wait_ready()

    def wait(self, seconds: float | None = None) -> None:
        """Return when ``seconds`` are over, a sniffer has ended or nobody reads the stream."""
        if not all(sniffer.running for sniffer in self._all()):
            return
        poll = select.poll()
        poll.register(self._out, 0)  # nothing but errors: POLLERR when the reader is gone
        pidfds = [os.pidfd_open(sniffer.pid) for sniffer in self._all()]
        try:
            for pidfd in pidfds:
                poll.register(pidfd, select.POLLIN)
            poll.poll(None if seconds is None else seconds * 1000)
        finally:
            for pidfd in pidfds:
                os.close(pidfd)

    def _all(self) -> list[Sniffer]:
        joiner = [self._writer] if self._writer and self._writer not in self._sniffers else []
        return [*self._sniffers, *joiner]

    @property
    def reader_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._out, 0)
        return bool(poll.poll(0))

    def stop(self) -> tuple[int, list[PortCount]]:
        """Packets written to the stream, and the counts of each port.

        Frames that have passed are written first, if somebody still reads.  Raises
        :class:`UserError` if a sniffer had already ended of itself. It does not if all requested
        packets are written, or the reader has gone.
        """
        assert self._writer is not None, "stop() belongs inside the with block"
        now_ns = time.monotonic_ns()
        ended = [sniffer.complaint() for sniffer in self._all() if not sniffer.running]
        if self._writer.running and not self.reader_gone:
            for sniffer in self._sniffers:
                sniffer.drain(now_ns, timeout_s=2.0)
        for sniffer in self._sniffers:
            sniffer.interrupt()
        for sniffer in self._sniffers:
            sniffer.wait(5.0)
        self._writer.wait(5.0)  # a joiner ends with the last of the streams it joins
        found = _CAPTURED.search(self._writer.log)
        captured = int(found[1]) if found else 0
        if ended and captured != self._count and not self.reader_gone:
            raise UserError(f"the capture has ended: {ended[0]}")
        return captured, [count for sniffer in self._sniffers for count in sniffer.counts()]

    def _kill(self) -> None:
        for sniffer in self._all():
            sniffer.kill()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()
