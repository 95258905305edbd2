"""Sends at a target: matched, refused, kept, deferred or fetched (UES 3.4.1)."""

import random

import pytest

from tests.harness.uet.deliveries import (
    ELSEWHERE,
    KEY,
    MTU,
    SECOND,
    THERE,
    FakePdc,
    Packet,
    TargetBench,
    medium,
    parts,
    read,
    std,
)
from uet.compatibility import Compatibility
from uet.pds.semantics import ACCEPTED, Response
from uet.ses.address import Address
from uet.transport import ReceiveRequest
from uet.wire import headers
from uet.wire.codes import Opcode, ReturnCode


def code(bench: TargetBench, packet: Packet, pdc: FakePdc | None = None) -> ReturnCode:
    stated = read(bench.give(packet, pdc))
    assert stated.guaranteed
    return stated.code


# -- matching ------------------------------------------------------------------------------------


@pytest.mark.conformance("C-082")
def test_tagged_messages_take_the_first_receive_that_fits() -> None:
    bench = TargetBench()
    bench.receive(tag=0x100, context="exact")
    bench.receive(tag=0x100, ignore=0xFF, context="wild")
    bench.receive(tag=0x107, context="late")
    bench.receive(context="untagged")
    for bits, context in ((0x107, "wild"), (0x100, "exact"), (0x107, "late")):
        assert bench.give(std(Opcode.TAGGED_SEND, b"x", match_bits=bits)) == ACCEPTED
        assert bench.completions[-1].context == context
        assert bench.completions[-1].tag == bits
    assert code(bench, std(Opcode.TAGGED_SEND, b"x", match_bits=0x107)) == ReturnCode.NO_MATCH
    assert bench.give(medium(Opcode.SEND, b"x", match_bits=0x107)) == ACCEPTED
    assert (bench.completions[-1].context, bench.completions[-1].tag) == ("untagged", None)


def test_directed_receives() -> None:
    bench = TargetBench()
    bench.receive(peer=ELSEWHERE, context="elsewhere")
    bench.receive(initiator=99, context="99")
    bench.receive(context="anyone")
    assert bench.give(std(Opcode.SEND, b"x")) == ACCEPTED
    assert bench.give(std(Opcode.SEND, b"x", initiator=99)) == ACCEPTED
    assert code(bench, std(Opcode.SEND, b"x")) == ReturnCode.NO_MATCH
    assert bench.give(std(Opcode.SEND, b"x"), FakePdc(id=4, address=ELSEWHERE)) == ACCEPTED
    assert [(c.context, c.peer, c.initiator) for c in bench.completions] == [
        ("anyone", THERE, 16),
        ("99", THERE, 99),
        ("elsewhere", ELSEWHERE, 16),
    ]


def test_a_multi_receive_takes_message_after_message() -> None:
    bench = TargetBench()
    into = bench.receive(100, least_space=40, context="m")
    for k in range(3):
        assert bench.give(std(Opcode.SEND, bytes([k]) * 25)) == ACCEPTED
    assert code(bench, std(Opcode.SEND, b"x")) == ReturnCode.NO_MATCH
    assert [(c.offset, c.length) for c in bench.completions] == [(0, 25), (25, 25), (50, 25)]
    assert into == b"\0" * 25 + b"\1" * 25 + b"\2" * 25 + bytes(25)


@pytest.mark.conformance("C-079")
def test_a_message_too_long_for_its_receive() -> None:
    """Every packet draws the code; the receive ends with an error and the true length."""
    bench = TargetBench()
    into = bench.receive(1500, context="r")
    bench.receive(1500, context="s")
    for packet in parts(Opcode.SEND, b"x" * 3000):
        assert code(bench, packet) == ReturnCode.UNSUPPORTED_SIZE
    assert into == bytes(1500)
    for packet in parts(Opcode.SEND, b"y" * 1500):
        assert bench.give(packet) == ACCEPTED
    assert [(c.context, c.length, c.error) for c in bench.completions] == [
        ("r", 3000, "UNSUPPORTED_SIZE"),
        ("s", 1500, None),
    ]


