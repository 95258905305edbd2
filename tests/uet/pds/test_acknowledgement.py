"""Test when a destination acknowledges and what it says; what a source makes of it (UES 3.5.12)."""

import pytest

from tests.harness.uet.script import (
    INITIATOR,
    MS,
    MTU,
    START,
    TARGET,
    Script,
    Seen,
    ack,
    control,
    rud,
    write,
)
from uet.wire.codes import ControlType, NackCode, NextHeader, ReturnCode

# -- the destination -----------------------------------------------------------------------------


def part(k: int, size: int = 1024, total: int = 64) -> object:
    """Part ``k`` of a message of ``total`` parts; part 0 opens the PDC."""
    return write(bytes(size), at=k * size, total=total * size, message_id=5)


@pytest.mark.conformance("C-031")
def test_immediate_triggers() -> None:
    """Acknowledgement requested, SYN, refusal, CE mark and retransmission; else silence."""
    script = Script()
    own = script.establish_target()  # SYN
    assert script.give(rud(START + 1, dpdcid=own) / write(b"a", message_id=2)) == []
    (ar,) = script.give(rud(START + 2, dpdcid=own, ar=1) / write(b"a", message_id=3))
    assert (ar.ack_psn, ar.cack_psn) == (START + 2, START + 2)
    assert script.give(rud(START + 3, dpdcid=own) / write(b"a", message_id=4)) == []
    (marked,) = script.give(rud(START + 4, dpdcid=own) / write(b"a", message_id=5), ecn=3)
    assert (marked.ack_psn, marked.m) == (START + 4, 1)
    (resent,) = script.give(rud(START + 5, dpdcid=own, retx=1) / write(b"a", message_id=6))
    assert (resent.ack_psn, resent.retx) == (START + 5, 1)
    (refused,) = script.give(rud(START + 6, dpdcid=own) / write(b"a", match_bits=1, message_id=7))
    assert (refused.ack_psn, refused.answer) == (START + 6, ReturnCode.BAD_MKEY)


def test_ce_marks_trigger_only_if_so_configured() -> None:
    script = Script(ack_on_ecn=False)
    own = script.establish_target()
    assert script.give(rud(START + 1, dpdcid=own) / write(b"a", message_id=2), ecn=3) == []


@pytest.mark.conformance("C-032")
def test_coalescing_by_octets() -> None:
    """16 packets of 1 KiB make the 16 KiB after which an ACK is owed."""
    script = Script()
    own = script.establish_target()
    for round_ in range(3):
        first = START + 1 + 16 * round_
        for k in range(15):
            assert script.give(rud(first + k, dpdcid=own) / part(16 * round_ + k)) == []
        (answer,) = script.give(rud(first + 15, dpdcid=own) / part(16 * round_ + 15))
        assert (answer.ack_psn, answer.cack_psn) == (first + 15, first + 15)


@pytest.mark.conformance("C-033")
def test_coalescing_of_small_packets() -> None:
    """A packet counts 1 KiB at least."""
    script = Script()
    own = script.establish_target()
    for k in range(15):
        assert script.give(rud(START + 1 + k, dpdcid=own) / part(k, size=64)) == []
    (answer,) = script.give(rud(START + 16, dpdcid=own) / part(15, size=64))
    assert answer.cack_psn == START + 16


def test_any_ack_restarts_the_coalescing() -> None:
    script = Script()
    own = script.establish_target()
    for k in range(10):
        script.give(rud(START + 1 + k, dpdcid=own) / part(k))
    assert script.give(rud(START + 11, dpdcid=own, ar=1) / part(10))
    for k in range(15):
        assert script.give(rud(START + 12 + k, dpdcid=own) / part(11 + k)) == []
    assert script.give(rud(START + 27, dpdcid=own) / part(26))


