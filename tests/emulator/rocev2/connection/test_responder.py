"""The answering side, packet by packet."""

from typing import Any

import pytest

from emulator.rocev2.connection.responder import Responder
from emulator.rocev2.wire.codes import RNR_MICROSECONDS, pkeys_match
from tests.harness.rocev2.ends import KEY, qpn
from tests.harness.rocev2.lone import PSN_MASK, Lone
from tests.harness.uet.network import flip
from uet.transport import ReceiveRequest

MTU = 1024


def lone(**parameters: Any) -> tuple[Lone, memoryview]:
    end = Lone(**parameters)
    memory = memoryview(bytearray(16 * MTU))
    end.hca.register(memory, key=KEY)
    return end, memory


def burst(end: Lone, count: int, *, ask_last: bool = True) -> list[bytes]:
    """One WRITE of ``count`` packets to address 0, each full of its number."""
    frames = []
    for n in range(count):
        opcode = 0x06 if n == 0 else 0x08 if n == count - 1 else 0x07
        extensions = ({"va": 0, "rkey": KEY, "dmalen": count * MTU},) if n == 0 else ()
        frames.append(
            end.frame(opcode, end.psn + n, *extensions, payload=bytes([n]) * MTU,
                      ask=ask_last and n == count - 1)
        )  # fmt: skip
    return frames


@pytest.mark.conformance("R-019")
def test_a_write_in_order() -> None:
    end, memory = lone()
    for message in range(1, 4):
        (ack,) = end.ask(*burst(end, 3))
        assert (ack.opcode, ack.psn, ack.dqpn) == (0x11, end.psn + 2 & PSN_MASK, qpn(1))
        assert ack.fields == {"syndrome": 0x1F, "msn": message}
        end.psn += 3
    assert memory[: 3 * MTU] == bytes([0]) * MTU + bytes([1]) * MTU + bytes([2]) * MTU
    assert end.take() == []


@pytest.mark.conformance("R-020")
def test_one_nak_for_one_gap() -> None:
    end, memory = lone()
    frames = burst(end, 6)
    answers = []
    for frame in (*frames[:2], *frames[3:]):
        answers += end.ask(frame)
    (nak,) = answers
    assert (nak.opcode, nak.psn, nak.syndrome) == (0x11, end.psn + 2 & PSN_MASK, 0x60)
    assert end.hca.counts["rx_drop_out_of_order"] == 3
    # Once the gap is closed, another one draws another NAK.
    assert end.ask(frames[2]) == []
    (again,) = end.ask(frames[5])
    assert (again.psn, again.syndrome) == (end.psn + 3 & PSN_MASK, 0x60)
    (ack,) = end.ask(*frames[3:])
    assert (ack.psn, ack.syndrome) == (end.psn + 5 & PSN_MASK, 0x1F)
    assert bytes(memory[5 * MTU : 6 * MTU]) == bytes([5]) * MTU


@pytest.mark.conformance("R-021")
@pytest.mark.parametrize("send", [False, True])
def test_a_duplicate_is_acknowledged_and_not_executed(send: bool) -> None:
    end, memory = lone()
    buffers = [memoryview(bytearray(MTU)) for _ in range(2)]
    for buffer in buffers:
        end.hca.post_receive(ReceiveRequest(memory=buffer))
    first = (
        end.frame(0x04, end.psn, payload=b"once", ask=True)
        if send
        else end.write(end.psn, b"once", key=KEY)
    )
    second = end.write(end.psn + 1, b"two", key=KEY, va=100)
    (_,) = end.ask(first, second)
    end.done()
    memory[:4] = b"----"
    (ack,) = end.ask(first)
    assert (ack.psn, ack.syndrome) == (end.psn + 1 & PSN_MASK, 0x1F)
    assert (ack.fields["msn"], bytes(memory[:4])) == (2, b"----")
    assert end.done() == []
    assert buffers[1] == bytes(MTU)


@pytest.mark.conformance("R-022")
def test_a_duplicate_atomic_is_answered_from_memory() -> None:
    end, memory = lone()
    memory[:8] = (41).to_bytes(8, "little")
    eth = {"va": 0, "rkey": KEY, "swap_or_add": 1, "compare": 0}
    request = end.frame(0x14, end.psn, eth, ask=True)
    for _ in range(3):
        (answer,) = end.ask(request)
        assert (answer.opcode, answer.psn) == (0x12, end.psn & PSN_MASK)
        assert (answer.fields["origremdt"], answer.fields["msn"]) == (41, 1)
    assert int.from_bytes(memory[:8], "little") == 42