def test_cancelled_receives() -> None:
    bench = TargetBench()
    bench.receive(context="a", tag=4)
    bench.receive(context="b")
    assert bench.target.cancel_receive("a")
    assert not bench.target.cancel_receive("a")
    assert [(c.context, c.error, c.length, c.tag) for c in bench.completions] == [
        ("a", "CANCELLED", 0, 4)
    ]
    assert code(bench, std(Opcode.TAGGED_SEND, b"x", match_bits=4)) == ReturnCode.NO_MATCH
    bench.give(parts(Opcode.SEND, bytes(3000))[0])
    assert not bench.target.cancel_receive("b")  # a message has it


# -- refused -------------------------------------------------------------------------------------


@pytest.mark.conformance("C-075", "C-079")
def test_no_receive_on_an_unordered_pdc() -> None:
    """The message is refused as a whole, even if a receive comes meanwhile; others are not."""
    bench = TargetBench()
    packets = parts(Opcode.SEND, b"s" * 2500)
    assert code(bench, packets[0]) == ReturnCode.NO_MATCH
    into = bench.receive()
    assert code(bench, packets[2]) == ReturnCode.NO_MATCH
    assert code(bench, packets[1]) == ReturnCode.NO_MATCH
    assert bench.target.generation(THERE) == 0
    for packet in packets:
        assert bench.give(packet) == ACCEPTED
    assert into[:2500] == b"s" * 2500


@pytest.mark.conformance("C-075", "C-076")
def test_no_receive_on_an_ordered_pdc() -> None:
    """Nothing overtakes: DISABLED_GEN until a receive is posted, then the new generation."""
    bench = TargetBench()
    bench.pdc.ordered = True
    first = parts(Opcode.SEND, b"1" * 2500)
    for packet in first:
        assert code(bench, packet) == ReturnCode.NO_MATCH
    other = std(Opcode.SEND, b"2", message_id=2)
    assert code(bench, other) == ReturnCode.DISABLED_GEN
    assert code(bench, std(Opcode.WRITE, b"3", match_bits=KEY)) == ReturnCode.DISABLED_GEN
    for packet in first:
        assert code(bench, packet) == ReturnCode.DISABLED_GEN
    into = bench.receive()
    bench.receive()
    assert bench.target.generation(THERE) == 1
    for packet in first:
        stated = read(bench.give(packet))
        assert (stated.code, stated.generation) == (ReturnCode.BAD_GENERATION, 1)
    for packet in parts(Opcode.SEND, b"1" * 2500, ri_generation=1):
        assert bench.give(packet) == ACCEPTED
    assert into[:2500] == b"1" * 2500
    packet = std(Opcode.WRITE, b"3", match_bits=KEY, ri_generation=1)
    assert bench.give(packet) == ACCEPTED
    assert bench.memory[:1] == b"3"


@pytest.mark.conformance("C-203")
def test_a_generation_belongs_to_one_ordered_stream() -> None:
    """Another peer goes on, and what the same one sends without order."""
    bench = TargetBench()
    ordered = FakePdc(id=2, ordered=True)
    other = FakePdc(id=3, address=ELSEWHERE, ordered=True)
    assert code(bench, std(Opcode.SEND, b"1"), ordered) == ReturnCode.NO_MATCH
    write = std(Opcode.WRITE, b"2", match_bits=KEY)
    assert code(bench, write, ordered) == ReturnCode.DISABLED_GEN
    whole = parts(Opcode.WRITE, b"3" * 2000, match_bits=KEY)
    for pdc in (bench.pdc, other):
        assert bench.give(write, pdc) == ACCEPTED
        for packet in (*whole, std(Opcode.READ, match_bits=KEY, total=4)):
            assert isinstance(bench.give(packet, pdc), Response) == (packet not in whole)
        assert code(bench, std(Opcode.SEND, b"4"), pdc) == ReturnCode.NO_MATCH
    bench.receive()
    assert [bench.target.generation(peer) for peer in (THERE, ELSEWHERE)] == [1, 1]
    stated = read(bench.give(write, ordered))
    assert (stated.code, stated.generation) == (ReturnCode.BAD_GENERATION, 1)
    assert bench.give(std(Opcode.WRITE, b"5", match_bits=KEY, ri_generation=1)) == ACCEPTED
    third = FakePdc(id=4, address="10.0.1.9")
    assert bench.give(write, third) == ACCEPTED


