"""asyncio carries octets between a socket and a :class:`HostQueue`."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

from emulator.cluster.nvme_tcp.initiator.host_errors import QueueBrokenError
from emulator.cluster.nvme_tcp.initiator.host_queue import CommandDone, HostQueue, QueueSettings
from emulator.cluster.nvme_tcp.wake_timer import WakeTimer

_BUFFER, _HIGH_WATER, _BATCH = 1 << 18, 1 << 20, 1 << 18

#: Opens a TCP connection; the socket may lie in any network namespace.
Dialer: TypeAlias = Callable[[str, int], Awaitable[socket.socket]]


async def dial(address: str, port: int) -> socket.socket:
    """Connect from the network namespace of this process; raises ``OSError``."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await asyncio.get_running_loop().sock_connect(one, (address, port))
    except BaseException:
        one.close()
        raise
    return one


class HostLink(asyncio.BufferedProtocol):
    """Submits commands and waits for them; :meth:`wait_broken` returns when the queue has ended."""

    def __init__(self, settings: QueueSettings, connect_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.queue = HostQueue(settings, time.monotonic_ns(), int(connect_s * 1e9))
        self._buffer = bytearray(_BUFFER)
        self._transport: asyncio.Transport | None = None
        self._full = False
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._slots = asyncio.Semaphore(settings.depth)
        self._waiting: set[asyncio.Future[CommandDone]] = set()
        self._timer = WakeTimer(self._loop, self._expire)

    @classmethod
    async def open(
        cls, dialer: Dialer, address: str, port: int, settings: QueueSettings, connect_s: float
    ) -> HostLink:
        """Connect and exchange ICReq and ICResp; raises :class:`QueueBrokenError`."""
        loop = asyncio.get_running_loop()
        try:
            one = await asyncio.wait_for(dialer(address, port), connect_s)
        except TimeoutError:
            raise QueueBrokenError(
                f"nobody answers at {address} port {port}; check the address and the route"
            ) from None
        except OSError as error:
            raise QueueBrokenError(
                f"cannot connect to {address} port {port}: {os.strerror(error.errno or 0)};"
                " start the target, or check address and port"
            ) from None
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _, link = await loop.create_connection(lambda: cls(settings, connect_s), sock=one)
        try:
            await link._ready
        except BaseException:
            link.close()
            raise
        return link

    # -- commands ----------------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Return the number of commands under way."""
        return len(self._waiting)

    async def submit(
        self,
        entry: bytearray,
        *,
        upload: bytes = b"",
        download: int = 0,
        timeout_s: float | None = None,
    ) -> CommandDone:
        """Carry out a command when the queue has room; raises :class:`QueueBrokenError`."""
        await self._slots.acquire()
        if self.queue.broken is not None:
            self._slots.release()  # the next one learns of it too
            raise QueueBrokenError(self.queue.broken)
        done: asyncio.Future[CommandDone] = self._loop.create_future()
        self.queue.submit(
            entry, done, time.monotonic_ns(), upload=upload, download=download,
            timeout_ns=None if timeout_s is None else int(timeout_s * 1e9),
        )  # fmt: skip
        # until its completion, also where nobody waits for it any more
        self._waiting.add(done)
        self._pump()
        if timeout_s is not None:
            self._timer.set(self._loop.time() + timeout_s)
        return await done

    async def wait_broken(self) -> str:
        """Wait for the end of the queue; return its reason."""
        return await asyncio.shield(self._ended)

    def close(self, reason: str = "closed") -> None:
        """End the queue; outstanding commands raise :class:`QueueBrokenError`."""
        self.queue.fail(reason)
        self._pump()
        self._settle()

    # -- asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER)
        deadline = self.queue.next_deadline()
        assert deadline is not None  # that of ICResp
        self._timer.set(deadline / 1e9)  # asyncio's clock is the monotonic one, in seconds
        self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        with memoryview(self._buffer) as view:
            self.queue.receive(view[:nbytes], time.monotonic_ns())
        self._pump()
        self._settle()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.queue.fail("the connection has ended" if exc is None else f"{exc}")
        self._settle()

    def _pump(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        while not self._full and self.queue.busy:
            transport.write(b"".join(self.queue.octets_to_send(_BATCH)))
        if self.queue.broken is not None:
            transport.close()

    def _settle(self) -> None:
        """Hand completions, and the end of the queue, to the tasks that wait for them."""
        for done in self.queue.take_completions():
            future = cast("asyncio.Future[CommandDone]", done.token)
            self._waiting.discard(future)
            self._slots.release()
            if not future.done():
                future.set_result(done)
        if self.queue.ready and not self._ready.done():
            self._ready.set_result(None)
        if self.queue.broken is None:
            return
        self._timer.cancel()
        if not self._ready.done():
            self._ready.set_exception(QueueBrokenError(self.queue.broken))
        for future in tuple(self._waiting):
            if not future.done():
                future.set_exception(QueueBrokenError(self.queue.broken))
        self._waiting.clear()
        if not self._ended.done():
            self._ended.set_result(self.queue.broken)
            self._slots.release()  # who waits for one learns of the end

    def _expire(self) -> None:
        self.queue.handle_timer(time.monotonic_ns())
        self._pump()
        self._settle()
        deadline = self.queue.next_deadline()
        if deadline is not None and self.queue.broken is None:
            self._timer.set(deadline / 1e9)
