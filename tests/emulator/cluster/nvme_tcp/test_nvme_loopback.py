"""Target and host on the kernel's TCP, over the loopback of this machine."""

import asyncio
import random
import socket

import pytest

from emulator.cluster.nvme_tcp.initiator.host_queue import (
    ControllerLostError,
    NvmeCommandError,
    QueueBrokenError,
)
from emulator.cluster.nvme_tcp.initiator.nvme_host import NvmeHost, discover
from emulator.cluster.nvme_tcp.target.controller import TargetSettings
from emulator.cluster.nvme_tcp.target.server import local_end
from emulator.cluster.nvme_tcp.wire.layouts import IoOpcode, NvmeStatus
from emulator.errors import UserError
from tests.harness.nvme.memory_wire import BLOCK, NQN, SIZE, target_of
from tests.harness.nvme.served_target import LOOPBACK, asynchronous, options, served


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"header_digest": True, "data_digest": True, "io_queues": 3, "alignment": 7, "r2ts": 4},
        {"flow_control": False, "queue_entries": 2},
    ],
)
@asynchronous
async def test_what_was_written_is_read(changes: dict[str, object]) -> None:
    data = random.Random(1).randbytes(3 << 20)
    async with served(target_of()) as (_, port):
        async with await NvmeHost.connect(options(port, **changes)) as host:
            assert host.namespaces[1].octets == SIZE
            await host.write(1, 7, data)
            assert await host.read(1, 7, len(data) // BLOCK) == data
            pieces = [host.read(1, 7 + at, 1) for at in range(200)]
            small = await asyncio.gather(*pieces)
            assert b"".join(small) == data[: 200 * BLOCK]
            assert await host.compare(1, 7, data[:4096])
            assert not await host.compare(1, 8, data[:4096])
            await host.write(1, 0, b"y" * BLOCK, through=True)
            await host.write_zeroes(1, 7, 2)
            await host.deallocate(1, 9, 1)
            await host.flush(1)
            assert await host.read(1, 7, 3) == bytes(3 * BLOCK)
            counters = host.counters()
        assert counters["octets_written"] >= len(data)
        assert counters["failed_commands"] == 1  # the comparison that differs
        assert host.latencies.count > 200


@asynchronous
async def test_discovery_names_the_subsystem() -> None:
    async with served(target_of()) as (_, port):
        found = {one.nqn: one for one in await discover(options(port))}
        assert (found[NQN].address, found[NQN].service) == (LOOPBACK, str(port))


@asynchronous
async def test_errors_of_commands_are_raised_once() -> None:
    async with served(target_of()) as (_, port):
        async with await NvmeHost.connect(options(port)) as host:
            with pytest.raises(NvmeCommandError) as caught:
                await host.read(1, SIZE // BLOCK, 1)
            assert caught.value.status == NvmeStatus.LBA_OUT_OF_RANGE
            assert "retries" not in host.counters()
            with pytest.raises(UserError, match="no namespace 7"):
                await host.read(7, 0, 1)
            with pytest.raises(UserError, match="no whole blocks"):
                await host.write(1, 0, b"x")
        with pytest.raises(NvmeCommandError, match="connect_invalid_parameters"):
            await NvmeHost.connect(options(port, host_nqn=""))


@asynchronous
async def test_a_host_goes_on_with_a_target_that_comes_back() -> None:
    target = target_of()
    async with served(target) as (_, port):
        host = await NvmeHost.connect(options(port))
        await host.write(1, 0, b"a" * BLOCK)
    reads = [asyncio.create_task(host.read(1, 0, 1)) for _ in range(40)]
    await asyncio.sleep(0)
    async with served(target, port):
        assert await asyncio.gather(*reads) == [b"a" * BLOCK] * 40
        counters = host.counters()
        await host.close()
    assert counters["reconnects"] == counters["lost_connections"] == 1
    assert counters["commands"] > 40


@asynchronous
async def test_commands_under_way_are_sent_again() -> None:
    target = target_of()
    async with served(target) as (server, port):
        host = await NvmeHost.connect(options(port))
        data = random.Random(2).randbytes(1 << 20)
        work = [asyncio.create_task(host.write(1, 0, data)) for _ in range(8)]
        while not target.counters["tx_r2ts"]:
            await asyncio.sleep(0)
        for link in tuple(server.links.values()):
            link.hang_up()
        await asyncio.gather(*work)
        assert await host.read(1, 0, len(data) // BLOCK) == data
        assert host.counters()["retries"] > 0
        await host.close()


@asynchronous
async def test_a_controller_that_stays_away_is_lost() -> None:
    async with served(target_of()) as (_, port):
        host = await NvmeHost.connect(options(port, ctrl_loss_s=0.3))
    with pytest.raises(ControllerLostError, match=r"is lost: .*start the target"):
        await host.read(1, 0, 1)
    assert host.counters()["failed_reconnects"] > 0
    await host.close()


@asynchronous
async def test_keep_alive_keeps_an_idle_controller() -> None:
    target = target_of()
    async with (
        served(target) as (_, port),
        await NvmeHost.connect(options(port, keep_alive_s=0.4)) as host,
    ):
        while target.counters["keep_alives"] < 4:
            await asyncio.sleep(0.01)
        assert host.connected
        assert "reconnects" not in host.counters()


@asynchronous
async def test_a_silent_host_is_disconnected_by_its_own_deadline() -> None:
    """That of its TCP connection would come after the test's time is over."""
    target = target_of(TargetSettings(connect_ns=3600 * 10**9))
    async with served(target) as (_, port):
        host = await NvmeHost.connect(options(port, keep_alive_s=0.3, ctrl_loss_s=0))
        session = host.session
        assert session is not None
        for task in session._tasks:  # noqa: SLF001  nothing else makes a host silent
            task.cancel()
        await session.wait_broken()
        assert target.counters["keep_alive_timeouts"] == 1
        await host.close()


@asynchronous
async def test_a_command_that_hangs_is_timed_out_and_tried_again() -> None:
    target = target_of()
    kept = target.execute
    hung: list[object] = []

    def hang(connection, command, header, now_ns):  # type: ignore[no-untyped-def]
        outcome = kept(connection, command, header, now_ns)
        if command.opcode == IoOpcode.FLUSH and connection.qid and not hung:
            hung.append(command)
            return None  # neither answered nor refused
        return outcome

    target.execute = hang  # type: ignore[method-assign]
    async with (
        served(target) as (_, port),
        await NvmeHost.connect(options(port, command_timeout_s=0.5)) as host,
    ):
        await host.flush(1)
        counters = host.counters()
    assert (counters["timeouts"], counters["reconnects"], counters["retries"]) == (1, 1, 1)


@asynchronous
async def test_cancelled_commands_keep_their_places_in_the_queue() -> None:
    async with (
        served(target_of()) as (_, port),
        await NvmeHost.connect(options(port, queue_entries=4)) as host,
    ):
        for _ in range(20):
            work = [asyncio.create_task(host.read(1, 0, 64)) for _ in range(6)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        assert await host.read(1, 0, 64) == bytes(64 * BLOCK)
        assert "lost_connections" not in host.counters()


@asynchronous
async def test_a_host_that_is_closed_fails_what_waits() -> None:
    async with served(target_of()) as (_, port):
        host = await NvmeHost.connect(options(port, queue_entries=2))
        work = [asyncio.create_task(host.read(1, 0, 64)) for _ in range(50)]
        await asyncio.sleep(0)
        await host.close()
        outcomes = await asyncio.gather(*work, return_exceptions=True)
    assert {type(one) for one in outcomes} <= {bytes, ControllerLostError, QueueBrokenError}
    assert isinstance(outcomes[-1], ControllerLostError)


@asynchronous
async def test_commands_that_wait_for_their_turn_survive_a_broken_queue() -> None:
    async with (
        served(target_of()) as (_, port),
        await NvmeHost.connect(options(port, queue_entries=2)) as host,
    ):
        session = host.session
        assert session is not None
        (link,) = session.io
        work = [asyncio.create_task(host.read(1, 0, 64)) for _ in range(10)]
        while not link.queue.outstanding:
            await asyncio.sleep(0)
        link.close("broken by the test")
        assert await asyncio.gather(*work) == [bytes(64 * BLOCK)] * 10
        assert host.counters()["reconnects"] == 1


@asynchronous
async def test_nobody_listens() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(QueueBrokenError, match="Connection refused"):
        await NvmeHost.connect(options(port))


@asynchronous
async def test_what_is_no_nvme_target_is_given_up() -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(QueueBrokenError, match="invalid_header_field"):
        await NvmeHost.connect(options(port))
    server.close()


@pytest.mark.parametrize(
    ("name", "end"),
    [
        (("10.0.0.1", 5), ("10.0.0.1", 5)),
        (("::ffff:10.0.0.1", 5, 0, 0), ("10.0.0.1", 5)),
        (("fe80::1%eth0", 5, 0, 2), ("fe80::1", 5)),
    ],
)
def test_the_local_end_has_the_address_a_host_would_use(
    name: tuple[object, ...], end: tuple[str, int]
) -> None:
    assert tuple(local_end(name)) == end
