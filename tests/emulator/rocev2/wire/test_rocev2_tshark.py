"""Test what Wireshark, which nobody here wrote, makes of the frames."""

import shutil
import subprocess
from pathlib import Path

import pytest

from emulator.rocev2.connection.send_invalidate import SendInvalidate
from emulator.rocev2.datagrams import UdAddress
from emulator.rocev2.wire.codes import CNP_OPCODE, BthOperation, Extension
from tests.harness.rocev2.ends import HERE, HERE6, KEY, THERE, THERE6, ends, pair
from tests.harness.rocev2.rocev2_golden import GOLDEN
from tests.harness.uet.network import Impairment
from tests.harness.wire.tshark import write as write_pcap
from uet.transport import AtomicRequest, ReadRequest, ReceiveRequest, SendRequest, WriteRequest

TSHARK = shutil.which("tshark")
needs_tshark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")

#: Wireshark's names of fields of the layers.
BTH = {
    "opcode": "infiniband.bth.opcode",
    "solicited": "infiniband.bth.se",
    "migreq": "infiniband.bth.m",
    "padcount": "infiniband.bth.padcnt",
    "version": "infiniband.bth.tver",
    "pkey": "infiniband.bth.p_key",
    "dqpn": "infiniband.bth.destqp",
    "ackreq": "infiniband.bth.a",
    "psn": "infiniband.bth.psn",
}
X = Extension
FIELDS = {
    (X.RETH, "va"): "infiniband.reth.va",
    (X.RETH, "rkey"): "infiniband.reth.r_key",
    (X.RETH, "dmalen"): "infiniband.reth.dmalen",
    (X.AETH, "syndrome"): "infiniband.aeth.syndrome",
    (X.AETH, "msn"): "infiniband.aeth.msn",
    (X.IMM_DT, "immediate"): "infiniband.immdt",
    (X.IETH, "rkey"): "infiniband.ieth",
    (X.DETH, "qkey"): "infiniband.deth.q_key",
    (X.DETH, "srcqp"): "infiniband.deth.srcqp",
    (X.ATOMIC_ETH, "swap_or_add"): "infiniband.atomiceth.swapdt",
    (X.ATOMIC_ETH, "compare"): "infiniband.atomiceth.cmpdt",
    (X.ATOMIC_ACK_ETH, "origremdt"): "infiniband.atomicacketh.origremdt",
}


def tshark(capture: Path, *arguments: str) -> str:
    # NICs send no UDP checksum over IPv6 either: the ICRC stands for it (RFC 6935 allows that).
    settings = ("-o", "ip.check_checksum:TRUE", "-o", "udp.ignore_ipv6_zero_checksum:TRUE")
    done = subprocess.run(
        [str(TSHARK), "-n", *settings, "-r", str(capture), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "WIRESHARK_CONFIG_DIR": str(capture.parent), "HOME": "/"},
    )
    assert not [line for line in done.stderr.splitlines() if not line.startswith("Running as")]
    return done.stdout


def complaints(capture: Path) -> list[str]:
    """Expert items of any weight, malformed packets, and what the dissector does not know."""
    layout = ("-T", "fields", "-e", "frame.number", "-e", "_ws.expert.message")
    strange = tshark(capture, "-Y", "_ws.expert or _ws.malformed or !infiniband", *layout)
    return strange.splitlines()


def number(text: str) -> int:
    if text in ("True", "False"):
        return int(text == "True")
    text = text.replace(":", "")
    return int(text, 0) if text.isdecimal() or "x" in text else int(text, 16)


