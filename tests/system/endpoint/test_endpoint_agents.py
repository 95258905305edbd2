"""Agents on a real fabric: data arrives, and whoever dies leaves a clean error and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import psutil
import pytest

from emulator.endpoint.agent_pool import AgentError, AgentPool
from emulator.endpoint.agent_spec import AgentSpec
from emulator.endpoint.nic.multi_port_nic import PortSpec
from emulator.endpoint.operations.gpu_memory import memory_path
from emulator.endpoint.operations.schedule import (
    Barrier,
    Compute,
    Copy,
    Operation,
    Receive,
    Reduce,
    Region,
    Schedule,
    Write,
)
from emulator.errors import UserError
from emulator.faults.condition import SOUND
from emulator.faults.fault_elements import element
from emulator.faults.fault_injector import FaultInjector
from emulator.lab import Lab
from tests import CHECKOUT
from tests.harness.lab.endpoint_lab import needs_root, pool_of, root, small_lab, specs_of, within

pytestmark = [root, needs_root]

SIZE = 300_000
BUFFERS = {"data": SIZE, "inbox": SIZE}
NO_PORT = PortSpec(interface="eth7", mac="02:00:00:00:00:01", gateway_mac="02:00:00:00:00:02")
DATA, INBOX = Region("data", 0, SIZE), Region("inbox", 0, SIZE)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with small_lab("rail_clos:hosts=2,gpus_per_host=2") as lab:
        yield lab


@pytest.fixture
def pool(lab: Lab) -> Iterator[AgentPool]:
    with pool_of(lab) as pool:
        pool.start()
        yield pool
    assert_nothing_left(lab)


def assert_nothing_left(lab: Lab, pids: list[int] | None = None) -> None:
    for gpu in lab.topology.gpus:
        assert not memory_path(lab.name, gpu.name).exists()
    assert list(lab.directory.glob("*.nvlink")) == []
    assert not any(map(alive, pids or []))


def schedules(*operations: tuple[Operation, ...]) -> list[Schedule]:
    padded = [*operations, *[()] * (4 - len(operations))]
    return [Schedule(rank=rank, buffers=BUFFERS, operations=ops) for rank, ops in enumerate(padded)]


def write(peer: int, tag: int = 0) -> Write:
    return Write(peer=peer, tag=tag, local=DATA, remote=INBOX)


def waits_forever() -> list[Schedule]:
    return schedules((Receive(peer=3, tag=0, into=INBOX),))


def fill(pool: AgentPool) -> dict[int, np.ndarray]:
    contents = {}
    for rank, memory in pool.memories.items():
        contents[rank] = np.frombuffer(os.urandom(SIZE), dtype=np.uint8)
        memory.array("data", np.uint8)[:] = contents[rank]
        memory.array("inbox", np.uint8)[:] = 0
    return contents


def test_all_kinds_of_operations_over_fabric_and_scale_up(pool: AgentPool) -> None:
    # 0 -> 3 crosses the spine, 3 -> 2 the scale-up network of the second server.
    pool.load(
        schedules(
            (write(3), Barrier(name="end", after=(0,))),
            (Barrier(name="end"),),
            (
                Receive(peer=3, tag=1, into=INBOX),
                Reduce(source=INBOX, into=DATA, dtype="uint8", after=(0,)),
                Barrier(name="end", after=(1,)),
            ),
            (
                Receive(peer=0, tag=0, into=INBOX),
                Compute(duration_ns=20_000, after=(0,)),
                Copy(peer=2, tag=1, local=INBOX, remote=INBOX, after=(1,)),
                Barrier(name="end", after=(2,)),
            ),
        )
    )
    for _ in range(3):
        contents = fill(pool)
        results = pool.run(timeout=20)
        assert [result.error for result in results] == [None] * 4
        assert [result.rank for result in results] == [0, 1, 2, 3]
        found = pool.memories[2].array("data", np.uint8)
        assert np.array_equal(found, contents[2] + contents[0])
        assert len({result.start_ns for result in results}) == 1
        ends = results[3].operation_end
        assert ends[1] - ends[0] >= 20_000
        last = max(result.end_ns for result in results)
        assert results[0].operation_end[1] <= last
    counters = pool.counters()
    assert counters[0]["nic"]["socket_drops"] == 0
    assert counters[2]["scale_up"]["copies_in"] == 3
    assert counters[0]["transport"]["tx_messages"] == 3
    assert counters[3]["nic"]["unknown_sources"] == 0


def test_everyone_writes_to_everyone(pool: AgentPool) -> None:
    part = SIZE // 4
    operations = []
    for rank in range(4):
        peers = [peer for peer in range(4) if peer != rank]
        writes = tuple(
            Write(
                peer=peer,
                tag=5,
                local=Region("data", peer * part, part),
                remote=Region("inbox", rank * part, part),
            )
            for peer in peers
        )
        receives = tuple(
            Receive(peer=peer, tag=5, into=Region("inbox", peer * part, part)) for peer in peers
        )
        operations.append(writes + receives)
    pool.load(schedules(*operations))
    contents = fill(pool)
    pool.run(timeout=30)
    for rank in range(4):
        inbox = pool.memories[rank].array("inbox", np.uint8)
        for peer in set(range(4)) - {rank}:
            got = inbox[peer * part : (peer + 1) * part]
            assert np.array_equal(got, contents[peer][rank * part : (rank + 1) * part])


def test_new_schedule_on_running_agents(pool: AgentPool) -> None:
    for size in (1000, 200_000, 4):
        region = Region("x", 0, size)
        operations: list[tuple[Operation, ...]] = [()] * 4
        operations[1] = (Write(peer=2, tag=0, local=region, remote=region),)
        operations[2] = (Receive(peer=1, tag=0, into=region),)
        pool.load(
            [
                Schedule(rank=rank, buffers={"x": size}, operations=ops)
                for rank, ops in enumerate(operations)
            ]
        )
        pool.memories[1].array("x", np.uint8)[:] = 7
        pool.memories[2].array("x", np.uint8)[:] = 0
        pool.run(timeout=10)
        assert (pool.memories[2].array("x", np.uint8) == 7).all()


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_renewed_endpoints_have_learned_nothing_and_count_on(lab: Lab, transport: str) -> None:
    state = {"uet": "pdcs_open", "rocev2": "qps_open"}[transport]
    with pool_of(lab, specs_of(lab, transport=transport)) as pool:
        pool.start()
        pool.load(schedules((write(3),), (), (), (Receive(peer=0, tag=0, into=INBOX),)))
        pool.renew()  # nothing has used them yet
        assert pool.counters()[0]["transport"][state] == 0
        packets = []
        for _ in range(3):
            fill(pool)
            pool.run(timeout=20)
            counters = pool.counters()[0]["transport"]
            assert counters[state] == 1
            packets.append(counters["tx_data_packets"])
            pool.renew()
            assert pool.counters()[0]["transport"][state] == 0
            assert pool.counters()[0]["transport"]["tx_data_packets"] == packets[-1]
        assert packets == [packets[0], 2 * packets[0], 3 * packets[0]]
        assert pool.counters()[0]["executor"]["stale_arrivals"] == 0


def test_agents_live_in_their_namespaces_and_only_there(pool: AgentPool, lab: Lab) -> None:
    for rank, pid in pool.pids.items():
        ours = os.stat(f"/proc/{pid}/ns/net")
        assert ours.st_ino == os.stat(lab.netns(pool.specs[rank].node)).st_ino


def test_idle_agent_uses_no_processor(pool: AgentPool) -> None:
    pool.load(schedules((write(3),), (), (), (Receive(peer=0, tag=0, into=INBOX),)))
    pool.run(timeout=20)
    processes = [psutil.Process(pid) for pid in pool.pids.values()]

    def switches() -> list[int]:
        return [process.num_ctx_switches().voluntary for process in processes]

    # A loop that spins never sleeps, one that sleeps for its next deadline wakes now and then.
    seen = [switches()]

    def settled() -> bool:
        seen.append(switches())
        return len(seen) > 50 and seen[-1] == seen[-20]

    within(30, settled, "agents sleep without waking")


@pytest.mark.parametrize("during", ["idle", "run"])
def test_killed_agent_is_named_and_all_others_end(pool: AgentPool, lab: Lab, during: str) -> None:
    pool.load(waits_forever())
    pids = pool.pids
    victim = pids[2]
    if during == "idle":
        os.kill(victim, signal.SIGKILL)
    else:
        threading.Timer(0.2, os.kill, (victim, signal.SIGKILL)).start()
    with pytest.raises(AgentError, match=r"rank 2 \(h1g0\) was killed by SIGKILL") as caught:
        pool.run(timeout=30)
    assert caught.value.rank == 2
    assert_nothing_left(lab, list(pids.values()))
    pool.stop()  # again is no harm


def test_stopped_agent_is_named_within_bounds(
    pool: AgentPool, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("agent_pool", "agent_processes"):
        monkeypatch.setattr(f"emulator.endpoint.{module}.ANSWER_SECONDS", 0.5)
    pids = pool.pids
    os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(AgentError, match=r"rank 1 \(h0g1\) did not take its schedule"):
        pool.load(waits_forever())
    assert_nothing_left(lab, list(pids.values()))


def test_killed_fork_server_ends_everything(pool: AgentPool, lab: Lab) -> None:
    pool.load(waits_forever())
    pids = list(pool.pids.values())
    fork_server = pool.processes.fork_server_pid
    threading.Timer(0.2, os.kill, (fork_server, signal.SIGKILL)).start()
    with pytest.raises(AgentError):
        pool.run(timeout=30)
    assert_nothing_left(lab, pids)


def test_rank_that_gets_no_data_fails_at_the_timeout(pool: AgentPool, lab: Lab) -> None:
    pool.load(waits_forever())
    with pytest.raises(AgentError, match=r"rank 0 \(h0g0\) failed with deadline") as caught:
        pool.run(timeout=0.3)
    error = caught.value
    assert "Receive from rank 3 with tag 0" in str(error)
    assert {result.rank: result.error for result in error.results}[0] == "deadline"
    assert set(error.counters) == {0, 1, 2, 3}
    assert_nothing_left(lab)


@pytest.mark.parametrize("transport", ["uet:rto=5us", "rocev2"])
def test_rank_whose_retries_are_over_fails_then_and_not_at_the_timeout(
    lab: Lab, transport: str
) -> None:
    """Its peer is gone, so that no frame wakes it: only the transport's own timers do."""
    injector, timeout = FaultInjector(lab), 20.0
    specs = specs_of(lab, transport=transport)
    try:
        with pool_of(lab, specs) as pool:
            pool.start()
            pool.load(schedules((write(3),), (Receive(peer=2, tag=0, into=INBOX),)))
            injector.apply(SOUND.lowered(element("nic", "h1g1", lab.topology)))
            with pytest.raises(
                AgentError, match=r"rank 0 \(h0g0\) failed with transport"
            ) as caught:
                pool.run(timeout=timeout)
    finally:
        injector.apply(SOUND)
    failed, waiting = caught.value.results[:2]
    deadline = failed.start_ns + pool.clock.fabric_duration(round(timeout * 1e9))
    assert failed.end_ns < deadline
    assert (waiting.error, waiting.detail) == ("aborted", "rank 0 failed")
    assert waiting.end_ns < deadline


