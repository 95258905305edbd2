"""Hostile and random requests at a target: nothing raises, nothing is written out of place."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.harness.examples import examples
from tests.harness.uet.deliveries import (
    ELSEWHERE,
    KEY,
    SAFE_KEY,
    SECOND,
    THERE,
    FakePdc,
    Packet,
    TargetBench,
    medium,
    parts,
    read,
    small,
    std,
)
from uet.compatibility import REFERENCE_PROVIDER, STANDARD
from uet.pds.semantics import ACCEPTED, LATER, NO_ROOM, Response
from uet.ses.memory.operands import pack_operands
from uet.ses.memory.registered_memory import RegisteredRegion
from uet.transport import ReceiveRequest
from uet.wire import headers
from uet.wire.codes import AtomicOpcode, Datatype, NextHeader, Opcode, ReturnCode

GUARD = 256
EXTENSION, OPERAND = pack_operands(AtomicOpcode.SUM, Datatype.UINT64, bytes(8))
SWAP, _ = pack_operands(AtomicOpcode.CSWAP, Datatype.UINT64, bytes(8), bytes(8))
RENDEZVOUS = headers.SES_RENDEZVOUS.encode(eager_length=40, read_memory_key=3)
VALID: list[Packet] = [
    std(Opcode.WRITE, b"w" * 40, match_bits=KEY),
    std(Opcode.WRITE, b"w" * 40, match_bits=KEY, total=80, eom=0, message_id=2),
    std(Opcode.WRITE, b"w" * 40, match_bits=SAFE_KEY, at=40, total=80, message_id=2),
    std(Opcode.READ, total=12, match_bits=KEY),
    std(Opcode.READ, at=1024, total=2000, payload_length=976, match_bits=KEY),
    std(Opcode.ATOMIC, OPERAND, extension=EXTENSION, match_bits=KEY),
    std(Opcode.FETCHING_ATOMIC, extension=SWAP, total=32, match_bits=KEY),
    std(Opcode.SEND, b"s" * 40),
    std(Opcode.SEND, b"s" * 40, at=40, total=120, message_id=3),
    std(Opcode.TAGGED_SEND, b"t" * 40, match_bits=9),
    std(Opcode.RENDEZVOUS_SEND, b"r" * 40, total=90, extension=RENDEZVOUS),
    std(Opcode.RENDEZVOUS_TSEND, b"r" * 20, at=20, total=90, extension=RENDEZVOUS, message_id=4),
    std(Opcode.DEFERRABLE_SEND, b"d" * 40, total=90, initiator_restart_token=3, message_id=5),
    std(Opcode.DEFERRABLE_TSEND, b"d" * 40, at=40, total=90, match_bits=9, message_id=6),
    std(Opcode.DEFERRABLE_RTR, rtr_initiator_restart_token=1),
    std(Opcode.TSEND_FETCH_ATOMIC, OPERAND, extension=EXTENSION, match_bits=9),
    std(Opcode.MSG_ERROR, at=40, total=120, message_id=3),
    std(Opcode.NO_OP),
    std(0x10, b"w" * 40, extension=bytes(4), match_bits=KEY),
    std(0x11, OPERAND, extension=bytes(4) + EXTENSION, match_bits=KEY),
    medium(Opcode.WRITE, b"m" * 40, match_bits=KEY),
    medium(Opcode.SEND, b"m" * 40, hd=1, header_data=4),
    medium(Opcode.RENDEZVOUS_SEND, b"r" * 40, request_length=90, extension=RENDEZVOUS),
    small(Opcode.WRITE, b"k" * 40),
    small(Opcode.READ, request_length=40),
]


class Guarded:
    """A bench whose region and receives lie between guards that nothing may touch."""

    def __init__(self, seed: dict[str, Any]) -> None:
        self.bench = TargetBench(**seed)
        self.arena = bytearray(b"\xa5" * (8 * GUARD))
        view = memoryview(self.arena)
        self.inside = [(GUARD, 2 * GUARD), (3 * GUARD, 4 * GUARD), (5 * GUARD, 6 * GUARD)]
        table = self.bench.table
        for key in (KEY, SAFE_KEY):
            table.unregister(key)
            table.register(RegisteredRegion(memory=view[GUARD : 2 * GUARD], key=key, writable=True))
        for low, tag in ((3 * GUARD, None), (5 * GUARD, 9)):
            receive = ReceiveRequest(memory=view[low : low + GUARD], tag=tag, least_space=1)
            self.bench.target.post_receive(receive)

    def give(self, packet: Packet) -> None:
        answer = self.bench.give(packet)
        assert isinstance(answer, Response) or answer in (ACCEPTED, NO_ROOM)
        assert answer != LATER
        assert len(self.bench.returned) <= 1
        for delivery in ("rudi", "uud"):
            response = self.bench.connectionless(delivery, packet)
            assert (response is None) == (delivery == "uud")

    def check(self) -> None:
        for fetch in self.bench.initiator.fetches:
            assert len(fetch[4]) <= GUARD
        low = 0
        for begin, end in [*self.inside, (len(self.arena), 0)]:
            assert self.arena[low:begin] == b"\xa5" * (begin - low)
            low = end


configurations = st.fixed_dictionaries(
    {
        "unexpected": st.sampled_from(["refuse", "keep"]),
        "compatibility": st.sampled_from([STANDARD, REFERENCE_PROVIDER]),
        "max_unexpected_octets": st.just(1000),
        "max_inbound_messages": st.integers(1, 4),
        "profiles": st.sampled_from([("ai_full", "hpc"), ("hpc",), ("ai_full",)]),
    }
)
anything = st.tuples(st.integers(0, 7), st.binary(max_size=120))


@st.composite
def mutated(draw: Any) -> Packet:
    """A valid packet with a few octets changed, or cut, or grown."""
    next_header, octets = draw(st.sampled_from(VALID))
    changed = bytearray(octets)
    for _ in range(draw(st.integers(0, 3))):
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 4)) == 0:
        changed = changed[: draw(st.integers(0, len(changed)))]
    if draw(st.integers(0, 6)) == 0:
        changed += draw(st.binary(max_size=30))
    if draw(st.integers(0, 9)) == 0:
        next_header = draw(st.sampled_from([int(n) for n in NextHeader]))
    return next_header, bytes(changed)


@examples(150)
@given(configurations, st.lists(st.one_of(anything, mutated()), max_size=25), st.booleans())
def test_no_packet_does_harm(seed: dict[str, Any], packets: list[Packet], ordered: bool) -> None:
    guarded = Guarded(seed)
    guarded.bench.pdc.ordered = ordered
    for packet in packets:
        guarded.give(packet)
        guarded.bench.wait(SECOND // 4)
    guarded.check()
    limit = guarded.bench.config.max_inbound_messages
    assert len(guarded.bench.target.inbound.messages) <= limit
    assert len(guarded.bench.target.inbound.refused) <= limit
    guarded.bench.target.forget(1)
    guarded.bench.wait(60 * SECOND)
    assert guarded.bench.target.next_deadline() is None
    guarded.check()


class Message:
    """A send of the model, and what of it has not been delivered."""

    def __init__(self, number: int, tag: int | None, data: bytes, pdc: FakePdc) -> None:
        self.number = number
        self.data = data
        self.tag = tag
        self.pdc = pdc
        opcode = Opcode.SEND if tag is None else Opcode.TAGGED_SEND
        packets = parts(opcode, data, size=10, match_bits=tag or 0, message_id=number)
        self.left = packets
        self.first = packets[0]
        self.begun = False


class Matching(RuleBasedStateMachine):
    """Messages whose packets come in any order meet receives posted at any time, when SOM comes.

    The model keeps two lists: receives in the order of posting, and messages that found none in
    the order in which they began.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bench = TargetBench(unexpected="keep")
        self.pdcs = [FakePdc(1, THERE), FakePdc(2, ELSEWHERE)]
        self.number = 0
        self.open: list[Message] = []
        self.posted: list[tuple[int, int | None, int, str | None, bytearray]] = []
        self.waiting: list[Message] = []
        self.expected: dict[int, tuple[Message, bytearray]] = {}
        self.done = 0

    @staticmethod
    def fits(receive: tuple[int, int | None, int, str | None, bytearray], message: Message) -> bool:
        _, tag, ignore, peer, _ = receive
        if (tag is None) != (message.tag is None) or peer not in (None, message.pdc.address):
            return False
        return tag is None or not (tag ^ (message.tag or 0)) & ~ignore

    @rule(tag=st.sampled_from([None, 0, 1, 2]), size=st.integers(0, 35), pdc=st.integers(0, 1))
    def send(self, tag: int | None, size: int, pdc: int) -> None:
        self.number += 1
        data = bytes([self.number % 251]) * size
        self.open.append(Message(self.number, tag, data, self.pdcs[pdc]))

    @rule(
        tag=st.sampled_from([None, 0, 1, 2]),
        ignore=st.sampled_from([0, 1, 3]),
        peer=st.sampled_from([None, THERE, ELSEWHERE]),
    )
    def post(self, tag: int | None, ignore: int, peer: str | None) -> None:
        self.number += 1
        memory = bytearray(40)
        receive = (self.number, tag, 0 if tag is None else ignore, peer, memory)
        self.bench.target.post_receive(
            ReceiveRequest(
                memory=memoryview(memory),
                tag=tag,
                ignore=receive[2],
                peer=peer,
                context=self.number,
            )
        )
        for message in self.waiting:
            if self.fits(receive, message):
                self.waiting.remove(message)
                self.expected[self.number] = (message, memory)
                return
        self.posted.append(receive)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 1000), packet=st.integers(0, 1000))
    def deliver(self, which: int, packet: int) -> None:
        message = self.open[which % len(self.open)]
        found = None
        given = message.left.pop(packet % len(message.left))
        if not message.begun and given is not message.first:
            assert self.bench.give(given, message.pdc) == ACCEPTED
            return
        if not message.begun:
            found = next((r for r in self.posted if self.fits(r, message)), None)
            if found is None:
                self.waiting.append(message)
            else:
                self.posted.remove(found)
                self.expected[found[0]] = (message, found[4])
        answer = self.bench.give(given, message.pdc)
        if message.begun or found is not None:
            assert answer == ACCEPTED
        else:
            stated = read(answer)
            assert (stated.code, stated.unexpected) == (ReturnCode.OK, True)
        message.begun = True
        if not message.left:
            self.open.remove(message)

    @invariant()
    def completions(self) -> None:
        for completion in self.bench.completions[self.done :]:
            context = completion.context
            assert isinstance(context, int)
            message, memory = self.expected.pop(context)
            assert not message.left
            assert (completion.length, completion.tag) == (len(message.data), message.tag)
            assert memory == message.data + bytes(40 - len(message.data))
            assert (completion.peer, completion.error) == (message.pdc.address, None)
        self.done = len(self.bench.completions)
        # What is matched and has arrived has been reported.
        assert all(message.left for message, _ in self.expected.values())


TestMatching = Matching.TestCase
TestMatching.settings = examples(60, stateful_step_count=40)