@pytest.mark.parametrize(("compare", "after"), [(7, 9), (8, 7)])
def test_compare_and_swap(compare: int, after: int) -> None:
    end, memory = lone()
    memory[8:16] = (7).to_bytes(8, "little")
    eth = {"va": 8, "rkey": KEY, "swap_or_add": 9, "compare": compare}
    (answer,) = end.ask(end.frame(0x13, end.psn, eth))
    assert answer.fields["origremdt"] == 7
    assert int.from_bytes(memory[8:16], "little") == after


@pytest.mark.conformance("R-017", "R-023", "R-005")
def test_reads_and_the_rest_of_a_read() -> None:
    end, memory = lone()
    memory[: 3 * MTU] = bytes([1]) * MTU + bytes([2]) * MTU + bytes([3]) * MTU
    length = 2 * MTU + 10

    def request(skip: int) -> bytes:
        reth = {"va": skip * MTU, "rkey": KEY, "dmalen": length - skip * MTU}
        return end.frame(0x0C, end.psn + skip, reth)

    answers = end.ask(request(0))
    assert [a.opcode for a in answers] == [0x0D, 0x0E, 0x0F]
    assert [a.psn for a in answers] == [end.psn + n & PSN_MASK for n in range(3)]
    assert [len(a.payload) for a in answers] == [MTU, MTU, 10]
    assert [a.fields.get("msn") for a in answers] == [1, None, 1]
    assert b"".join(a.payload for a in answers) == memory[:length]
    memory[MTU : 2 * MTU] = bytes([9]) * MTU
    answers = end.ask(request(1))
    assert [a.opcode for a in answers] == [0x0D, 0x0F]
    assert [a.psn for a in answers] == [end.psn + n & PSN_MASK for n in (1, 2)]
    assert b"".join(a.payload for a in answers) == memory[MTU:length]
    (only,) = end.ask(request(2))
    assert (only.opcode, only.payload) == (0x10, bytes(memory[2 * MTU : length]))
    # The next request has the PSN behind all of them.
    (ack,) = end.ask(end.write(end.psn + 3, b"x", key=KEY))
    assert (ack.psn, ack.fields["msn"]) == (end.psn + 3 & PSN_MASK, 2)


def test_an_ack_does_not_overtake_the_data_of_a_read() -> None:
    end, _ = lone()
    reth = {"va": 0, "rkey": KEY, "dmalen": 3 * MTU}
    end.give(end.frame(0x0C, end.psn, reth), end.write(end.psn + 3, b"x", key=KEY))
    opcodes = [packet.opcode for _ in range(5) for packet in end.take(1)]
    assert opcodes == [0x0D, 0x0E, 0x0F, 0x11]


@pytest.mark.conformance("R-024")
@pytest.mark.parametrize("opcode", [0x04, 0x0B])
def test_no_receive(opcode: int) -> None:
    end, memory = lone(min_rnr_timer=14)
    extensions = () if opcode == 4 else (
        {"va": 0, "rkey": KEY, "dmalen": 4}, {"immediate": 5},
    )  # fmt: skip
    packet = end.frame(opcode, end.psn, *extensions, payload=b"data", ask=True)
    (nak,) = end.ask(packet)
    assert (nak.psn, nak.syndrome) == (end.psn & PSN_MASK, 0x20 | 14)
    assert nak.fields["msn"] == 0
    assert end.done() == []
    assert RNR_MICROSECONDS[14] == 1_280
    assert end.ask(end.write(end.psn + 1, b"later", key=KEY)) == []
    end.hca.post_receive(ReceiveRequest(memory=memoryview(bytearray(10)), context="c"))
    (ack,) = end.ask(packet)
    assert (ack.syndrome, ack.fields["msn"]) == (0x1F, 1)
    kinds = {completion.kind for completion in end.done()}
    assert kinds == ({"receive"} if opcode == 4 else {"receive", "remote_write"})
    assert bytes(memory[:4]) == (bytes(4) if opcode == 4 else b"data")