def test_wrong_data_fails_and_aborts_the_others(pool: AgentPool) -> None:
    other = Region("inbox", 0, SIZE - 4)
    pool.load(
        schedules(
            (write(3),),
            (Receive(peer=2, tag=8, into=INBOX),),
            (),
            (Receive(peer=0, tag=0, into=other),),
        )
    )
    with pytest.raises(AgentError, match=r"rank 3 \(h1g1\) failed with misplaced") as caught:
        pool.run(timeout=30)
    errors = {result.rank: result.error for result in caught.value.results}
    assert errors[1] == "aborted"
    assert errors[3] == "misplaced"


def test_bad_schedule_is_a_user_error(pool: AgentPool) -> None:
    with pytest.raises(UserError, match="rank 0: operation 0"):
        pool.load(schedules((Copy(peer=3, tag=0, local=DATA, remote=DATA),)))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"ports": (NO_PORT,)}, "eth7|No such device|no interface"),
        ({"ports": (NO_PORT, NO_PORT)}, "eth7|No such device|no interface"),
        ({"netns": "/run/netns/uetemu.absent.h0g0"}, "No such file"),
        ({"transport": "emulator.transports:nothing"}, "module:function"),
        ({"transport": "no.such.module:thing"}, "module:function|fork server"),
    ],
)
def test_agent_that_cannot_start_says_why(
    lab: Lab, change: dict[str, object], complaint: str
) -> None:
    specs: list[AgentSpec] = specs_of(lab)
    specs[1] = replace(specs[1], **change)  # type: ignore[arg-type]
    with pytest.raises(AgentError, match=complaint), pool_of(lab, specs) as pool:
        pool.start()
    assert_nothing_left(lab)