def test_generations_begin_again() -> None:
    bench = TargetBench()
    bench.pdc.ordered = True
    for k in range(300):
        bench.receive()
        bench.give(std(Opcode.SEND, b"x", ri_generation=k % 256))
        assert len(bench.completions) == k + 1
        assert code(bench, std(Opcode.SEND, b"x", ri_generation=k % 256)) == ReturnCode.NO_MATCH


# -- kept ----------------------------------------------------------------------------------------


@pytest.mark.conformance("C-084")
@pytest.mark.parametrize("post_after", range(4))
@pytest.mark.parametrize("seed", range(2))
def test_kept_messages(post_after: int, seed: int) -> None:
    """The packet that began it says so; the receive may come before or after the last one."""
    bench = TargetBench(unexpected="keep")
    data = random.Random(seed).randbytes(2500)
    packets = parts(Opcode.SEND, data, hd=1, header_data=6)
    random.Random(seed).shuffle(packets)
    into = bytearray()
    begins = packets.index(parts(Opcode.SEND, data, hd=1, header_data=6)[0])
    for k, packet in enumerate(packets):
        if k == post_after:
            into = bench.receive(context="r")
        answer = bench.give(packet)
        if k == begins and post_after > k:
            stated = read(answer)
            assert (stated.code, stated.unexpected, stated.guaranteed) == (
                ReturnCode.OK,
                True,
                True,
            )
            assert stated.modified == 2500
        else:
            assert answer == ACCEPTED
    if post_after == 3:
        assert bench.completions == []
        into = bench.receive(context="r")
    assert into[:2500] == data
    (done,) = bench.completions
    assert (done.context, done.length, done.header_data, done.error) == ("r", 2500, 6, None)
    assert bench.target.sends.kept == bench.target.sends.kept_octets == 0


def test_kept_messages_have_limits() -> None:
    bench = TargetBench(unexpected="keep", max_unexpected_messages=2, max_unexpected_octets=100)
    assert code(bench, std(Opcode.SEND, bytes(101))) == ReturnCode.NO_MATCH
    assert code(bench, std(Opcode.SEND, b"a" * 60)) == ReturnCode.OK
    assert code(bench, std(Opcode.SEND, bytes(41))) == ReturnCode.NO_MATCH
    assert code(bench, std(Opcode.SEND, b"b" * 40)) == ReturnCode.OK
    assert code(bench, std(Opcode.SEND, b"")) == ReturnCode.NO_MATCH
    second = Address(resource_index=20)
    bench.target.add_resource(second)  # the limits are the endpoint's
    assert code(bench, std(Opcode.SEND, b"c", resource_index=20)) == ReturnCode.NO_MATCH
    assert bench.receive()[:1] == b"a"
    assert code(bench, std(Opcode.SEND, bytes(61), resource_index=20)) == ReturnCode.NO_MATCH
    assert code(bench, std(Opcode.SEND, b"", resource_index=20)) == ReturnCode.OK
    bench.target.post_receive(ReceiveRequest(memory=memoryview(bytearray(1))), second)
    assert bench.receive()[:1] == b"b"
    assert code(bench, std(Opcode.SEND, bytes(100))) == ReturnCode.OK


