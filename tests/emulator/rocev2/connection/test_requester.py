"""The asking side, packet by packet."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.rocev2.connection.send_invalidate import SendInvalidate
from emulator.rocev2.connection.work import WorkError
from emulator.rocev2.datagrams import UdAddress
from emulator.rocev2.wire import codes as psn
from emulator.rocev2.wire.codes import (
    PATH_MTUS,
    RNR_MICROSECONDS,
    BthOperation,
    flow_label,
    source_port,
    timeout_ns,
)
from tests.harness.rocev2.ends import KEY, THERE, qpn
from tests.harness.rocev2.lone import PSN_MASK, Lone, Packet
from uet.transport import AtomicRequest, ReadRequest, SendRequest, WriteRequest

MTU = 1024


def write(length: int, context: object = None, **more: Any) -> WriteRequest:
    payload = memoryview(bytes(n % 251 for n in range(length)))
    return WriteRequest(peer=THERE, key=KEY, offset=64, payload=payload, context=context, **more)


def read(length: int, context: object = None) -> ReadRequest:
    return ReadRequest(
        peer=THERE, key=KEY, offset=0, memory=memoryview(bytearray(length)), context=context
    )


def psns(end: Lone, packets: list[Packet]) -> list[int]:
    """Relative to the first PSN."""
    return [packet.psn - end.first & PSN_MASK for packet in packets]


@pytest.mark.conformance("R-014")
def test_psn_arithmetic() -> None:
    assert psn.add(0xFFFFFF, 1) == 0
    assert psn.after(0x000001, 0xFFFFFE)
    assert not psn.after(0xFFFFFE, 0x000001)
    assert psn.distance(0x800000, 0) == -0x800000
    assert not psn.after(0x800000, 0)
    assert psn.distance(0x7FFFFF, 0) == 0x7FFFFF


@given(near=st.integers(0, 1 << 40), away=st.integers(-(1 << 23), (1 << 23) - 1))
def test_unwrapping(near: int, away: int) -> None:
    assert psn.unwrap((near + away) & PSN_MASK, near) == near + away


@pytest.mark.conformance("R-013")
def test_source_ports() -> None:
    for one, other, label, port in (
        (0x12, 0x34, 0x003A8, 0xC3A8),
        (0x1234, 0x5678, 0x60002, 0xC01A),
        (0xABCDEF, 0x123456, 0xAC3E3, 0xC3C8),
        (17, 17, 0x00121, 0xC121),
    ):
        assert flow_label(one, other) == flow_label(other, one) == label
        assert source_port(label) == port
    end = Lone(qps=2)
    for _ in range(4):
        end.hca.post(write(3 * MTU))
    ports: dict[int, set[int]] = {}
    for packet in end.take():
        ports.setdefault(packet.dqpn, set()).add(packet.source_port)
    expected = {qpn(1, n): {source_port(flow_label(qpn(0, n), qpn(1, n)))} for n in range(2)}
    assert ports == expected


SENDS = (0x04, 0x00, 0x01, 0x02)
SENDS_IMM = (0x05, 0x00, 0x01, 0x03)
WRITES = (0x0A, 0x06, 0x07, 0x08)
WRITES_IMM = (0x0B, 0x06, 0x07, 0x09)
SENDS_INV = (0x17, 0x00, 0x01, 0x16)


@pytest.mark.conformance("R-002", "R-003", "R-005", "R-015", "R-016", "R-032", "R-033")
@pytest.mark.parametrize(
    ("service", "kind"),
    [
        *product(("rc", "uc"), ("write", "write imm", "send", "send imm")),
        ("rc", "send inv"),
    ],
)
@pytest.mark.parametrize("mtu", PATH_MTUS)
def test_segmentation(mtu: int, service: str, kind: str) -> None:
    base = 0x20 if service == "uc" else 0
    for length in (0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 1):
        end = Lone(mtu=mtu, service=service, solicited=True)
        payload = memoryview(bytes(n % 251 for n in range(length)))
        imm = 0xDEADBEEF if kind.endswith("imm") else None
        if kind.startswith("write"):
            request: WriteRequest | SendRequest = write(length, header_data=imm, delivery=service)
            opcodes = WRITES_IMM if imm else WRITES
        elif kind == "send inv":
            request = SendInvalidate(peer=THERE, payload=payload, invalidate=9)
            opcodes = SENDS_INV
        else:
            request = SendRequest(peer=THERE, payload=payload, header_data=imm, delivery=service)
            opcodes = SENDS_IMM if imm else SENDS
        end.hca.post(request)
        packets = end.take()
        count = max(1, -(-length // mtu))
        only, first, middle, last = (base | opcode for opcode in opcodes)
        expected = [only] if count == 1 else [first, *[middle] * (count - 2), last]
        assert [p.opcode for p in packets] == expected
        assert psns(end, packets) == list(range(count))
        assert b"".join(p.payload for p in packets) == payload
        for place, packet in enumerate(packets):
            ends = place == count - 1
            assert (len(packet.payload) == mtu) or ends
            assert packet.bth["padcount"] == -len(packet.payload) % 4
            assert packet.bth["version"] == packet.bth["resv6"] == packet.bth["resv7"] == 0
            assert packet.ackreq == (1 if ends and service == "rc" else 0)
            assert packet.bth["solicited"] == (1 if ends and kind != "write" else 0)
            assert ("dmalen" in packet.fields) == (place == 0 and kind.startswith("write"))
            assert packet.fields.get("dmalen", length) == length
            assert packet.fields.get("immediate") == (imm if ends else None)
        end.hca.post(write(1, delivery=service))
        assert psns(end, end.take()) == [count]


@pytest.mark.conformance("R-032")
def test_long_messages_ask_for_acknowledgement_on_the_way() -> None:
    end = Lone(ack_interval=16)
    end.hca.post(write(100 * MTU))
    asked = [n for n, packet in enumerate(end.take()) if packet.ackreq]
    assert asked[-1] == 99
    assert max(b - a for a, b in zip([-1, *asked], asked, strict=False)) <= 17


def test_a_full_window_asks_too() -> None:
    end = Lone(window_packets=10, ack_interval=64)
    end.hca.post(write(100 * MTU))
    packets = end.take()
    assert len(packets) == 10
    assert packets[-1].ackreq
    end.give(end.ack(end.first + 9))
    assert len(end.take()) == 10


@pytest.mark.conformance("R-017", "R-018")
def test_reads() -> None:
    end = Lone(max_rd_atomic=2)
    lengths = (3 * MTU + 1, 0, MTU, 5)
    requests = [read(length, context=n) for n, length in enumerate(lengths)]
    for request in requests:
        end.hca.post(request)
    one, two = end.take()
    assert psns(end, [one, two]) == [0, 4]
    assert one.fields == {"va": 0, "rkey": KEY, "dmalen": 3 * MTU + 1}
    data = bytes(n % 253 for n in range(3 * MTU + 1))
    for number, opcode in enumerate((0x0D, 0x0E, 0x0E, 0x0F)):
        aeth = [] if opcode == 0x0E else [{"syndrome": 0x1F, "msn": 1}]
        assert end.take() == []
        part = data[number * MTU : (number + 1) * MTU]
        end.give(end.frame(opcode, end.first + number, *aeth, payload=part))
    assert requests[0].memory == data
    (three,) = end.take()
    assert psns(end, [three]) == [5]
    assert [c.context for c in end.done()] == [0]


def test_a_missing_response_is_asked_for_again() -> None:
    end = Lone()
    request = read(4 * MTU)
    end.hca.post(request)
    end.take()
    aeth = {"syndrome": 0x1F, "msn": 1}
    end.give(end.frame(0x0D, end.first, aeth, payload=bytes([1]) * MTU))
    end.give(end.frame(0x0E, end.first + 2, payload=bytes([3]) * MTU))
    end.give(end.frame(0x0F, end.first + 3, aeth, payload=bytes([4]) * MTU))
    (again,) = end.take()
    assert psns(end, [again]) == [1]
    assert again.fields == {"va": MTU, "rkey": KEY, "dmalen": 3 * MTU}
    assert end.hca.counts["implied_naks"] == 1
    for number, opcode in ((1, 0x0D), (2, 0x0E), (3, 0x0F)):
        more = [] if opcode == 0x0E else [aeth]
        part = bytes([number + 1]) * MTU
        end.give(end.frame(opcode, end.first + number, *more, payload=part))
    assert [c.error for c in end.done()] == [None]
    assert request.memory == b"".join(bytes([n]) * MTU for n in (1, 2, 3, 4))


def test_an_ack_of_what_is_behind_a_read_does_not_complete_it() -> None:
    end = Lone()
    end.hca.post(read(MTU, context="read"))
    end.hca.post(write(1, context="write"))
    end.take()
    end.give(end.ack(end.first + 1, msn=2))
    assert end.done() == []
    assert [p.opcode for p in end.take()] == [0x0C, 0x0A]


@pytest.mark.conformance("R-027")
def test_acks_are_cumulative() -> None:
    end = Lone()
    for context, length in (("a", 1), ("b", 3 * MTU), ("c", 5), ("d", 1)):
        end.hca.post(write(length, context))
    assert len(end.take()) == 6
    end.give(end.ack(end.first + 2))
    assert [c.context for c in end.done()] == ["a"]
    end.give(end.ack(end.first + 4))
    assert [(c.context, c.error) for c in end.done()] == [("b", None), ("c", None)]
    end.give(end.ack(end.first + 5))
    assert [c.context for c in end.done()] == ["d"]
    assert end.hca.next_deadline() in (None, *range(timeout_ns(5) + 1))


@pytest.mark.conformance("R-028")
@pytest.mark.parametrize("missing", range(6))
def test_go_back_n(missing: int) -> None:
    end = Lone()
    end.hca.post(write(4 * MTU, "long"))
    end.hca.post(write(5, "short"))
    end.hca.post(write(9, "last"))
    sent = end.take()
    again = end.ask(end.ack(end.first + missing, 0x60))
    assert psns(end, again) == list(range(missing, 6))
    for one, other in zip(again, sent[missing:], strict=True):
        assert (one.psn, one.opcode, one.payload, one.fields) == (
            other.psn, other.opcode, other.payload, other.fields,
        )  # fmt: skip
    assert [c.context for c in end.done()] == {4: ["long"], 5: ["long", "short"]}.get(missing, [])
    assert end.hca.counts["tx_retransmitted_packets"] == 6 - missing
    octets = sum(len(packet.frame) for packet in again)
    assert end.hca.counts["tx_retransmitted_octets"] == octets
    end.give(end.ack(end.first + 5))
    assert len(end.done()) == 3 - {4: 1, 5: 2}.get(missing, 0)


@pytest.mark.conformance("R-029")
@pytest.mark.parametrize("retries", [0, 1, 3])
@pytest.mark.parametrize("exponent", [1, 8, 14])
def test_timeouts(exponent: int, retries: int) -> None:
    end = Lone(timeout=exponent, retry_cnt=retries)
    end.hca.post(write(MTU + 1, "first"))
    end.hca.post(write(1, "second"))
    assert psns(end, end.take()) == [0, 1, 2]
    least = 4_096 * 2**exponent
    for _ in range(retries):
        started = end.now
        due = end.hca.next_deadline()
        assert due is not None
        assert least <= due - started <= 4 * least
        end.now = due - 1
        assert end.take() == []
        end.now = due
        assert psns(end, end.take()) == [0, 1, 2]
    end.now = end.hca.next_deadline() or 0
    assert end.take() == []
    assert [(c.context, c.error) for c in end.done()] == [
        ("first", "RETRY_EXC_ERR"),
        ("second", "WR_FLUSH_ERR"),
    ]
    assert end.state() == "ERR"
    end.hca.post(write(1, "third"))
    assert [(c.context, c.error) for c in end.done()] == [("third", "WR_FLUSH_ERR")]
    assert end.hca.counts["rto_expirations"] == retries + 1


@pytest.mark.conformance("R-029")
def test_progress_gives_all_retries_back() -> None:
    end = Lone(timeout=8, retry_cnt=1)
    end.hca.post(write(10 * MTU))
    end.take()
    for acknowledged in range(9):
        end.now += timeout_ns(8)
        assert psns(end, end.take())[0] == acknowledged
        end.give(end.ack(end.first + acknowledged))
    end.now += timeout_ns(8)
    assert psns(end, end.take()) == [9]
    assert end.state() == "RTS"


def test_exponent_zero_waits_for_ever() -> None:
    end = Lone(timeout=0)
    end.hca.post(write(1))
    end.take()
    assert end.hca.next_deadline() is None


@pytest.mark.conformance("R-030")
@pytest.mark.parametrize("code", [0, 1, 12, 31])
def test_rnr_delay(code: int) -> None:
    end = Lone(rnr_retry=7)
    end.hca.post(SendRequest(peer=THERE, payload=memoryview(bytes(2 * MTU))))
    end.take()
    for _ in range(20):
        assert end.ask(end.ack(end.first, 0x20 | code)) == []
        end.now += RNR_MICROSECONDS[code] * 1_000 - 1
        assert end.take() == []
        end.now += 1
        assert psns(end, end.take()) == [0, 1]
    assert end.state() == "RTS"


@pytest.mark.conformance("R-030")
@pytest.mark.parametrize("retries", [0, 1, 6])
def test_rnr_gives_up(retries: int) -> None:
    end = Lone(rnr_retry=retries)
    end.hca.post(SendRequest(peer=THERE, payload=memoryview(b"x")))
    for _ in range(retries):
        end.take()
        end.give(end.ack(end.first, 0x21))
        assert end.done() == []
        end.now = end.hca.next_deadline() or 0
        end.take()  # due
        end.now += RNR_MICROSECONDS[1] * 1_000
    assert end.take() or retries
    end.give(end.ack(end.first, 0x21))
    assert [c.error for c in end.done()] == ["RNR_RETRY_EXC_ERR"]
    assert end.state() == "ERR"


@pytest.mark.conformance("R-031")
@pytest.mark.parametrize("away", [-2, -100, 3, 4, 1 << 22, *range((1 << 23) - 2, (1 << 23) + 3)])
@pytest.mark.parametrize("syndrome", [0x1F, 0x60, 0x2E, 0x61])
def test_acks_of_what_is_not_outstanding(away: int, syndrome: int) -> None:
    end = Lone()
    end.hca.post(write(3 * MTU))
    end.take()
    assert end.ask(end.ack(end.first + away, syndrome)) == []
    assert end.done() == []
    assert end.hca.counts["rx_drop_ack_outside_window"] == 1
    assert end.state() == "RTS"


@pytest.mark.conformance("R-025")
@pytest.mark.parametrize(
    ("syndrome", "error"),
    [(0x61, "REM_INV_REQ_ERR"), (0x62, "REM_ACCESS_ERR"), (0x63, "REM_OP_ERR")],
)
def test_fatal_naks(syndrome: int, error: str) -> None:
    end = Lone()
    for context in "abc":
        end.hca.post(write(MTU, context))
    end.take()
    end.give(end.ack(end.first + 1, syndrome))
    assert [(c.context, c.error) for c in end.done()] == [
        ("a", None), ("b", error), ("c", "WR_FLUSH_ERR"),
    ]  # fmt: skip
    assert end.state() == "ERR"
    assert end.ask(end.ack(end.first + 2)) == []


def test_a_fatal_nak_is_for_the_request_that_it_names() -> None:
    """Even if the data of a READ before that got lost."""
    end = Lone()
    end.hca.post(read(2 * MTU, context="read"))
    end.hca.post(write(1, context="bad"))
    end.hca.post(write(1, context="behind"))
    end.take()
    end.give(end.ack(end.first + 2, 0x62))
    assert [(c.context, c.error) for c in end.done()] == [
        ("read", "WR_FLUSH_ERR"), ("bad", "REM_ACCESS_ERR"), ("behind", "WR_FLUSH_ERR"),
    ]  # fmt: skip


def test_selective_repeat_sends_single_packets() -> None:
    end = Lone(recovery="selective_repeat")
    end.hca.post(write(10 * MTU))
    sent = end.take()
    again = end.ask(end.ack(end.first + 3, 0x60), end.ack(end.first + 7, 0x60))
    assert psns(end, again) == [3, 7]
    assert [p.payload for p in again] == [sent[3].payload, sent[7].payload]
    assert [p.opcode for p in again] == [0x07, 0x07]
    end.now = end.hca.next_deadline() or 0
    assert psns(end, end.take()) == [0, 3, 7, 9]
    end.give(end.ack(end.first + 9))
    assert [c.error for c in end.done()] == [None]


BAD: dict[str, tuple[object, str]] = {
    "tag": (SendRequest(peer=THERE, payload=memoryview(b""), tag=1), "leave out tag"),
    "header data": (write(1, header_data=1 << 32), "32 bits"),
    "operation": (
        AtomicRequest(peer=THERE, offset=0, operation=99, datatype=0, operand=bytes(8)),
        "COMPARE_SWAP",
    ),
    "operand": (
        AtomicRequest(
            peer=THERE, offset=0, operation=BthOperation.FETCH_ADD, datatype=0, operand=bytes(4)
        ),
        "8 octets",
    ),
    "peer": (SendRequest(peer="10.0.1.9", payload=memoryview(b"")), "neighbours"),
    "delivery": (write(1, delivery="uc"), "it has rc"),
    "key": (WriteRequest(peer=THERE, key=1 << 32, offset=0, payload=memoryview(b"x")), "32 bits"),
    "view": (
        SendRequest(peer=THERE, payload=memoryview(bytes(8)).cast("I")),
        "flat view of octets",
    ),
    "read-only": (
        ReadRequest(peer=THERE, key=1, offset=0, memory=memoryview(b"x")),
        "can be written",
    ),
    "result": (
        AtomicRequest(
            peer=THERE,
            offset=0,
            operation=BthOperation.FETCH_ADD,
            datatype=0,
            operand=bytes(8),
            result=memoryview(bytearray(4)),
        ),
        "8 octets that can be written",
    ),
    "read's key": (replace(read(1), key=1 << 32), "32 bits"),
    "read's address": (replace(read(2), offset=(1 << 64) - 1), "leaves the 64-bit address space"),
    "atomic's address": (
        AtomicRequest(
            peer=THERE,
            offset=1 << 64,
            operation=BthOperation.FETCH_ADD,
            datatype=0,
            operand=bytes(8),
        ),
        "64 bits",
    ),
    "invalidated key": (
        SendInvalidate(peer=THERE, payload=memoryview(b""), invalidate=1 << 32),
        "32 bits",
    ),
    "datagram's QP": (
        SendRequest(
            peer=THERE,
            payload=memoryview(b""),
            delivery="ud",
            destination=UdAddress(1 << 24),
        ),
        "QP number 0x1000000",
    ),
    "datagram's header data": (
        SendRequest(
            peer=THERE,
            payload=memoryview(b""),
            delivery="ud",
            destination=UdAddress(5),
            header_data=1 << 32,
        ),
        "32 bits",
    ),
    "datagram": (SendRequest(peer=THERE, payload=memoryview(b""), delivery="ud"), "UdAddress"),
}


@pytest.mark.parametrize("what", BAD)
def test_requests_that_cannot_be(what: str) -> None:
    request, sentence = BAD[what]
    end = Lone()
    with pytest.raises(WorkError, match=sentence):
        end.hca.post(request)  # type: ignore[arg-type]
    assert end.take() == []


def test_the_rest_of_a_read_that_is_lost_altogether_is_asked_for_by_the_timer() -> None:
    end = Lone(timeout=5)
    end.hca.post(read(3 * MTU))
    end.take()
    aeth = {"syndrome": 0x1F, "msn": 1}
    end.give(end.frame(0x0D, end.first, aeth, payload=bytes(MTU)))
    assert end.take() == []
    due = end.hca.next_deadline()
    assert due is not None
    end.now = due
    (again,) = end.take()
    assert (psns(end, [again]), again.fields["dmalen"]) == ([1], 2 * MTU)


def test_selective_repeat_asks_for_a_read_once_though_all_its_psns_are_missed() -> None:
    end = Lone(recovery="selective_repeat")
    end.hca.post(read(40 * MTU))
    end.hca.post(write(1))
    end.take()
    again = []
    for number in range(40):
        again += end.ask(end.ack(end.first + number, 0x60))
    assert [packet.opcode for packet in again] == [0x0C]
