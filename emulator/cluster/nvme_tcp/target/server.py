"""asyncio carries octets between sockets and :class:`NvmeTarget`."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any, cast

from emulator.cluster.nvme_tcp.target.commands import LocalEnd
from emulator.cluster.nvme_tcp.target.nvme_target import NvmeTarget, TargetConnection
from emulator.cluster.nvme_tcp.wake_timer import WakeTimer

#: Octets taken from a socket at a time, and octets that wait in it before reads are continued.
RECEIVE_OCTETS, HIGH_WATER, BATCH = 1 << 18, 1 << 20, 1 << 18
#: How long a host may take its last octets (s).
LINGER_S = 5.0
#: Takes note of a connection's end: its queue (None: before Connect), and words on a fault.
EndReport = Callable[[TargetConnection], None]


class TargetServer:
    """Accept connections on listening sockets, until :meth:`close`."""

    def __init__(self, target: NvmeTarget, ended: EndReport | None = None) -> None:
        self.target = target
        self.buffer = bytearray(RECEIVE_OCTETS)
        self.ended = ended
        self._loop = asyncio.get_running_loop()
        self.links: dict[TargetConnection, _HostSocket] = {}
        self._servers: list[asyncio.Server] = []
        self._timer = WakeTimer(self._loop, self._expire)

    async def listen(self, listener: socket.socket) -> None:
        server = await self._loop.create_server(lambda: _HostSocket(self), sock=listener)
        self._servers.append(server)

    async def close(self) -> None:
        """End all connections, and stop listening."""
        self._timer.cancel()
        for server in self._servers:
            server.close()
        for link in tuple(self.links.values()):
            link.hang_up()
        for server in self._servers:
            await server.wait_closed()

    # -- what a connection's socket calls ----------------------------------------------------------

    def joined(self, link: _HostSocket, local: LocalEnd) -> TargetConnection | None:
        """Return a connection for a socket, or None: there are too many."""
        connection = self.target.accept(local, time.monotonic_ns())
        if connection is not None:
            self.links[connection] = link
            self.serve_disturbed()
        return connection

    def left(self, connection: TargetConnection) -> None:
        """Forget a connection whose socket is closed."""
        self.links.pop(connection, None)
        connection.close()
        if self.ended is not None:
            self.ended(connection)
        self.serve_disturbed()

    def serve_disturbed(self) -> None:
        """Go on with what a connection, or a timer, has changed: others, and deadlines."""
        if self.target.rescheduled:
            self.target.rescheduled = False
            self._arm()
        for connection in self.target.take_disturbed():
            if (link := self.links.get(connection)) is not None:
                link.pump()

    def _arm(self) -> None:
        """Wake at the next deadline, unless that is to happen earlier anyway."""
        deadline = self.target.next_deadline()
        if deadline is not None:
            self._timer.set(deadline / 1e9)  # asyncio's clock is the same one, in seconds

    def _expire(self) -> None:
        self.target.handle_timer(time.monotonic_ns())
        self.target.rescheduled = True
        self.serve_disturbed()


def local_end(name: Sequence[Any]) -> LocalEnd:
    """Return address and port of a socket's name, without zone, IPv4 as itself."""
    address = ip_address(str(name[0]).partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return LocalEnd(str(address), int(name[1]))


class _HostSocket(asyncio.BufferedProtocol):
    """A TCP connection of a host."""

    def __init__(self, server: TargetServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._connection: TargetConnection | None = None
        self._full = False
        self._pausing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(HIGH_WATER)  # type: ignore[attr-defined]
        kernel_socket: socket.socket = transport.get_extra_info("socket")
        kernel_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = self._server.joined(self, local_end(kernel_socket.getsockname()))
        if self._connection is None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._server.buffer)  # emptied before another socket is read

    def buffer_updated(self, nbytes: int) -> None:
        if self._connection is None:
            return
        with memoryview(self._server.buffer) as view:
            self._connection.receive(view[:nbytes], time.monotonic_ns())
        self.pump()
        self._server.serve_disturbed()

    def pump(self) -> None:
        """Send what there is, as long as the socket takes it."""
        connection, transport = self._connection, self._transport
        if connection is None or transport is None or transport.is_closing():
            return
        while not self._full and connection.busy:
            transport.write(b"".join(connection.octets_to_send(BATCH)))
        if connection.finished:
            transport.close()  # behind what is still to be sent
            asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        elif connection.busy != self._pausing:  # a host that does not read is not read either
            self._pausing = connection.busy
            (transport.pause_reading if self._pausing else transport.resume_reading)()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self.pump()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._server.left(connection)
