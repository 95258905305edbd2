"""Bursts of requests to model servers: ``python -m`` this module with ``JSON``.

Each request is a TCP connection of its own, as from another user: it streams a completion and notes
when each token came.  Requests come in bursts, between which nothing is asked; when is drawn from
the seed.  The answer is one JSON object, times in seconds of the machine.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

PATIENCE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class RequestLoad:
    """``bursts`` of ``burst`` requests for ``tokens`` each, ``pause_s`` apart on average."""

    servers: Sequence[tuple[str, int]]
    bursts: int
    burst: int
    tokens: int
    prompt_bytes: int
    pause_s: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request: its server, its own port, and when tokens came after it was sent (s)."""

    server: str
    port: int
    began_s: float
    token_s: list[float] = field(default_factory=list)
    error: str | None = None


async def request(load: RequestLoad, server: tuple[str, int], began: float) -> RequestRecord:
    """Send one request and read its answer to the end."""
    address, port = server
    sent = time.monotonic()
    tokens: list[float] = []
    own, error = 0, None
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port), PATIENCE_S)
        own = writer.get_extra_info("sockname")[1]
        body = json.dumps(
            {
                "model": "any",
                "prompt": "x" * load.prompt_bytes,
                "max_tokens": load.tokens,
                "stream": True,
            }
        )
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        async with asyncio.timeout(PATIENCE_S):
            async for line in reader:
                if line.startswith(b"data: {"):
                    tokens.append(time.monotonic() - sent)
        writer.close()
        if len(tokens) != load.tokens:
            error = f"{len(tokens)} of {load.tokens} tokens came"
    except (OSError, TimeoutError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    return RequestRecord(
        server=address, port=own, began_s=sent - began, token_s=tokens, error=error
    )


async def apply(load: RequestLoad) -> list[RequestRecord]:
    """Send all requests of ``load``; return them in the order in which they were sent."""
    chance = random.Random(load.seed)
    began = time.monotonic()
    running = []
    for burst in range(load.bursts):
        if burst:
            await asyncio.sleep(chance.expovariate(1 / load.pause_s))
        for _ in range(load.burst):
            running.append(asyncio.ensure_future(request(load, chance.choice(load.servers), began)))
    return list(await asyncio.gather(*running))


def main(text: str) -> None:
    """Apply the load that ``text`` describes and print what came of it."""
    given = json.loads(text)
    given["servers"] = [tuple(server) for server in given["servers"]]
    records = asyncio.run(apply(RequestLoad(**given)))
    json.dump([asdict(record) for record in records], sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
