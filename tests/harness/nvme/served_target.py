"""A target that is served on the loopback of this machine, and tests that are coroutines."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec

from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.nvme_tcp.target.nvme_target import NvmeTarget
from emulator.cluster.nvme_tcp.target.server import TargetServer
from tests.harness.nvme.memory_wire import NQN

LOOPBACK = "127.0.0.1"
P = ParamSpec("P")


@contextlib.asynccontextmanager
async def served(target: NvmeTarget, port: int = 0) -> AsyncIterator[tuple[TargetServer, int]]:
    server = TargetServer(target)
    listener = socket.create_server((LOOPBACK, port))
    await server.listen(listener)
    try:
        yield server, listener.getsockname()[1]
    finally:
        await server.close()


def options(port: int, **changes: Any) -> HostOptions:
    values: dict[str, Any] = {"reconnect_delay_s": 0.05, "ctrl_loss_s": 20.0}
    return HostOptions(LOOPBACK, NQN, port, **(values | changes))


def asynchronous(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """``test``, whose coroutine has a minute."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run
