"""Unreliable connections and datagrams, packet by packet."""

import pytest

from emulator.rocev2.connection.work import WorkError
from emulator.rocev2.datagrams import UdAddress
from emulator.rocev2.wire.codes import GRH_SIZE
from tests.harness.rocev2.ends import HERE, KEY, THERE, THERE6, done, ends, pair
from tests.harness.rocev2.lone import PSN_MASK, Lone
from uet.transport import ReceiveRequest, SendRequest, WriteRequest

MTU = 1024


@pytest.mark.conformance("R-034")
def test_uc_after_a_gap() -> None:
    end = Lone(service="uc", endless_receives=True)
    memory = memoryview(bytearray(8 * MTU))
    end.hca.register(memory, key=KEY)
    reth = {"va": 0, "rkey": KEY, "dmalen": 3 * MTU}
    imm = {"immediate": 1}
    first = end.frame(0x26, end.psn, reth, payload=bytes(MTU))
    last = end.frame(0x29, end.psn + 2, imm, payload=bytes(MTU))
    assert end.ask(first, last) == []  # the middle is missing
    assert end.done() == []
    only = {"va": 0, "rkey": KEY, "dmalen": 4}
    elsewhere = end.psn + 0x500000 & PSN_MASK
    assert end.ask(end.frame(0x2B, elsewhere, only, {"immediate": 2}, payload=b"here")) == []
    assert [(c.kind, c.header_data) for c in end.done()] == [("remote_write", 2)]
    assert bytes(memory[:4]) == b"here"
    # A message that begins anew while another one is open breaks that.
    assert end.ask(end.frame(0x26, elsewhere + 1, reth, payload=bytes(MTU))) == []
    frame = end.frame(0x2B, elsewhere + 2, only, {"immediate": 3}, payload=b"next")
    assert end.ask(frame) == []
    assert [c.header_data for c in end.done()] == [3]
    assert end.hca.counts["rx_broken_messages"] == 2
    assert end.state() == "RTS"


@pytest.mark.conformance("R-034")
def test_uc_keeps_the_receive_of_a_broken_send() -> None:
    end = Lone(service="uc")
    buffer = memoryview(bytearray(3 * MTU))
    end.hca.post_receive(ReceiveRequest(memory=buffer, context="only one"))
    first = end.frame(0x20, end.psn, payload=bytes(MTU))
    late = end.frame(0x22, end.psn + 2, payload=b"end")
    end.ask(first, late)
    assert end.done() == []
    end.ask(end.frame(0x24, end.psn + 9, payload=b"whole"))
    assert [(c.context, c.length) for c in end.done()] == [("only one", 5)]
    assert bytes(buffer[:5]) == b"whole"


@pytest.mark.parametrize("operation", [0x16, 0x17])
def test_uc_has_no_send_with_invalidate(operation: int) -> None:
    """Whose key would be the first octets of what is payload here."""
    end = Lone(service="uc")
    end.hca.register(memoryview(bytearray(8)), key=KEY)
    end.hca.post_receive(ReceiveRequest(memory=memoryview(bytearray(3 * MTU))))
    end.give(end.frame(0x20, end.psn, payload=bytes(MTU)))
    end.give(end.frame(0x20 | operation, end.psn + 1, payload=KEY.to_bytes(4, "big")))
    assert KEY in end.hca.memory
    assert end.done() == []
    assert end.hca.counts["rx_drop_out_of_order"] == 1


def test_header_data_over_uc_is_an_immediate() -> None:
    end = Lone(service="uc", endless_receives=True)
    end.hca.register(memoryview(bytearray(8)), key=KEY)
    reth = {"va": 0, "rkey": KEY, "dmalen": 1}
    for number in (0, 2, 3):
        only = end.frame(0x2B, end.psn + number, reth, {"immediate": number}, payload=b"x")
        end.give(only)
    assert [c.header_data for c in end.done()] == [0, 2, 3]

    def write(header_data: int) -> WriteRequest:
        payload = memoryview(b"x")
        return WriteRequest(peer=THERE, key=KEY, offset=0, payload=payload, delivery="uc",
                     header_data=header_data)  # fmt: skip

    with pytest.raises(WorkError, match="32 bits"):
        end.hca.post(write(1 << 32))
    end.hca.post(write(7))
    assert [packet.fields["immediate"] for packet in end.take()] == [7]


@pytest.mark.parametrize("ipv6", [False, True])
def test_datagrams(ipv6: bool) -> None:
    network = pair(keep=True, ipv6=ipv6, qkey=0x2222)
    here, there = ends(network)
    peer = THERE6 if ipv6 else THERE
    buffer = memoryview(bytearray(GRH_SIZE + MTU))
    there.post_receive(ReceiveRequest(memory=buffer, context="r"), datagram=True)
    payload = memoryview(bytes(n % 251 for n in range(MTU)))
    to = UdAddress(there.config.ud_qpn)
    here.post(SendRequest(peer=peer, delivery="ud", destination=to, payload=payload, header_data=7))
    network.settle()
    (got,) = done(network, 1, "receive")
    assert (got.context, got.length, got.offset, got.header_data) == ("r", MTU, GRH_SIZE, 7)
    assert got.initiator == here.config.ud_qpn
    assert buffer[GRH_SIZE:] == payload
    (frame,) = network.sent
    prefix = bytes(buffer[:GRH_SIZE])
    assert prefix == (frame[14:54] if ipv6 else bytes(20) + frame[14:34])
    assert [c.error for c in done(network, 0, "send")] == [None]


@pytest.mark.conformance("R-035")
def test_what_is_wrong_with_a_datagram() -> None:
    network = pair()
    here, there = ends(network)
    there.post_receive(ReceiveRequest(memory=memoryview(bytearray(2_000))), datagram=True)
    to = UdAddress(there.config.ud_qpn)
    with pytest.raises(WorkError, match="longer than the MTU of 1024"):
        here.post(
            SendRequest(
                peer=THERE, delivery="ud", destination=to, payload=memoryview(bytes(MTU + 1))
            )
        )
    wrong = UdAddress(there.config.ud_qpn, qkey=5)
    here.post(SendRequest(peer=THERE, delivery="ud", destination=wrong, payload=memoryview(b"x")))
    network.settle()
    assert there.counts["rx_drop_bad_qkey"] == 1
    assert done(network, 1, "receive") == []
    for _ in range(2):
        here.post(SendRequest(peer=THERE, delivery="ud", destination=to, payload=memoryview(b"x")))
    network.settle()
    assert there.counts["rx_drop_no_receive"] == 1
    assert there.transmit(network.now, 10) == []
    assert there.config.address == THERE != HERE
    with pytest.raises(WorkError, match="40 octets"):
        there.post_receive(ReceiveRequest(memory=memoryview(bytearray(8))), datagram=True)
