"""States of a queue pair, what they let through, and turns between queue pairs."""

from collections import Counter

import pytest

from emulator.rocev2.connection.queue_pair import QpState, QueuePair, QueuePairError
from emulator.rocev2.connection.work import WorkError
from emulator.rocev2.connections import Connection
from emulator.rocev2.memory import HcaMemoryRegion, HcaMemoryRegionError, RKeyTable
from emulator.rocev2.wire.packets import HcaPeer
from tests.harness.rocev2.ends import KEY, THERE, qpn
from tests.harness.rocev2.lone import Lone
from tests.harness.uet.network import MACS
from uet.transport import SendRequest, WriteRequest

NEW = 0x4242
MTU = 1024


def fresh() -> tuple[Lone, QueuePair, HcaPeer]:
    end = Lone()
    peer = HcaPeer(end.hca.encapsulation, THERE, MACS[THERE])
    return end, end.hca.add_queue_pair(NEW), peer


def test_the_way_up() -> None:
    end, qp, peer = fresh()
    memory = memoryview(bytearray(8))
    end.hca.register(memory, key=KEY)
    packet = end.write(7, b"data", key=KEY, dqpn=NEW)
    work = SendRequest(peer=THERE, payload=memoryview(b"x"))
    for up in (None, qp.to_init):
        if up is not None:
            up()
        assert end.ask(packet) == []
        with pytest.raises(WorkError, match="bring it to RTS before posting"):
            qp.prepare(work)
    assert end.hca.counts["rx_drop_qp_state"] == 2
    qp.to_rtr(peer, qpn(1), 7)
    with pytest.raises(WorkError, match="state RTR"):
        qp.prepare(work)
    (ack,) = end.ask(packet)  # it answers before it may ask
    assert ack.psn == 7
    assert bytes(memory[:4]) == b"data"
    qp.to_rts(0x99)
    qp.post(qp.prepare(work))
    (sent,) = end.take()
    assert (sent.psn, sent.dqpn) == (0x99, qpn(1))


def test_ways_that_there_are_not() -> None:
    _, qp, peer = fresh()
    with pytest.raises(QueuePairError, match="state RESET, where nothing can fail"):
        qp.fail()
    with pytest.raises(QueuePairError, match="state RESET, from which RTR"):
        qp.to_rtr(peer, 5, 0)
    qp.to_init()
    with pytest.raises(QueuePairError, match="state INIT, from which RTS"):
        qp.to_rts(0)
    qp.fail()
    qp.fail()
    with pytest.raises(QueuePairError, match="state ERR, from which INIT"):
        qp.to_init()
    qp.reset()
    states = [qp.state]
    qp.connect(peer, Connection(local_qpn=NEW, remote_qpn=qpn(1)))
    assert [*states, qp.state] == [QpState.RESET, QpState.RTS]


def test_reset_forgets() -> None:
    end, qp, peer = fresh()
    qp.connect(peer, Connection(local_qpn=NEW, remote_qpn=qpn(1)))
    qp.post(qp.prepare(SendRequest(peer=THERE, payload=memoryview(b"x"))))
    qp.reset()
    assert end.take() == []
    assert end.done() == []
    assert qp.idle


def test_queue_pairs_take_turns() -> None:
    end = Lone(qps=4)
    for _ in range(4):
        end.hca.post(
            WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(bytes(1024 * 1_000)))
        )
    sent: Counter[int] = Counter()
    for _ in range(40):
        for packet in end.take(8):
            sent[packet.dqpn] += 1
    assert sum(sent.values()) == 320
    assert set(sent.values()) == {80}


@pytest.mark.parametrize("limit", [1, 16])
def test_requests_do_not_wait_for_all_the_data_of_a_read(limit: int) -> None:
    end = Lone()
    end.hca.register(memoryview(bytearray(100 * MTU)), key=KEY)
    end.give(end.frame(0x0C, end.psn, {"va": 0, "rkey": KEY, "dmalen": 100 * MTU}))
    end.hca.post(WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(bytes(100 * MTU))))
    first = [packet.opcode for _ in range(40 // limit + 1) for packet in end.take(limit)]
    reads = sum(opcode in (0x0D, 0x0E) for opcode in first)
    assert 0.3 * len(first) < reads < 0.7 * len(first)
    rest = [packet.opcode for packet in end.take()]
    assert len(first) + len(rest) == 200


def test_a_number_that_is_taken() -> None:
    end, _, _ = fresh()
    for number in (NEW, qpn(0)):
        with pytest.raises(ValueError, match="there is a QP"):
            end.hca.add_queue_pair(number)


def test_memory_regions() -> None:
    table = RKeyTable()
    memory = memoryview(bytearray(100))
    table.register(HcaMemoryRegion(memory, 5, address=0x7000))
    table.register(HcaMemoryRegion(memory, 6, writable=False))
    assert table.reach(5, 0x7000 + 90, 10, write=True) == memory[90:]
    assert table.reach(5, 0x7000 + 91, 10) is None
    assert table.reach(5, 0x6FFF, 1) is None
    assert table.reach(6, 0, 1, write=True) is None
    assert table.reach(6, 0, 1, read=True) == memory[:1]
    for region, complaint in (
        (HcaMemoryRegion(memory, 5), "in use"),
        (HcaMemoryRegion(memory, 1 << 32), "32 bits"),
        (HcaMemoryRegion(memoryview(b"x"), 7), "read-only memory"),
        (HcaMemoryRegion(memory, 7, address=(1 << 64) - 50), "leaves the 64-bit"),
        (HcaMemoryRegion(memory.cast("I"), 7), "flat view"),
    ):
        with pytest.raises(HcaMemoryRegionError, match=complaint):
            table.register(region)
    table.unregister(5)
    with pytest.raises(HcaMemoryRegionError, match="not registered"):
        table.unregister(5)