FAULTS: dict[str, tuple[int, int]] = {
    "unknown key": (0x62, 1),
    "out of range": (0x62, 2),
    "read-only": (0x62, 3),
    "length of only": (0x61, 4),
    "middle without first": (0x61, 5),
    "reserved opcode": (0x61, 6),
    "read of an unknown key": (0x62, 7),
    "atomic not aligned": (0x61, 8),
    "short middle": (0x61, 9),
    "too long a send": (0x61, 10),
    "write within a send": (0x61, 11),
    "empty last": (0x61, 12),
    "read with data": (0x61, 13),
}


@pytest.mark.conformance("R-025")
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_end_the_connection(fault: str) -> None:
    end, memory = lone()
    end.hca.register(memoryview(bytes(100)), key=KEY + 1, writable=False)
    end.hca.post_receive(ReceiveRequest(memory=memoryview(bytearray(10)), context="short"))
    first = end.frame(0x06, end.psn, {"va": 0, "rkey": KEY, "dmalen": 3 * MTU}, payload=bytes(MTU))
    before: list[bytes] = []
    match FAULTS[fault][1]:
        case 1:
            bad = end.write(end.psn, b"x", key=KEY + 5)
        case 2:
            bad = end.write(end.psn, b"xy", key=KEY, va=len(memory) - 1)
        case 3:
            bad = end.write(end.psn, b"x", key=KEY + 1)
        case 4:
            reth = {"va": 0, "rkey": KEY, "dmalen": 5}
            bad = end.frame(0x0A, end.psn, reth, payload=b"four", ask=True)
        case 5:
            bad = end.frame(0x07, end.psn, payload=bytes(MTU))
        case 6:
            bad = end.frame(0x1E, end.psn)
        case 7:
            bad = end.frame(0x0C, end.psn, {"va": 0, "rkey": KEY + 5, "dmalen": 1})
        case 8:
            bad = end.frame(0x14, end.psn, {"va": 4, "rkey": KEY, "swap_or_add": 1, "compare": 0})
        case 9:
            before, bad = [first], end.frame(0x07, end.psn + 1, payload=bytes(MTU - 4))
        case 10:
            bad = end.frame(0x04, end.psn, payload=bytes(11))
        case 11:
            end.hca.post_receive(ReceiveRequest(memory=memoryview(bytearray(MTU * 2))))
            before = [first]
            bad = end.frame(0x01, end.psn + 1, payload=bytes(MTU))
        case 12:
            before, bad = [first], end.frame(0x08, end.psn + 1)
        case 13:
            reth = {"va": 0, "rkey": KEY, "dmalen": 4}
            bad = end.frame(0x0C, end.psn, reth, payload=b"data")
    *_, nak = end.ask(*before, bad)
    assert nak.syndrome == FAULTS[fault][0]
    assert nak.psn == end.psn + len(before) & PSN_MASK
    assert end.state() == "ERR"
    assert end.ask(end.write(end.psn + len(before), b"x", key=KEY)) == []
    assert end.hca.counts["rx_drop_qp_state"] == 1
    errors = [completion.error for completion in end.done()]
    assert errors == (["LOC_LEN_ERR"] if fault == "too long a send" else [])


def test_a_refused_request_has_its_nak_behind_the_data_of_an_earlier_read() -> None:
    end, memory = lone()
    memory[:] = bytes(n % 253 for n in range(len(memory)))
    end.give(
        end.frame(0x0C, end.psn, {"va": 0, "rkey": KEY, "dmalen": 3 * MTU}),
        end.write(end.psn + 3, b"x", key=KEY + 1),
    )
    assert end.state() == "ERR"
    *data, nak = end.take(1) + end.take()
    assert [packet.opcode for packet in data] == [0x0D, 0x0E, 0x0F]
    assert b"".join(packet.payload for packet in data) == memory[: 3 * MTU]
    assert (nak.syndrome, nak.psn) == (0x62, end.psn + 3 & PSN_MASK)
    assert end.take() == []
    assert end.hca.next_deadline() is None


@pytest.mark.conformance("R-026")
def test_acks_coalesce() -> None:
    end, _ = lone()
    frames = [end.write(end.psn + n, b"x", key=KEY) for n in range(20)]
    answers = [a for start in (0, 7, 14) for a in end.ask(*frames[start : start + 7])]
    assert 1 <= len(answers) <= 20
    assert answers[-1].psn == end.psn + 19 & PSN_MASK
    assert answers[-1].fields["msn"] == 20
    psns = [(a.psn - end.psn) & PSN_MASK for a in answers]
    assert psns == sorted(set(psns))


