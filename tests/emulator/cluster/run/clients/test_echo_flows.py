"""Datagrams and connections to an echo server: what counts, and until when answers are awaited."""

import asyncio
from typing import cast

from emulator.cluster.run.clients.echo_flows import EchoOutcome, EchoProbe, probe

#: How late the server answers a datagram: later than connections take to end (s).
ANSWER_S = 0.2


class LateEcho(asyncio.DatagramProtocol):
    """Drop the first datagram of each peer, as a queue behind ARP may, and answer others late."""

    def __init__(self) -> None:
        self._peers: set[object] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if addr in self._peers:
            loop = asyncio.get_running_loop()
            loop.call_later(ANSWER_S, self._transport.sendto, data, addr)
        self._peers.add(addr)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(8):
        writer.write(data)
    writer.close()


async def outcome() -> EchoOutcome:
    loop = asyncio.get_running_loop()
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        address, port = server.sockets[0].getsockname()
        late, _ = await loop.create_datagram_endpoint(LateEcho, local_addr=(address, port))
        try:
            asked = EchoProbe(address=address, port=port, flows=2, interval_s=0.02, seconds=0.1)
            return await probe(asked)
        finally:
            late.close()


def test_datagrams_count_from_the_first_answer_to_the_answer_of_the_last() -> None:
    seen = asyncio.run(outcome())
    assert seen.sent > 0
    assert (seen.lost, seen.struck, seen.silent, seen.broken) == (0, 0, 0, 0)
    assert seen.outage_s == 0
