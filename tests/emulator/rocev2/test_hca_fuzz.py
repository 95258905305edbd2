"""Hostile packets: whatever comes, it is counted and never raised, and the endpoint goes on."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.rocev2.wire import headers
from emulator.rocev2.wire.codes import EXTENSIONS
from tests.harness.examples import examples
from tests.harness.rocev2.ends import FIRST_PSN, KEY, THERE, qpn
from tests.harness.rocev2.lone import Lone
from tests.harness.uet.network import flip
from uet.transport import AtomicRequest, ReadRequest, ReceiveRequest, WriteRequest

MTU = 1024
FLAVOURS = [
    {"recovery": "go_back_n"},
    {"recovery": "selective_repeat", "reorder_window": 32},
    {"service": "uc"},
    {"endless_receives": True},
]


def busy(**parameters: Any) -> Lone:
    """An endpoint with something of every kind under way."""
    end = Lone(max_dest_rd_atomic=4, **parameters)
    end.hca.register(memoryview(bytearray(8 * MTU)), key=KEY)
    for _ in range(4):
        end.hca.post_receive(ReceiveRequest(memory=memoryview(bytearray(2 * MTU))))
        end.hca.post_receive(ReceiveRequest(memory=memoryview(bytearray(2 * MTU))), datagram=True)
    if parameters.get("service") != "uc":
        end.hca.post(
            ReadRequest(peer=THERE, key=1, offset=0, memory=memoryview(bytearray(3 * MTU)))
        )
        end.hca.post(
            AtomicRequest(peer=THERE, offset=0, operation=0x14, datatype=0, operand=bytes(8),
                   result=memoryview(bytearray(8)))
        )  # fmt: skip
        end.hca.post(WriteRequest(peer=THERE, key=1, offset=0, payload=memoryview(bytes(3 * MTU))))
        end.hca.transmit(0, 100)
    return end


@st.composite
def packets(draw: st.DrawFn) -> tuple[int, int, list[dict[str, int]], bytes, int, bool]:
    """An opcode, a PSN near what counts, headers with plausible and other values, payload, QP."""
    opcode = draw(st.one_of(st.sampled_from(sorted(EXTENSIONS)), st.integers(0, 255)))
    near = draw(st.sampled_from([FIRST_PSN, FIRST_PSN + 1]))
    number = near + draw(st.integers(-6, 12))
    likely = {
        "rkey": st.sampled_from([KEY, KEY, 1]),
        "va": st.integers(0, 9 * MTU),
        "dmalen": st.sampled_from([0, 1, MTU, 2 * MTU, 3 * MTU, 1 << 31]),
        "syndrome": st.sampled_from([0x1F, 0x60, 0x21, 0x61, 0x62]),
    }
    extensions = [
        {
            field.name: draw(
                st.one_of(likely[field.name], st.integers(0, (1 << field.width) - 1))
                if field.name in likely
                else st.integers(0, (1 << field.width) - 1)
            )
            for field in headers.OF[name].fields
        }
        for name in EXTENSIONS.get(opcode, ())
    ]
    size = draw(st.one_of(st.sampled_from([0, 1, MTU - 1, MTU, MTU + 1]), st.integers(0, 64)))
    to = draw(st.sampled_from([qpn(0), qpn(0), qpn(0), 2, 5]))
    return opcode, number, extensions, bytes(size), to, draw(st.booleans())


@pytest.mark.parametrize("flavour", FLAVOURS, ids=["gbn", "sr", "uc", "two immediates"])
@given(data=st.data())
@examples(150)
def test_packets_with_a_valid_icrc(flavour: dict[str, object], data: st.DataObject) -> None:
    end = busy(**flavour)
    for _ in range(data.draw(st.integers(1, 12))):
        opcode, number, extensions, payload, to, ask = data.draw(packets())
        before = sum(end.hca.counters().values())
        answers = end.ask(end.frame(opcode, number, *extensions, payload=payload, ask=ask, dqpn=to))
        assert sum(end.hca.counters().values()) > before, "every packet is counted"
        assert len(answers) < 100
        end.done()
    for _ in range(60):  # whatever it has come to, time ends it
        deadline = end.hca.next_deadline()
        if deadline is None:
            break
        end.now = max(end.now, deadline)
        end.take()
    assert end.hca.next_deadline() is None


@given(st.binary(max_size=200))
def test_noise(octets: bytes) -> None:
    end = Lone()
    before = end.hca.counters()
    end.give(octets)
    after = end.hca.counters()
    dropped = {name: after[name] - before.get(name, 0) for name in after}
    assert sum(dropped.values()) == 1
    assert next(name for name, n in dropped.items() if n).startswith("rx_drop_")


@pytest.mark.parametrize("seed", range(4))
def test_cut_and_flipped_frames(seed: int) -> None:
    rng = random.Random(seed)
    end = busy()
    good = [
        end.write(end.psn, bytes(50), key=KEY),
        end.ack(end.first),
        end.frame(0x81, 0, {}),
        end.frame(0x0C, end.psn, {"va": 0, "rkey": KEY, "dmalen": 9}),
    ]
    for _ in range(2_000):
        frame = rng.choice(good)
        for _ in range(rng.randrange(1, 4)):
            frame = flip(frame, rng.randrange(8 * len(frame)))
        if rng.random() < 0.5:
            frame = frame[: rng.randrange(len(frame) + 1)]
        before = sum(end.hca.counters().values())
        end.give(frame)
        assert sum(end.hca.counters().values()) > before
    end.take()


def test_flows_that_a_hostile_sender_makes_up_are_not_kept() -> None:
    end = Lone()
    end.hca.register(memoryview(bytearray(8)), key=KEY)
    for dqpn in range(1 << 16, (1 << 16) + 6_000):
        end.give(end.frame(0x04, 0, dqpn=dqpn))
    assert end.hca.counts["rx_drop_unknown_qp"] == 6_000
    assert len(end.hca._arrivals._opener._flows) <= 4_096  # noqa: SLF001  memory alone
    assert end.hca.counters()["qps_open"] == 0
    assert len(end.ask(end.write(end.psn, b"still", key=KEY))) == 1