@pytest.mark.conformance("R-010")
def test_a_wrong_icrc_changes_nothing() -> None:
    end, memory = lone()
    good = end.write(end.psn, b"data", key=KEY)
    for bit in range(8 * 54, 8 * len(good)):
        assert end.ask(flip(good, bit)) == []
    assert end.hca.counts["rx_drop_bad_icrc"] == 8 * (len(good) - 54)
    assert bytes(memory[:4]) == bytes(4)
    (ack,) = end.ask(good)
    assert ack.fields["msn"] == 1


@pytest.mark.conformance("R-011")
@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("rx_drop_unknown_qp", {"dqpn": 0x999}),
        ("rx_drop_bad_version", {"version": 1}),
        ("rx_drop_bad_pkey", {"pkey": 0x7FFE}),
        ("rx_drop_other_service", {"opcode": 0x2A}),
    ],
)
def test_silent_drops(reason: str, changes: dict[str, int]) -> None:
    end, _ = lone()
    values = {"opcode": 0x0A, "psn": end.psn, **changes}
    reth = {"va": 0, "rkey": KEY, "dmalen": 1}
    opcode, psn = values.pop("opcode"), values.pop("psn")
    assert end.ask(end.frame(opcode, psn, reth, payload=b"x", ask=True, **values)) == []
    assert end.hca.counts[reason] == 1
    assert end.state() == "RTS"
    (ack,) = end.ask(end.write(end.psn, b"x", key=KEY))
    assert ack.fields["msn"] == 1


@pytest.mark.conformance("R-012")
def test_pkeys() -> None:
    assert pkeys_match(0xFFFF, 0x7FFF)
    assert pkeys_match(0xFFFF, 0xFFFF)
    assert not pkeys_match(0x7FFF, 0x7FFF)
    assert not pkeys_match(0x8001, 0xFFFF)
    assert not pkeys_match(0x8000, 0x8000)


def test_too_many_reads_at_once() -> None:
    end, _ = lone(max_dest_rd_atomic=2)
    reth = {"va": 0, "rkey": KEY, "dmalen": MTU}
    requests = [end.frame(0x0C, end.psn + n, reth) for n in range(3)]
    end.give(*requests[:2])
    assert [packet.opcode for packet in end.take()] == [0x10, 0x10]
    (answer,) = end.ask(requests[2])
    assert answer.opcode == 0x10
    assert end.state() == "RTS"
    end, _ = lone(max_dest_rd_atomic=2)
    *_, nak = end.ask(*requests)
    assert nak.syndrome == 0x61
    assert end.state() == "ERR"


def test_what_comes_again_is_not_too_much_at_once() -> None:
    """A timer that expired too early repeats READs that are answered already; the data that was
    on the way completes them, and the requester goes on with as many as it may."""
    end, _ = lone(max_dest_rd_atomic=4)
    reth = {"va": 0, "rkey": KEY, "dmalen": MTU}
    add = {"va": 0, "rkey": KEY, "swap_or_add": 1, "compare": 0}
    requests = [end.frame(0x0C, end.psn + n, reth) for n in range(6)]
    requests += [end.frame(0x14, end.psn + 6 + n, add) for n in range(2)]
    assert len(end.ask(*requests[:4])) == 4
    answers = end.ask(*requests[:4], *requests[4:])
    assert [answer.psn - end.psn & PSN_MASK for answer in answers] == list(range(8))
    assert end.state() == "RTS"


def test_atomics_are_limited_as_reads_are() -> None:
    end, _ = lone(max_dest_rd_atomic=2)
    add = {"va": 0, "rkey": KEY, "swap_or_add": 1, "compare": 0}
    end.give(end.frame(0x0C, end.psn, {"va": 0, "rkey": KEY, "dmalen": MTU}))
    *answers, nak = end.ask(*(end.frame(0x14, end.psn + 1 + n, add) for n in range(2)))
    assert [answer.opcode for answer in answers] == [0x10, 0x12]
    assert (nak.syndrome, nak.psn) == (0x61, end.psn + 2 & PSN_MASK)