RUNNER = """
    import sys
    from tests.system.endpoint.test_endpoint_agents import pool_of, waits_forever
    from emulator.lab import Lab
    lab = Lab.attach(sys.argv[1])
    pool = pool_of(lab)
    pool.start()
    pool.load(waits_forever())
    print(pool.processes.fork_server_pid, *pool.pids.values(), flush=True)
    if sys.argv[2] == "run":
        pool.run(timeout=60)
    else:
        sys.stdin.read()
"""


@pytest.mark.parametrize("during", ["idle", "run"])
def test_killed_runner_takes_all_agents_with_it(lab: Lab, during: str) -> None:
    project = CHECKOUT
    runner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(RUNNER), lab.name, during],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project)},
    )
    with runner:
        assert runner.stdout is not None
        pids = [int(pid) for pid in runner.stdout.readline().split()]
        assert len(pids) == 5
        assert all(map(psutil.pid_exists, pids))
        runner.kill()
        runner.wait()
        within(10, lambda: not any(map(alive, pids)), "all agents are gone")
    for gpu in lab.topology.gpus:  # what `uetemu clean` would do
        memory_path(lab.name, gpu.name).unlink(missing_ok=True)
    for mailbox in lab.directory.glob("*.nvlink"):
        mailbox.unlink()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