def test_late_fillers_are_acknowledged() -> None:
    """Once the newest PSN seen has asked for an ACK, whoever fills a gap below it is answered."""
    script = Script()
    own = script.establish_target()
    (answer,) = script.give(rud(START + 3, dpdcid=own, ar=1) / part(2))
    assert (answer.cack_psn, answer.ack_psn) == (START, START + 3)
    (answer,) = script.give(rud(START + 1, dpdcid=own) / part(0))
    assert (answer.cack_psn, answer.ack_psn) == (START + 1, START + 1)
    (answer,) = script.give(rud(START + 2, dpdcid=own) / part(1))
    assert (answer.cack_psn, answer.ack_psn) == (START + 3, START + 2)
    assert script.give(rud(START + 4, dpdcid=own) / part(3)) == []


@pytest.mark.conformance("C-035")
@pytest.mark.parametrize("ecn", [2, 3])
@pytest.mark.parametrize("retx", [0, 1])
def test_an_ack_echoes_its_packet(ecn: int, retx: int) -> None:
    """Entropy, CE and RETX are those of the packet that ack_psn names."""
    script = Script()
    own = script.establish_target()
    script.give(rud(START + 1, dpdcid=own) / part(0), ecn=2, ev=50_001)
    packet = rud(START + 3, dpdcid=own, ar=1, retx=retx) / part(2)
    (answer,) = script.give(packet, ecn=ecn, ev=60_007)
    assert answer.ack_psn == START + 3
    assert (answer.ev, answer.m, answer.retx) == (60_007, int(ecn == 3), retx)
    assert (answer.dscp, answer.ecn) == (46, 0)