def test_answers_behind_a_read_do_not_pile_up() -> None:
    """A peer that goes on asking while the data of its READ leaves slowly, or not at all."""
    end, _ = lone()
    end.give(end.frame(0x0C, end.psn, {"va": 0, "rkey": KEY, "dmalen": MTU}))
    not_ready = end.frame(0x04, end.psn + 1, payload=b"x")
    for _ in range(5_000):
        end.give(not_ready)
    assert end.hca.counts["tx_drop_answers"] > 0
    assert len(end.take(1)) <= 4_097
    end.hca.post_receive(ReceiveRequest(memory=memoryview(bytearray(1))))
    (ack,) = end.ask(end.frame(0x04, end.psn + 1, payload=b"x", ask=True))
    assert (ack.opcode, ack.syndrome) == (0x11, 0x1F)


def test_selective_repeat_names_what_is_missing() -> None:
    end, memory = lone(recovery="selective_repeat")
    frames = burst(end, 8)
    naks = end.ask(*(frames[n] for n in (0, 2, 3, 5, 7)))
    assert [(n.psn - end.psn & PSN_MASK, n.syndrome) for n in naks] == [
        (1, 0x60), (4, 0x60), (6, 0x60),
    ]  # fmt: skip
    # 6 arrives: what was named before it has been lost once more.
    assert [n.psn - end.psn & PSN_MASK for n in end.ask(frames[6])] == [1, 4]
    assert end.ask(frames[1]) == []
    (ack,) = end.ask(frames[4])
    assert (ack.psn, ack.syndrome, ack.fields["msn"]) == (end.psn + 7 & PSN_MASK, 0x1F, 1)
    assert memory[: 8 * MTU] == b"".join(bytes([n]) * MTU for n in range(8))


def test_selective_repeat_forgets_the_psns_that_a_read_stood_for() -> None:
    """They are many, and one packet brings all: none of them is missing after it, or kept."""
    end, _ = lone(recovery="selective_repeat")

    def write(number: int) -> bytes:
        return end.write(end.psn + number, b"x", key=KEY, ask=False)

    read = end.frame(0x0C, end.psn, {"va": 0, "rkey": KEY, "dmalen": 10 * MTU})
    end.give(*(write(n) for n in (3, 4, 10)))  # two where no packet can be, one behind
    assert len(end.take()) == 8
    assert [answer.psn - end.psn & PSN_MASK for answer in end.ask(read)] == list(range(10))
    for lost in (11, 13):
        naks = end.ask(write(lost + 1), write(lost))
        assert [nak.psn - end.psn & PSN_MASK for nak in naks] == [lost]
    qp = end.hca.queue_pair(qpn(0))
    assert qp is not None
    assert isinstance(qp.responder, Responder)
    assert qp.responder.expected - end.psn == 15
    early = qp.responder._early  # noqa: SLF001  memory alone
    assert early is not None
    assert not early._kept  # noqa: SLF001  memory alone
    assert not early._named  # noqa: SLF001  memory alone


def test_a_read_that_comes_again_is_answered_in_its_place() -> None:
    """Whether the requester went back or the network made a copy, what is behind it still leaves,
    and no number of copies makes more than one answer wait."""
    end, memory = lone()
    memory[:] = bytes(n % 253 for n in range(len(memory)))
    reth = {"va": 0, "rkey": KEY, "dmalen": 3 * MTU}
    read = end.frame(0x0C, end.psn, reth)
    end.give(read, end.write(end.psn + 3, b"x", key=KEY, va=8_000))
    assert [packet.opcode for packet in end.take(1)] == [0x0D]
    for _ in range(50):
        end.give(read)
    assert [packet.opcode for packet in end.take()] == [0x0D, 0x0E, 0x0F, 0x11]
    # Its data has left and later answers wait: it goes before these.
    later = end.frame(0x0C, end.psn + 4, reth)
    end.give(later)
    rest = end.frame(0x0C, end.psn + 2, {"va": 2 * MTU, "rkey": KEY, "dmalen": MTU})
    end.give(rest, rest)
    answers = end.take()
    assert [a.opcode for a in answers] == [0x10, 0x0D, 0x0E, 0x0F]
    assert answers[0].psn == end.psn + 2 & PSN_MASK
    assert answers[0].payload == memory[2 * MTU : 3 * MTU]


def test_a_region_that_goes_away_under_a_write() -> None:
    end, memory = lone()
    frames = burst(end, 3)
    assert end.ask(frames[0]) == []
    end.hca.unregister(KEY)
    memory[:] = bytes(len(memory))
    (nak,) = end.ask(frames[1])
    assert (nak.syndrome, nak.psn) == (0x62, end.psn + 1 & PSN_MASK)
    assert memory == bytes(len(memory))
    assert end.state() == "ERR"