def test_kept_messages_that_are_given_up() -> None:
    bench = TargetBench(unexpected="keep", inbound_message_idle_time=SECOND)
    packets = parts(Opcode.SEND, bytes(3000))
    assert code(bench, packets[0]) == ReturnCode.OK
    bench.give(std(Opcode.MSG_ERROR, at=1024, total=3000))
    assert code(bench, parts(Opcode.SEND, bytes(3000), message_id=2)[0]) == ReturnCode.OK
    bench.wait(SECOND)
    assert code(bench, parts(Opcode.SEND, bytes(3000), message_id=3)[0]) == ReturnCode.OK
    bench.target.forget(1)
    bench.receive()
    assert bench.completions == []
    assert bench.target.sends.kept == bench.target.sends.kept_octets == 0
    assert bench.counters["rx_messages_abandoned"] == 3


def test_a_kept_message_that_does_not_fit_its_receive() -> None:
    bench = TargetBench(unexpected="keep")
    assert code(bench, std(Opcode.SEND, bytes(100))) == ReturnCode.OK
    into = bench.receive(50)
    assert bench.counters["rx_unexpected_dropped"] == 1
    assert [(c.length, c.error) for c in bench.completions] == [(100, "UNSUPPORTED_SIZE")]
    into = bench.receive(50)
    assert bench.give(std(Opcode.SEND, b"fits")) == ACCEPTED
    assert into[:4] == b"fits"


def test_plain_answers_to_the_unexpected() -> None:
    """For a peer that does not know guaranteed ones."""
    switches = Compatibility(plain_unexpected_response=True)
    bench = TargetBench(unexpected="keep", compatibility=switches)
    stated = read(bench.give(std(Opcode.SEND, b"x")))
    assert (stated.code, stated.unexpected, stated.guaranteed) == (ReturnCode.OK, True, False)
    for packet in parts(Opcode.DEFERRABLE_SEND, bytes(3000)):
        stated = read(bench.give(packet))
        assert (stated.code, stated.guaranteed) == (ReturnCode.OK, False)


# -- deferred ------------------------------------------------------------------------------------


@pytest.mark.conformance("C-080")
@pytest.mark.parametrize("opcode", [Opcode.DEFERRABLE_SEND, Opcode.DEFERRABLE_TSEND])
def test_a_deferred_message(opcode: Opcode) -> None:
    """Held by name; asked for when a receive comes; its second attempt finds that receive."""
    bench = TargetBench()
    tag = 0x55 if opcode == Opcode.DEFERRABLE_TSEND else None
    data = random.Random(1).randbytes(10_000)
    names = {"match_bits": tag or 0, "initiator_restart_token": 7}
    first = parts(opcode, data, **names)
    assert bench.give(first[1]) == ACCEPTED  # before the one that asks for a receive
    stated = read(bench.give(first[0]))
    assert (stated.code, stated.unexpected, stated.modified) == (ReturnCode.OK, True, 0)
    assert stated.guaranteed
    stated = read(bench.give(first[3]))  # it was on its way already
    assert (stated.code, stated.unexpected, stated.modified) == (ReturnCode.OK, False, 0)
    assert stated.guaranteed
    into = bench.receive(10_000, tag=tag, context="r")
    assert bench.initiator.requested == [(THERE, Address(), 7, 1, "rud")]
    end = std(opcode, b"", at=4 * MTU, total=10_000, **names)
    assert bench.give(end) == ACCEPTED
    assert read(bench.give(first[2])).code == ReturnCode.OK
    assert not bench.target.inbound.refused
    assert code(bench, std(Opcode.SEND, b"another", message_id=5)) == ReturnCode.NO_MATCH
    other = FakePdc(id=9)
    for packet in parts(opcode, data, message_id=2, target_restart_token=1, **names):
        assert bench.give(packet, other) == ACCEPTED
    assert into == data
    assert [(c.context, c.error, c.length) for c in bench.completions] == [("r", None, 10_000)]
    assert bench.target.next_deadline() is None or not bench.target.inbound.messages


