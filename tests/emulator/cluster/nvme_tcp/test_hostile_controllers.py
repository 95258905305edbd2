"""A hostile controller does not make a host keep, or do, without end."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from emulator.cluster.nvme_tcp.initiator.host_options import HostOptions
from emulator.cluster.nvme_tcp.initiator.host_queue import QueueBrokenError
from emulator.cluster.nvme_tcp.initiator.nvme_host import NvmeHost
from emulator.cluster.nvme_tcp.target import commands, nvme_target
from emulator.cluster.nvme_tcp.target.controller import NvmeController, Outcome, transmission_of
from emulator.cluster.nvme_tcp.target.server import TargetServer
from emulator.cluster.nvme_tcp.wire.layouts import IDENTIFY_CONTROLLER, IdentifyCns, NvmeCommand
from emulator.errors import UserError
from tests.harness.nvme.memory_wire import NQN, target_of

LOOPBACK = "127.0.0.1"
Page = Callable[[NvmeController, NvmeCommand], Outcome]


def with_host(test: Callable[[HostOptions], Coroutine[Any, Any, None]]) -> None:
    async def served() -> None:
        server = TargetServer(target_of())
        listener = socket.create_server((LOOPBACK, 0))
        await server.listen(listener)
        try:
            await test(HostOptions(LOOPBACK, NQN, listener.getsockname()[1], ctrl_loss_s=0))
        finally:
            await server.close()

    asyncio.run(asyncio.wait_for(served(), 30))


@pytest.mark.parametrize(
    "nsids", [[7] * 1024, list(range(1, 1025)), list(range(2**32 - 1025, 2**32 - 1))]
)
def test_a_list_of_namespaces_that_does_not_end(
    nsids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    octets = b"".join(nsid.to_bytes(4, "little") for nsid in nsids)
    page: Page = lambda controller, command: transmission_of(octets)  # noqa: E731
    same: Page = lambda controller, command: transmission_of(bytes(4096))  # noqa: E731
    monkeypatch.setitem(commands.IDENTIFY_PAGES, IdentifyCns.ACTIVE_NAMESPACES, page)
    monkeypatch.setitem(commands.IDENTIFY_PAGES, IdentifyCns.NAMESPACE, same)

    async def test(options: HostOptions) -> None:
        with pytest.raises(QueueBrokenError, match="does not rise"):
            await NvmeHost.connect(options)

    with_host(test)


@pytest.mark.parametrize("shift", [0, 8, 23, 63, 255])
def test_blocks_that_no_command_carries(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = commands.IDENTIFY_PAGES[IdentifyCns.NAMESPACE]

    def page(controller: NvmeController, command: NvmeCommand) -> Outcome:
        octets = bytearray(kept(controller, command).read(0, 4096))  # type: ignore[union-attr]
        octets[130] = shift
        return transmission_of(bytes(octets))

    monkeypatch.setitem(commands.IDENTIFY_PAGES, IdentifyCns.NAMESPACE, page)

    async def test(options: HostOptions) -> None:
        async with await NvmeHost.connect(options) as host:
            with pytest.raises(UserError, match="which a command cannot carry"):
                await host.read(1, 0, 1)

    with_host(test)


def test_a_limit_of_transfers_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = commands.identify

    def page(controller: NvmeController, command: NvmeCommand) -> Outcome:
        if command.cdw10 & 0xFF != IdentifyCns.CONTROLLER:
            return kept(controller, command)
        octets = bytearray(commands.controller_data(controller))
        octets[IDENTIFY_CONTROLLER.offset("mdts")] = 200
        return transmission_of(bytes(octets))

    monkeypatch.setattr(nvme_target, "identify", page)

    async def test(options: HostOptions) -> None:
        async with await NvmeHost.connect(options) as host:
            assert host.controller.most_transfer == 1 << 22

    with_host(test)
