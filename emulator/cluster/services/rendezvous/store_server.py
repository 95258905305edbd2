"""The server of a rendezvous: ``python -m`` this module with ``ADDRESS PORT``.

A connection sends a line for each request and gets a line for each answer, in that order.  One that
sends an endless line is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping

from emulator.cluster.services.rendezvous.store import LONGEST_LINE, RendezvousStore

#: Requests of a connection that wait for their answers.
MOST_PENDING = 1000


class Conversation:
    """One connection: requests are carried out as they come, and answered in their order."""

    def __init__(self, store: RendezvousStore, writer: asyncio.StreamWriter) -> None:
        self._store = store
        self._writer = writer
        self._pending: asyncio.Queue[OpenAnswer] = asyncio.Queue(MOST_PENDING)

    async def hold(self, reader: asyncio.StreamReader) -> None:
        """Read requests until the peer closes the connection, or sends an endless line."""
        answering = asyncio.ensure_future(self._answer())
        try:
            while line := await reader.readline():
                answer = OpenAnswer()
                await self._pending.put(answer)
                self._store.handle(line, answer)
        except (ValueError, ConnectionError):
            self._store.refused += 1
        finally:
            answering.cancel()
            while not self._pending.empty():
                self._store.forget(self._pending.get_nowait())
            self._writer.close()

    async def _answer(self) -> None:
        while True:
            answer = await self._pending.get()
            try:
                content = await answer.content
                self._writer.write(json.dumps(content).encode() + b"\n")
                await self._writer.drain()
            except (ConnectionError, asyncio.CancelledError):
                self._store.forget(answer)
                raise


class OpenAnswer:
    """An answer that may come later; calling it gives it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.content: asyncio.Future[Mapping[str, object]] = loop.create_future()

    def __call__(self, content: Mapping[str, object]) -> None:
        if not self.content.done():
            self.content.set_result(content)


async def serve(address: str, port: int) -> None:
    """Serve one store at ``address`` and ``port`` until this is cancelled.

    It prints where: port 0 is any that is free.
    """
    store = RendezvousStore()
    server = await asyncio.start_server(
        lambda reader, writer: Conversation(store, writer).hold(reader),
        address,
        port,
        limit=LONGEST_LINE,
    )
    chosen = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"rendezvous at {address}:{chosen}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