@needs_tshark
@pytest.mark.conformance("R-006", "R-007")
def test_the_golden_frames(tmp_path: Path) -> None:
    capture = write_pcap(tmp_path / "golden.pcap", [golden.frame for golden in GOLDEN])
    assert complaints(capture) == []
    names = [*BTH.values(), *FIELDS.values(), "infiniband.invariant.crc"]
    chosen = [option for name in names for option in ("-e", name)]
    rows = tshark(capture, "-T", "fields", "-E", "occurrence=f", *chosen).splitlines()
    for golden, row in zip(GOLDEN, rows, strict=True):
        shown = dict(zip(names, row.split("\t"), strict=True))
        values = {"migreq": 1, "pkey": 0xFFFF, **golden.bth}
        for field, name in BTH.items():
            assert number(shown[name]) == values.get(field, 0), (golden.name, name)
        if golden.bth["opcode"] in (CNP_OPCODE, 0x64):
            continue  # an opcode that Wireshark does not know; management, which it goes on with
        crc = number(shown["infiniband.invariant.crc"])
        assert crc == int.from_bytes(golden.frame[-4:], "big"), golden.name
        for extension, fields in golden.extensions:
            for field, value in fields.items():
                known = FIELDS.get((extension, field))
                if known is not None and shown[known]:
                    assert number(shown[known]) == value, (golden.name, known)
                elif known is not None:
                    assert extension is X.ATOMIC_ETH, (golden.name, known)


@needs_tshark
@pytest.mark.conformance("R-001", "R-004", "R-005")
@pytest.mark.parametrize("ipv6", [False, True])
@pytest.mark.parametrize("recovery", ["go_back_n", "selective_repeat"])
def test_a_conversation_with_loss(tmp_path: Path, recovery: str, ipv6: bool) -> None:
    """Every opcode of RC, NAKs of two kinds and datagrams, as two endpoints made them."""
    network = pair(
        Impairment(loss=0.15), seed=3, keep=True, ipv6=ipv6, qps=2, recovery=recovery,
    )  # fmt: skip
    here, there = ends(network)
    peer = THERE6 if ipv6 else THERE
    assert there.config.address == peer
    assert here.config.address == (HERE6 if ipv6 else HERE)
    memory = memoryview(bytearray(1 << 16))
    there.register(memory, key=KEY)
    there.register(memoryview(bytearray(8)), key=KEY + 1)
    data = memoryview(bytes([0xA5]) * 5_001)
    for header_data in (None, 1 << 31 | 77):
        for part in (data, data[:3]):
            here.post(
                WriteRequest(peer=peer, key=KEY, offset=8, payload=part, header_data=header_data)
            )
    for length in (5_000, 101):  # in a few octets of a SEND, Wireshark looks for RPC and complains
        here.post(ReadRequest(peer=peer, key=KEY, offset=0, memory=memoryview(bytearray(length))))
        here.post(SendRequest(peer=peer, payload=data[:length]))
        here.post(SendRequest(peer=peer, payload=data[:length], header_data=5))
    here.post(SendInvalidate(peer=peer, payload=data[:2_000], invalidate=KEY + 1))
    for operation in (BthOperation.COMPARE_SWAP, BthOperation.FETCH_ADD):
        here.post(
            AtomicRequest(peer=peer, key=KEY, offset=0, operation=operation, datatype=0,
                   operand=bytes(8), compare=bytes(8), result=memoryview(bytearray(8)))
        )  # fmt: skip
    here.post(
        SendRequest(
            peer=peer, delivery="ud", destination=UdAddress(there.config.ud_qpn), payload=data[:99]
        )
    )
    network.run(lambda: network.now > 100_000, horizon_ns=200_000)  # RNR NAKs so far
    for _ in range(12):
        there.post_receive(ReceiveRequest(memory=memoryview(bytearray(6_000))))
    network.settle()
    capture = write_pcap(tmp_path / "conversation.pcap", network.sent)
    assert complaints(capture) == []
    opcodes = set(map(int, tshark(capture, "-T", "fields", "-e", "infiniband.bth.opcode").split()))
    assert opcodes >= {*range(0x0E), *range(0x0E, 0x15), 0x16, 0x64}, sorted(opcodes)
    syndromes = set(tshark(capture, "-T", "fields", "-e", "infiniband.aeth.syndrome").split())
    assert {number(text) for text in syndromes} >= {0x1F, 0x21, 0x60}
    assert {c.error for c in network.completions[here.config.address]} == {None}