@pytest.mark.conformance("C-099")
def test_rcvd_bytes_counts_new_data_once() -> None:
    """Nominal sizes of new packets, rounded up to 256 octets (UES 3.6.12)."""
    script = Script()
    own = script.establish_target()
    sizes = [1]
    for k, size in enumerate((100, 1024, 7)):
        sizes.append(size)
        packet = rud(START + 1 + k, dpdcid=own, ar=1) / write(bytes(size), message_id=k + 2)
        (answer,) = script.give(packet)
        nominal = sum(size + 8 + 12 + 44 + 40 for size in sizes)
        assert answer.rcvd_bytes == -(-nominal // 256)
        packet.retx = 1
        (again,) = script.give(packet)
        assert again.rcvd_bytes == answer.rcvd_bytes
    assert answer.ooo_count == 0
    (ahead,) = script.give(rud(START + 9, dpdcid=own, ar=1) / part(9))
    assert ahead.ooo_count == 1


@pytest.mark.conformance("C-067")
def test_an_ack_of_a_control_packet_has_no_response() -> None:
    script = Script()
    own = script.establish_target()
    (answer,) = script.give(control(ControlType.NOOP, START + 1, dpdcid=own, ar=1))
    assert (answer.cack_psn, answer.next_hdr, answer.ses) == (START + 1, NextHeader.NONE, None)
    (answer,) = script.give(control(ControlType.CLOSE_CMD, START + 2, dpdcid=own, ar=1))
    assert (answer.cack_psn, answer.next_hdr, answer.ses) == (START + 2, NextHeader.NONE, None)


@pytest.mark.conformance("C-036")
def test_sack_bits_name_their_psns() -> None:
    """CACK n, received n+2, n+3 and n+5: bit i stands for the base plus i."""
    script = Script()
    own = script.establish_target()
    for k in (2, 3):
        script.give(rud(START + k, dpdcid=own) / part(k - 1))
    (answer,) = script.give(rud(START + 5, dpdcid=own, ar=1) / part(4))
    assert answer.cack_psn == START
    base = answer.sack_base_psn
    named = {base + bit for bit in range(64) if answer.sack_bitmap >> bit & 1}
    assert {psn for psn in named if psn > START} == {START + 2, START + 3, START + 5}


@pytest.mark.conformance("C-036")
def test_consecutive_acks_walk_the_window() -> None:
    """A window wider than the bitmap is told in blocks, and then from CACK again."""
    script = Script()
    own = script.establish_target()
    held: set[int] = set()
    reported: set[int] = set()
    block = 0  # where the next bitmap must begin, from CACK
    for k in range(2, 330, 2):  # every other one is missing
        held.add(START + k)
        ar = int(k > 200)
        for answer in script.give(rud(START + k, dpdcid=own, ar=ar) / write(b"a", message_id=k)):
            base = answer.sack_base_psn
            assert base == START + block
            block = block + 64 if k > block + 63 else 0
            named = {base + bit for bit in range(64) if answer.sack_bitmap >> bit & 1}
            assert {psn for psn in named if psn > START} <= held
            reported |= named
    assert held - reported <= {psn for psn in held if psn > START + 300}


# -- the source ----------------------------------------------------------------------------------


def in_flight(script: Script, packets: int) -> list[Seen]:
    """An established PDC with one message under way."""
    script.establish_initiator()
    script.post(bytes(packets * MTU), context="long")
    return script.take()


@pytest.mark.conformance("C-034")
def test_the_last_packet_of_a_message_asks_for_an_ack() -> None:
    script = Script()
    packets = in_flight(script, 5)
    assert [p.ar for p in packets] == [0, 0, 0, 0, 1]
    script.post(b"")
    (single,) = script.take()
    assert single.ar == 1


def test_a_small_window_asks_for_every_ack() -> None:
    """Else the destination would coalesce beyond what the source may have in flight."""
    script = Script(window_bytes=4_000)
    assert [p.ar for p in in_flight(script, 9)] == [1, 1, 1, 1]


@pytest.mark.conformance("C-039")
def test_an_ack_of_the_future_is_ignored() -> None:
    script = Script()
    packets = in_flight(script, 4)
    own = packets[0].spdcid
    before = script.pdc.source.window.base
    unsent = packets[-1].psn + 1
    for packet in (
        ack(psn=unsent, dpdcid=own),
        ack(psn=packets[0].psn, cack=unsent, dpdcid=own),
        ack(psn=unsent + 5, cack=packets[0].psn, dpdcid=own),
        ack(psn=packets[0].psn, cack=unsent, dpdcid=own, sack=(unsent, 0xFF)),
    ):
        script.give(packet)
    assert script.pdc.source.window.base == before
    assert script.counters["rx_drop_ack_of_unsent"] == 4
    assert script.completions == []


def test_acks_with_wrong_identifiers_are_ignored() -> None:
    script = Script()
    packets = in_flight(script, 2)
    script.give(ack(packets[1], spdcid=TARGET + 1))
    script.give(ack(psn=packets[1].psn, dpdcid=packets[1].spdcid + 1))
    assert script.counters["rx_drop_ack_of_other_pdc"] == 1
    assert script.counters["rx_drop_ack_of_unknown_pdc"] == 1
    assert script.completions == []


@pytest.mark.conformance("C-040")
def test_old_acks_deliver_no_second_response() -> None:
    """An ACK that comes again, or after newer ones, changes nothing more."""
    script = Script()
    first, second, third, fourth = in_flight(script, 4)
    script.give(ack(third, cack=first.psn - 1))
    script.give(ack(second, cack=first.psn - 1))
    source = script.pdc.source
    assert source.window.base == first.psn
    (message,) = source.open.values()
    assert message.acknowledged == 2
    for _ in range(2):  # an error that comes too late is not taken for the first answer
        script.give(ack(third, cack=first.psn - 1, code=ReturnCode.BAD_ADDR))
    assert message.acknowledged == 2
    script.give(ack(fourth))
    assert [(c.context, c.error) for c in script.completions] == [("long", None)]
    script.give(ack(first, code=ReturnCode.BAD_ADDR))
    assert script.completions == []


@pytest.mark.conformance("C-040")
def test_newer_content_of_an_old_ack_is_used() -> None:
    """An ACK of an answered PSN may still bring a newer CACK, or SACK bits."""
    script = Script()
    first, second, third, fourth = in_flight(script, 4)
    script.give(ack(first))
    script.give(ack(psn=first.psn, cack=first.psn, dpdcid=first.spdcid, sack=(fourth.psn, 1)))
    window = script.pdc.source.window
    assert window.is_delivered(fourth.psn)
    assert not window.is_delivered(third.psn)
    script.give(ack(psn=first.psn, cack=second.psn, dpdcid=first.spdcid))
    assert window.base == third.psn
    assert script.completions == []


def test_a_sack_bit_completes_nothing() -> None:
    """Received is not answered: the response may still be a refusal."""
    script = Script()
    first, second = in_flight(script, 2)
    script.give(ack(first, sack=(second.psn, 1)))
    assert script.completions == []
    script.give(ack(second, code=ReturnCode.PERM_VIOLATION))
    assert [c.error for c in script.completions] == ["PERM_VIOLATION"]


@pytest.mark.conformance("C-036")
def test_clear_bits_cause_no_retransmission() -> None:
    script = Script()
    packets = in_flight(script, 8)
    gaps = ack(packets[7], cack=packets[0].psn, sack=(packets[0].psn, 0b1010_1011))
    assert script.give(gaps) == []
    assert script.wait(MS - 1) == []


def test_a_default_response_may_say_null() -> None:
    """The return code of a default response is OK or NULL: both are success."""
    script = Script()
    first, second = in_flight(script, 2)
    for request, code in ((first, ReturnCode.NULL), (second, ReturnCode.OK)):
        packet = ack(request, code=code)
        packet.lastlayer().opcode = 0
        script.give(packet)
    assert [c.error for c in script.completions] == [None]


def test_the_ack_of_a_probe_names_no_psn() -> None:
    """Nobody has sent a probe here; where ack_psn_offset stands otherwise is an opaque number."""
    script = Script()
    first, second = in_flight(script, 2)
    packet = ack(first)
    packet.p, packet.probe_opaque = 1, 1
    assert script.give(packet) == []
    assert script.counters["rx_drop_unexpected_probe_ack"] == 1
    window = script.pdc.source.window
    assert window.is_open(first.psn)
    assert window.is_open(second.psn)


def test_truncated_acks_are_counted() -> None:
    script = Script()
    (request,) = in_flight(script, 1)
    whole = script.frame(ack(request))
    for length in (len(whole) - 1, 42 + 32, 42 + 20, 42 + 11):
        cut = bytearray(whole[:length])
        cut[16:18] = (length - 14).to_bytes(2, "big")
        cut[38:40] = (length - 34).to_bytes(2, "big")
        script.fep.receive([memoryview(cut)], script.now)
    # The one in the middle is whole up to its response.
    assert script.counters["rx_drop_truncated"] == 4
    assert script.completions == []


def test_plain_ack_types() -> None:
    """ACK and ACK_CCX acknowledge like ACK_CC."""
    from uet.wire.layers import UET_ACK, UET_ACK_CCX, UET_SES_RESPONSE

    script = Script()
    first, second = in_flight(script, 2)
    ids = {"spdcid": TARGET, "dpdcid": first.spdcid}
    script.give(UET_ACK(cack_psn=first.psn, **ids) / UET_SES_RESPONSE(opcode=0))
    assert script.pdc.source.window.base == second.psn
    script.give(UET_ACK_CCX(cack_psn=second.psn, mpr=8, **ids) / UET_SES_RESPONSE(opcode=0))
    assert [c.error for c in script.completions] == [None]
    assert INITIATOR != TARGET


@pytest.mark.conformance("C-099")
def test_rcvd_bytes_wraps_and_leaves_out_what_was_trimmed() -> None:
    """24 bits of 256 octets; a trimmed packet brings nothing until its data comes."""
    script = Script()
    own = script.establish_target()
    counted = script.pdc.destination
    counted.received_octets = (1 << 24) * 256 - 100
    (nack,) = script.give(rud(START + 1, dpdcid=own) / write(bytes(900), message_id=1), dscp=4)
    assert nack.nack is NackCode.TRIMMED
    assert counted.received_octets == (1 << 24) * 256 - 100
    (answer,) = script.give(rud(START + 1, dpdcid=own, ar=1) / write(bytes(900), message_id=1))
    nominal = 8 + 12 + 44 + 900 + 40
    assert answer.rcvd_bytes == -(-(nominal - 100) // 256)