def test_a_deferrable_send_that_finds_its_receive() -> None:
    bench = TargetBench()
    into = bench.receive(10_000)
    data = random.Random(1).randbytes(10_000)
    for packet in parts(Opcode.DEFERRABLE_SEND, data, initiator_restart_token=3):
        assert bench.give(packet) == ACCEPTED
    assert into == data
    assert bench.initiator.requested == []


@pytest.mark.parametrize(
    ("profile", "ordered"), [("hpc", False), ("ai_base", False), ("ai_full", True)]
)
def test_where_a_deferrable_send_is_a_plain_one(profile: str, ordered: bool) -> None:
    """Without the capability, and on an ordered PDC, where a later message would overtake it."""
    bench = TargetBench(profiles=(profile,))
    bench.pdc.ordered = ordered
    for packet in parts(Opcode.DEFERRABLE_SEND, bytes(3000)):
        assert code(bench, packet) == ReturnCode.NO_MATCH
    assert bench.target.generation(THERE) == 0
    into = bench.receive()
    generation = int(ordered)
    for packet in parts(Opcode.DEFERRABLE_SEND, b"d" * 3000, ri_generation=generation):
        assert bench.give(packet) == ACCEPTED
    assert into[:3000] == b"d" * 3000


def test_deferred_messages_have_limits() -> None:
    """Limits are of number and time; a receive whose message stays away is free for others."""
    bench = TargetBench(max_deferred_messages=2, deferred_time=SECOND)
    for token in (1, 2):
        packet = std(Opcode.DEFERRABLE_SEND, b"x" * 10, initiator_restart_token=token)
        assert code(bench, packet) == ReturnCode.OK
    packet = std(Opcode.DEFERRABLE_SEND, b"x" * 10, initiator_restart_token=3)
    assert code(bench, packet) == ReturnCode.NO_MATCH
    bench.wait(SECOND // 2)
    into = bench.receive(context="r")
    assert [asked[2:4] for asked in bench.initiator.requested] == [(1, 1)]
    bench.wait(SECOND // 2)  # the second one is forgotten
    assert bench.counters["rx_deferred_expired"] == 1
    assert code(bench, std(Opcode.SEND, b"y")) == ReturnCode.NO_MATCH
    bench.wait(SECOND // 2)  # and the reservation
    assert bench.target.next_deadline() is None
    assert bench.give(std(Opcode.SEND, b"y")) == ACCEPTED
    assert into[:1] == b"y"
    assert [c.context for c in bench.completions] == ["r"]


@pytest.mark.parametrize("tag", [None, 5])
def test_a_receive_whose_reservation_ends_has_its_place_again(tag: int | None) -> None:
    bench = TargetBench(deferred_time=SECOND)
    opcode, plain = Opcode.DEFERRABLE_SEND, Opcode.SEND
    if tag is not None:
        opcode, plain = Opcode.DEFERRABLE_TSEND, Opcode.TAGGED_SEND
    packet = std(opcode, b"x" * 10, initiator_restart_token=1, match_bits=tag or 0)
    assert code(bench, packet) == ReturnCode.OK
    for context in ("reserved", "second", "third"):
        bench.receive(context=context, tag=tag)
    send = std(plain, b"y", match_bits=tag or 0)
    assert bench.give(send) == ACCEPTED
    bench.wait(SECOND)
    assert bench.give(send) == ACCEPTED
    assert bench.give(send) == ACCEPTED
    assert [c.context for c in bench.completions] == ["second", "reserved", "third"]


def test_restarts_that_are_not_what_was_deferred() -> None:
    """Another peer, length or token: a new message, which does not get the reserved memory."""
    bench = TargetBench(max_deferred_messages=1)
    names = {"initiator_restart_token": 7, "target_restart_token": 1}
    assert (
        code(bench, std(Opcode.DEFERRABLE_SEND, b"x" * 10, initiator_restart_token=7))
        == ReturnCode.OK
    )
    into = bench.receive(context="r")
    wrong = [
        (std(Opcode.DEFERRABLE_SEND, b"y" * 10, **names), FakePdc(id=3, address=ELSEWHERE)),
        (std(Opcode.DEFERRABLE_SEND, b"y" * 11, **names), None),
        (std(Opcode.DEFERRABLE_SEND, b"y" * 10, **names | {"initiator_restart_token": 8}), None),
        (std(Opcode.DEFERRABLE_SEND, b"y" * 10, **names | {"target_restart_token": 0}), None),
    ]
    for packet, pdc in wrong:
        assert code(bench, packet, pdc) == ReturnCode.NO_MATCH
    assert bench.give(std(Opcode.DEFERRABLE_SEND, b"x" * 10, **names)) == ACCEPTED
    assert into[:10] == b"x" * 10


def test_a_deferred_message_too_long_for_the_receive_is_told_when_it_begins_again() -> None:
    bench = TargetBench()
    packet = std(Opcode.DEFERRABLE_SEND, bytes(100), initiator_restart_token=7)
    assert code(bench, packet) == ReturnCode.OK
    bench.receive(50)
    assert len(bench.initiator.requested) == 1
    assert [(c.length, c.error) for c in bench.completions] == [(100, "UNSUPPORTED_SIZE")]
    into = bench.receive(100)
    packet = std(
        Opcode.DEFERRABLE_SEND, b"x" * 100, initiator_restart_token=7, target_restart_token=1
    )
    assert code(bench, packet) == ReturnCode.UNSUPPORTED_SIZE
    assert into == bytes(100)  # it has used up one receive already
    assert bench.target.next_deadline() is None


# -- rendezvous ----------------------------------------------------------------------------------


def rendezvous(data: bytes, eager: int, **fields: int) -> list[Packet]:
    """The eager part of a message, and where the rest is."""
    extension = headers.SES_RENDEZVOUS.encode(
        eager_length=eager,
        read_pid_on_fep=3,
        read_resource_index=9,
        read_offset=eager,
        read_memory_key=0xABC,
    )
    cut = range(0, eager, MTU) or range(1)
    return [
        std(
            Opcode.RENDEZVOUS_SEND,
            data[at : min(at + MTU, eager)],
            at=at or None,
            total=len(data),
            eom=int(at == cut[-1]),
            extension=extension,
            **fields,
        )
        for at in cut
    ]


@pytest.mark.conformance("C-086")
@pytest.mark.parametrize("eager", [0, 100, 2500, 6000])
@pytest.mark.parametrize("unexpected", [False, True])
@pytest.mark.parametrize("fetched_first", [False, True])
def test_rendezvous(eager: int, unexpected: bool, fetched_first: bool) -> None:
    """The eager part is placed, the rest fetched; the receive completes when all is there."""
    bench = TargetBench()
    data = random.Random(2).randbytes(6000)
    packets = rendezvous(data, eager)
    first = packets[0]
    random.Random(2).shuffle(packets)
    into = bytearray()
    if not unexpected:
        into = bench.receive(6000, context="r")
    while packets[0] is not first:
        assert bench.give(packets.pop(0)) == ACCEPTED  # kept until its SOM is there
    stated = bench.give(packets.pop(0))
    if unexpected:
        answer = read(stated)
        assert (answer.code, answer.unexpected) == (ReturnCode.OK, True)
        assert bench.initiator.fetches == []
        into = bench.receive(6000, context="r")
    else:
        assert stated == ACCEPTED

    def fetch() -> None:
        if eager == 6000:
            assert bench.initiator.fetches == []
            return
        ((peer, address, key, offset, memory, ended),) = bench.initiator.fetches
        assert (peer, key, offset, len(memory)) == (THERE, 0xABC, eager, 6000 - eager)
        assert address == Address(pid_on_fep=3, resource_index=9)
        memory[:] = data[eager:]
        ended(None)

    if fetched_first:
        fetch()
    for packet in packets:
        assert bench.completions == []
        assert bench.give(packet) == ACCEPTED
    if not fetched_first:
        assert len(bench.completions) == (eager == 6000)
        fetch()
    assert into == data
    assert [(c.context, c.length, c.error) for c in bench.completions] == [("r", 6000, None)]
    assert bench.counters["rx_messages"] == 1


def test_a_rendezvous_that_cannot_be_fetched() -> None:
    bench = TargetBench()
    bench.receive(6000, context="r")
    (packet,) = rendezvous(bytes(6000), 100)
    bench.give(packet)
    bench.initiator.fetches[0][5]("BAD_MKEY")
    assert [(c.context, c.error) for c in bench.completions] == [("r", "BAD_MKEY")]
    bench.receive(6000, context="s")
    first, second = rendezvous(bytes(6000), 2000)
    bench.give(first)
    bench.initiator.fetches[1][5]("BAD_MKEY")
    assert [(c.context, c.error) for c in bench.completions[1:]] == [("s", "BAD_MKEY")]
    assert code(bench, second) == ReturnCode.DROPPED  # its memory is the application's again
    assert not bench.target.inbound.refused


def test_a_rendezvous_given_up_while_it_is_fetched() -> None:
    """The receive is not told before the fetch has ended: until then its memory may change."""
    bench = TargetBench()
    bench.receive(6000, context="r")
    bench.give(rendezvous(bytes(6000), 2000)[0])
    bench.target.forget(1)
    assert bench.completions == []
    bench.initiator.fetches[0][5](None)
    assert [(c.context, c.error) for c in bench.completions] == [("r", "PDC_CLOSED")]


@pytest.mark.conformance("C-206")
def test_delivery_complete_is_said_of_what_the_application_has() -> None:
    """Not of a message that is kept, or still being fetched."""
    bench = TargetBench(unexpected="keep")
    first, last = parts(Opcode.SEND, bytes(2000), dc=1)
    stated = read(bench.give(first))
    assert stated.unexpected
    assert bench.give(last) == ACCEPTED
    bench.receive()
    bench.receive(6000)
    (packet,) = rendezvous(bytes(6000), 100, dc=1)
    assert bench.give(packet) == ACCEPTED
    bench.initiator.fetches[0][5](None)
    assert len(bench.completions) == 2


@pytest.mark.parametrize("lowest", [0, 1])
def test_restart_tokens(lowest: int) -> None:
    """Some peers begin with 0."""
    switches = Compatibility(message_ids_from_zero=not lowest)
    bench = TargetBench(compatibility=switches)
    for k in range(3):
        packet = std(Opcode.DEFERRABLE_SEND, b"x", initiator_restart_token=k, message_id=k)
        assert code(bench, packet) == ReturnCode.OK
        bench.receive()
    assert [asked[3] for asked in bench.initiator.requested] == [lowest, lowest + 1, lowest + 2]


def test_a_short_header_is_a_whole_message() -> None:
    """The whole eager part of a rendezvous is such a message, too."""
    bench = TargetBench()
    bench.receive()
    for eager, octets in ((40, 20), (40, 0), (20, 40)):
        extension = headers.SES_RENDEZVOUS.encode(eager_length=eager)
        packet = medium(
            Opcode.RENDEZVOUS_SEND, bytes(octets), extension=extension, request_length=90
        )
        assert code(bench, packet) == ReturnCode.OP_VIOLATION
    assert bench.completions == []


@pytest.mark.parametrize("eager", [7000, 1000])
def test_a_rendezvous_that_contradicts_itself(eager: int) -> None:
    """More eager than there is, or a packet beyond the eager part."""
    bench = TargetBench()
    bench.receive(8000)
    extension = headers.SES_RENDEZVOUS.encode(eager_length=eager)
    packet = std(Opcode.RENDEZVOUS_SEND, bytes(1024), total=6000, extension=extension)
    assert code(bench, packet) == ReturnCode.OP_VIOLATION
