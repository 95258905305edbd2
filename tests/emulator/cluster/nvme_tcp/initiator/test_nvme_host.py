"""I/O goes on by another path where one breaks; latencies are counted in a histogram."""

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest

from emulator.cluster.nvme_tcp.initiator.host_queue import ControllerLostError, NvmeCommandError
from emulator.cluster.nvme_tcp.initiator.nvme_host import LatencyHistogram, MultipathHost
from emulator.cluster.nvme_tcp.target.nvme_target import NvmeTarget
from emulator.errors import UserError
from tests.harness.nvme.memory_wire import BLOCK, SIZE, target_of
from tests.harness.nvme.served_target import asynchronous, options, served


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@asynchronous
async def test_commands_move_to_the_other_path_and_none_is_lost() -> None:
    first = target_of()
    second = NvmeTarget(first.subsystems.values())
    data = random.Random(1).randbytes(4 << 20)
    async with contextlib.AsyncExitStack() as opened, served(second) as (_, other):
        _, port = await opened.enter_async_context(served(first))
        async with await MultipathHost.connect([options(port), options(other)]) as host:
            assert host.counters().get("failovers", 0) == 0
            writes = [
                asyncio.ensure_future(host.write(1, at // BLOCK, data[at : at + 4096]))
                for at in range(0, len(data), 4096)
            ]
            await until(lambda: any(one.done() for one in writes))
            await opened.aclose()
            await asyncio.gather(*writes)
            await host.flush(1)
            assert await host.read(1, 0, len(data) // BLOCK) == data
            counters = host.counters()
            assert counters["failovers"] == 1
            assert counters["lost_connections"] == 1
            assert first.counters["commands"]
            assert second.counters["commands"]

            async with served(first, port):  # which is in reserve now
                await until(lambda: host.paths[0].connected)
                assert await host.read(1, 0, 1) == data[:BLOCK]
                assert host.counters()["failovers"] == 1


@asynchronous
async def test_io_waits_for_a_path_and_ends_once_all_are_lost() -> None:
    target = target_of()
    second = NvmeTarget(target.subsystems.values())
    given = {"ctrl_loss_s": 0.3}
    async with contextlib.AsyncExitStack() as opened:
        ports = [(await opened.enter_async_context(served(one)))[1] for one in (target, second)]
        paths = [options(port, **given) for port in ports]
        async with await MultipathHost.connect(paths) as host:
            await host.write(1, 0, b"x" * BLOCK)
            await opened.aclose()
            with pytest.raises(ControllerLostError, match=r"is lost.*; .*is lost"):
                await host.read(1, 0, 1)


@asynchronous
async def test_an_error_of_a_command_is_no_fault_of_its_path() -> None:
    async with served(target_of()) as (_, port):
        host = await MultipathHost.connect([options(port)] * 2)
        async with host:
            with pytest.raises(NvmeCommandError):
                await host.read(1, SIZE // BLOCK, 1)
            assert host.counters().get("failovers", 0) == 0


@asynchronous
async def test_paths_to_different_disks_are_refused() -> None:
    async with served(target_of()) as (_, port), served(target_of(size=SIZE // 2)) as (_, other):
        with pytest.raises(UserError, match="have not the same namespaces"):
            await MultipathHost.connect([options(port), options(other)])


@pytest.mark.parametrize("scale", [5, 1000, 10**9, 10**15])
def test_percentiles_are_exact_to_an_eighth(scale: int) -> None:
    draw = random.Random(scale)
    times = sorted(1 + draw.randrange(scale) for _ in range(999))
    histogram = LatencyHistogram()
    for one in times:
        histogram.add(one)
    for share in (0.1, 0.5, 0.99, 1.0):
        exact = times[max(0, -(-int(share * 999 * 1000) // 1000) - 1)]
        assert exact <= histogram.percentile(share) <= exact * 1.126 + 1
    assert (histogram.least_ns, histogram.most_ns) == (times[0], times[-1])


def test_nothing_has_no_summary() -> None:
    assert LatencyHistogram().summary_us() == {}
