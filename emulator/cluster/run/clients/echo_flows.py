"""Flows whose octets an echo server sends back: ``python -m ...clients.echo_flows JSON``.

As ``{"serve": ...}`` it answers until it is ended, as ``{"probe": ...}`` it keeps datagrams and TCP
connections going and prints what became of them.  Either prints a line when it is at work.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, cast

from emulator.cluster.run.clients.block_transfer import ended_with_sentence
from emulator.errors import UserError

NUMBER = struct.Struct("!Q")
#: What an answer to the last datagram may take (s).
LATE_S = 1.0
#: What the first answer of every flow may take (s).
BEGIN_S = 30.0
AT_WORK = "at work"


@dataclass(frozen=True, kw_only=True)
class EchoServer:
    """Where the echo server listens, by UDP and TCP."""

    address: str
    port: int


@dataclass(frozen=True, kw_only=True)
class EchoProbe:
    """``flows`` of datagrams and as many connections to ``address``, for ``seconds``.

    Each sends something every ``interval_s``; a connection does when the last has come back.
    """

    address: str
    port: int
    flows: int
    interval_s: float
    seconds: float


@dataclass
class DatagramFlow(asyncio.DatagramProtocol):
    """One flow of datagrams: when each was sent, and which came back."""

    sent_s: list[float] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    #: The first datagram that counts: those before may have waited for ARP.
    first: int = 0

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        (number,) = NUMBER.unpack(data[: NUMBER.size])
        self.answered.add(number)
        self.heard.set()

    def error_received(self, exc: Exception) -> None:
        """Go on: an ICMP error is a datagram that does not come back, and is counted as one."""

    @property
    def counted(self) -> range:
        """Return the numbers of the datagrams that count."""
        return range(self.first, len(self.sent_s))

    @property
    def lost(self) -> int:
        """Return how many datagrams did not come back."""
        return sum(number not in self.answered for number in self.counted)

    @property
    def goes_on(self) -> bool:
        """Return whether the last datagram came back."""
        return len(self.sent_s) - 1 in self.answered

    async def end(self) -> None:
        """Return when the last datagram has come back."""
        while not self.goes_on:
            self.heard.clear()
            await self.heard.wait()

    def outage_s(self) -> float:
        """Return the longest time from a datagram that was lost to the next that was not."""
        longest, since = 0.0, None
        for number in self.counted:
            sent_s = self.sent_s[number]
            if number in self.answered:
                longest = max(longest, sent_s - since if since is not None else 0.0)
                since = None
            elif since is None:
                since = sent_s
        return longest


@dataclass
class ConnectionFlow:
    """One connection: how often something came back, and the longest that took."""

    answers: int = 0
    longest_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class EchoOutcome:
    """The outcome of all flows of one machine, in its own time."""

    sent: int
    lost: int
    struck: int
    silent: int
    outage_s: float
    connections: int
    broken: int
    wait_s: float


async def serve(server: EchoServer) -> None:
    """Send everything back until this process is ended."""

    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport = cast(asyncio.DatagramTransport, transport)

        def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
            self._transport.sendto(data, addr)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # its other end is gone, and with it who would mind
            while data := await reader.read(NUMBER.size):
                writer.write(data)
                await writer.drain()
        writer.close()

    where = (server.address, server.port)
    await asyncio.get_running_loop().create_datagram_endpoint(Echo, local_addr=where)
    listening = await asyncio.start_server(connected, *where)
    print(AT_WORK, flush=True)  # noqa: T201 (whoever began it reads that)
    await listening.serve_forever()


async def probe(requested: EchoProbe) -> EchoOutcome:
    """Keep the flows going; return what became of them.

    Raises UserError if the echo server does not answer all of them to begin with.
    """
    where = (requested.address, requested.port)
    loop = asyncio.get_running_loop()
    flows = [DatagramFlow() for _ in range(requested.flows)]
    doors = []
    for each in flows:
        made = await loop.create_datagram_endpoint(partial(_same, each), remote_addr=where)
        doors.append(made[0])
    try:
        opened = [await asyncio.open_connection(*where) for _ in flows]
    except OSError as error:
        raise UserError(f"no connection to {requested.address}: {error.strerror}") from None
    connections = [ConnectionFlow() for _ in flows]
    end = asyncio.Event()

    async def send() -> None:
        while not end.is_set():
            for flow, door in zip(flows, doors, strict=True):
                door.sendto(NUMBER.pack(len(flow.sent_s)))
                flow.sent_s.append(time.monotonic())
            await asyncio.sleep(requested.interval_s)

    async def exchange(number: int) -> None:
        reader, writer = opened[number]
        flow = connections[number]
        while not end.is_set():
            began = time.monotonic()
            writer.write(NUMBER.pack(flow.answers))
            await writer.drain()
            await reader.readexactly(NUMBER.size)
            flow.answers += 1
            flow.longest_s = max(flow.longest_s, time.monotonic() - began)
            await asyncio.sleep(requested.interval_s)

    async def kept(number: int) -> None:
        try:
            await exchange(number)
        except (OSError, asyncio.IncompleteReadError) as error:
            connections[number].error = str(error) or type(error).__name__

    sender = loop.create_task(send())
    keepers = [loop.create_task(kept(number)) for number in range(len(flows))]
    try:
        begun = asyncio.gather(*(flow.heard.wait() for flow in flows))
        await asyncio.wait_for(begun, BEGIN_S)
    except TimeoutError:
        raise UserError(f"{requested.address} did not answer every flow: is it reached?") from None
    for flow in flows:
        flow.first = len(flow.sent_s)
    print(AT_WORK, flush=True)  # noqa: T201 (whoever began it reads that)
    await asyncio.sleep(requested.seconds)
    end.set()
    await sender
    answers = [loop.create_task(flow.end()) for flow in flows]
    _, hanging = await asyncio.wait([*keepers, *answers], timeout=LATE_S)
    for task in hanging:
        task.cancel()
    for door in doors:
        door.close()
    return _outcome(flows, connections, len(hanging.intersection(keepers)))


def _same(flow: DatagramFlow) -> DatagramFlow:
    return flow


def _outcome(
    flows: list[DatagramFlow], connections: list[ConnectionFlow], hanging: int
) -> EchoOutcome:
    return EchoOutcome(
        sent=sum(len(flow.counted) for flow in flows),
        lost=sum(flow.lost for flow in flows),
        struck=sum(flow.lost > 0 for flow in flows),
        silent=sum(not flow.goes_on for flow in flows),
        outage_s=max(flow.outage_s() for flow in flows),
        connections=len(connections),
        broken=hanging + sum(flow.error is not None for flow in connections),
        wait_s=max(flow.longest_s for flow in connections),
    )


def main(text: str) -> None:
    given: Mapping[str, Mapping[str, Any]] = json.loads(text)
    if "serve" in given:
        asyncio.run(serve(EchoServer(**given["serve"])))
        return
    with ended_with_sentence():
        json.dump(asdict(asyncio.run(probe(EchoProbe(**given["probe"])))), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
