"""``uetemu hca`` in namespaces: both roles against each other, on good and bad wires."""

import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import emulator.lab.standalone.rocev2_endpoint
from emulator.rocev2.connection.responder import Responder
from tests.harness.lab.endpoint_process import Endpoint
from tests.harness.lab.fep_wire import ADDRESSES, Wire, assert_all_ok, filters

pytestmark = pytest.mark.root

#: What a process of its own would spend most of its time on.
_PRELOADED = emulator.lab.standalone.rocev2_endpoint
KEY, ADDRESS = 0x4321, 0x7000_0000
OFFERS = (
    "--region", f"{KEY}:64k,address={ADDRESS},fill=uint64:1000",
    "--receive", "8192x3,expect=reference",
)  # fmt: skip
OPERATIONS = (
    "write:20000,offset=8k",
    "read:20000,offset=8k,expect=reference",
    "send:3000,index=0,header_data=7",
    "send:8192,index=1",
    "fetch:sum,operand=5,count=2,expect=1000/1005",
    "cswap,operand=7,compare=1010,expect=1010",
    f"read:100,key={KEY},offset={ADDRESS + 8192},expect=reference",
    "write:100,offset=48k,header_data=0xffffffff",
)


def is_rocev2(frame: bytes) -> bool:
    at = 34 if frame[12:14] == b"\x08\x00" else 54
    return frame[12:14] in (b"\x08\x00", b"\x86\xdd") and frame[at + 2 : at + 4] == b"\x12\xb7"


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with Wire(is_rocev2).up() as wire:
        for namespace in (wire.initiator, wire.target):
            # the wire carries frames as they are, and cards go over TCP: with its checksum
            offload_off = ("ethtool", "-K", "e0", "tx", "off")
            subprocess.run(
                ["ip", "netns", "exec", namespace, *offload_off], check=True, capture_output=True
            )
        yield wire


@pytest.fixture(autouse=True)
def _clean(wire: Wire) -> Iterator[None]:
    wire.policy = None
    yield
    wire.policy = None
    assert filters(wire.initiator) == filters(wire.target) == ""


def serve(wire: Wire, *words: str, fresh: bool = False) -> Endpoint:
    return Endpoint("hca", "target", "-n", wire.target, "-i", "e0", *words, fresh=fresh)


def ask(wire: Wire, *words: str, fresh: bool = False) -> Endpoint:
    return Endpoint("hca", "initiator", "-n", wire.initiator, "-i", "e0", *words, fresh=fresh)


@pytest.mark.parametrize("version", [4, 6])
def test_every_operation(wire: Wire, tmp_path: Path, version: int) -> None:
    to = ADDRESSES[version][1] if version == 4 else f"[{ADDRESSES[version][1]}]"
    fresh = version == 4  # once as a user starts it
    there = serve(wire, f"-{version}", "--listen", *OFFERS, "--count", "4", fresh=fresh)
    here = ask(wire, f"-{version}", "--connect", to, *OPERATIONS, fresh=fresh)
    here.end()
    there.end()
    assert_all_ok(here, there)
    assert len(here.completions()) == len(OPERATIONS) + 1  # one operation has two messages
    (announced,) = there.completions("remote_write")
    assert (announced["length"], announced["offset"]) == (100, 48 << 10)
    assert announced["header_data"] == "0xffffffff"
    own, peers = (event for event in here.events if event["event"] == "card")
    theirs, ours = (event for event in there.events if event["event"] == "card")
    for one, other in ((own, ours), (peers, theirs)):
        assert {**one, "time": 0, "whose": ""} == {**other, "time": 0, "whose": ""}
    assert here.events[-1]["qp"]["state"] == there.events[-1]["qp"]["state"] == "RTS"


def test_every_operation_while_frames_are_lost(wire: Wire) -> None:
    there = serve(wire, "-4", "--listen", *OFFERS, "--count", "4")
    there.wait_for("card")
    draw = random.Random(7)  # every seventh could be the same packet after each going back
    wire.policy = lambda frame, number, to_target: () if draw.random() < 0.15 else (frame,)
    quick = ("--set", "timeout=12")
    here = ask(wire, "-4", "--connect", ADDRESSES[4][1], *quick, "--in-flight", "0", *OPERATIONS)
    here.end()
    there.end()
    assert_all_ok(here, there)
    assert here.counters["tx_retransmitted_packets"] > 0
    assert there.counters["tx_naks"] > 0


def test_a_connection_by_hand(wire: Wire) -> None:
    both = ("--psn", "0xfffffe")
    there = serve(
        wire, "--qpn", "0x11", *both, "--peer", ADDRESSES[4][0], "--peer-qpn", "0x12",
        "--peer-psn", "0xfffffe", *OFFERS, "--count", "4",
    )  # fmt: skip
    there.wait_for("start")
    here = ask(
        wire, "--qpn", "0x12", *both, "--peer", ADDRESSES[4][1], "--peer-qpn", "0x11",
        "--peer-psn", "0xfffffe", "--peer-rkey", str(KEY), "--peer-vaddr", str(ADDRESS),
        *OPERATIONS,
    )  # fmt: skip
    here.end()
    there.end()
    assert_all_ok(here, there)


def test_an_error_that_is_expected_ends_the_connection(wire: Wire) -> None:
    there = serve(wire, "-4", "--listen", *OFFERS)
    words = ("write:300,key=0x99,error=REM_ACCESS_ERR", "send:100,error=WR_FLUSH_ERR")
    here = ask(wire, "-4", "--connect", ADDRESSES[4][1], *words)
    here.end()
    assert here.process.returncode == 0, here.events
    assert here.events[-1]["qp"]["state"] == "ERR"
    there.end(signal.SIGTERM)
    assert [event["what"] for event in there.events if event["event"] == "refused"] == ["qp_errors"]


@pytest.mark.parametrize("place", ["on_request", "transmit_answers"])
def test_an_error_of_its_own_ends_the_queue_pair(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It is counted and shown once, the report is whole, and the exit status tells."""

    def broken(self: Responder, *packet: object) -> None:
        raise IndexError("as a mistake of ours would")

    monkeypatch.setattr(Responder, place, broken)
    there = serve(wire, "--listen", *OFFERS)
    here = ask(wire, "--connect", ADDRESSES[4][1], "write:100")
    assert here.end() == 1
    assert here.completions()[0]["error"] == "RETRY_EXC_ERR"
    assert there.end(signal.SIGTERM) == 1
    assert there.counters["internal_error"] == 1
    assert there.events[-1]["qp"]["state"] == "ERR"
    assert there.error.count("IndexError: as a mistake of ours would") == 1
    assert there.error.count("uetemu: ") == 1


def test_a_signal_ends_the_wait_for_a_peer(wire: Wire) -> None:
    there = serve(wire, "-4", "--listen")
    there.wait_for("card")
    assert (there.end(signal.SIGTERM), there.error.strip()) == (130, "uetemu: interrupted")


def test_nobody_listens(wire: Wire) -> None:
    here = ask(wire, "-4", "--connect", ADDRESSES[4][1], "--timeout", "300ms", "send:100")
    assert here.end() == 1
    assert "nobody exchanged cards" in here.error
