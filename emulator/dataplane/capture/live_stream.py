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
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from emulator.dataplane.capture.fabric_capture import SNAPLEN_HEADERS, Tap, buffer_mib
from emulator.dataplane.capture.sniffer import QUEUE_BYTES, Dumpcap, PortCount, Sniffer
from emulator.errors import UserError

_CAPTURED = re.compile(r"Packets captured: (\d+)")


@contextmanager
def live_stream(
    taps: Sequence[Tap],
    *,
    namespace: Callable[[str], str],
    out: int,
    snaplen: int = SNAPLEN_HEADERS,
    comment: str = "",
    count: int | None = None,
) -> Iterator[LiveStream]:
    """Have sniffers write to the descriptor ``out`` during the block.

    ``count`` ends the stream after that many packets.
    """
    if shutil.which("dumpcap") is None:
        raise UserError("a live capture needs dumpcap: install the Debian package tshark")
    buffer = buffer_mib(sum(len(tap.ports) for tap in taps))

    def start(tap: Tap, output: str, count: int | None) -> Dumpcap:
        sniffer = Dumpcap(
            tap.node,
            tap.ports,
            namespace=namespace(tap.node),
            output=output,
            snaplen=snaplen,
            buffer_mib=buffer,
            comment=comment,
            count=count,
            stdout=out,
        )
        running.callback(sniffer.kill)
        return sniffer

    def start_joined(folder: Path) -> LiveStream:
        """The FIFOs need names only until both ends are open."""
        argv = ["dumpcap", "-q", "-n", "-t", "-C", str(QUEUE_BYTES)]
        argv += ["--capture-comment", comment] if comment else []
        argv += ["-c", str(count)] if count is not None else []
        for tap in taps:
            fifo = str(folder / tap.node)
            os.mkfifo(fifo, 0o600)
            argv += ["-i", fifo]
        joiner = Sniffer([*argv, "-w", "-"], ready="\nFile: ", stdout=out)
        running.callback(joiner.kill)
        sniffers = [start(tap, str(folder / tap.node), None) for tap in taps]
        for sniffer in (*sniffers, joiner):
            sniffer.wait_ready()
        return LiveStream(sniffers, joiner, out, count)

    with ExitStack() as running:
        if len(taps) == 1:
            only = start(taps[0], "-", count)
            only.wait_ready()
            stream = LiveStream([only], only, out, count)
        else:
            with tempfile.TemporaryDirectory(prefix="uetemu-capture-") as folder:
                stream = start_joined(Path(folder))
        yield stream


class LiveStream:
    """Running ``sniffers``, and the ``writer`` of the stream: the only one, or what joins them."""

    def __init__(
        self, sniffers: Sequence[Dumpcap], writer: Sniffer, out: int, count: int | None
    ) -> None:
        self._sniffers, self._writer = sniffers, writer
        self._all = list(dict.fromkeys([*sniffers, writer]))
        self._out, self._count = out, count

    def wait(self, seconds: float | None = None) -> None:
        """Return when ``seconds`` are over, a sniffer has ended or nobody reads the stream.

        A signal ends the wait, whatever its handler does.  For the main thread.
        """
        if not all(sniffer.running for sniffer in self._all):
            return
        poll = select.poll()
        poll.register(self._out, 0)  # nothing but errors: POLLERR when the reader is gone
        with ExitStack() as opened:
            # Python runs handlers between calls: a signal that comes just before the call of poll
            # would wait as long as it does.
            woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            opened.callback(os.close, woken)
            opened.callback(os.close, waker)
            before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
            opened.callback(signal.set_wakeup_fd, before)
            poll.register(woken, select.POLLIN)
            for sniffer in self._all:
                pidfd = os.pidfd_open(sniffer.pid)
                opened.callback(os.close, pidfd)
                poll.register(pidfd, select.POLLIN)
            poll.poll(None if seconds is None else seconds * 1000)

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
        now_ns = time.monotonic_ns()
        ended = [sniffer.complaint() for sniffer in self._all if not sniffer.running]
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
