"""Defects that a hostile reading of the stack has found: each has a test of its own."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.harness.uet.network import MACS6, Network, endpoint
from tests.harness.uet.script import (
    HERE,
    KEY,
    MS,
    MTU,
    START,
    TARGET,
    THERE,
    Script,
    ack,
    control,
    refusal,
    rud,
    write,
)
from tests.harness.uet.secured import DOMAINS, OTHER, SDI, SecureScript, opening
from tests.harness.uet.stub import StubSemantics, guaranteed
from tests.harness.uet.tss_vectors import opened, sealed_frame
from tests.uet.pds.test_return_direction import data
from uet.config_checks import ConfigurationError
from uet.pds.feedback import MOST_RENUMBERINGS
from uet.pds.repair import LossInference
from uet.pds.window import SendWindow
from uet.transport import ReadRequest, ReceiveRequest, SendRequest
from uet.tss.keys import provision_client
from uet.tss.record import SecureRecords
from uet.tss.secure_domain import SecureDomain
from uet.wire.codes import ControlType, NackCode

HEADER = bytes.fromhex("0a") + bytes(31)


# -- PSNs of another numbering --------------------------------------------------------------------


def test_a_syn_packet_of_the_numbering_before_is_not_taken_for_one_of_the_new() -> None:
    """An initiator was told to begin one PSN later; on sprayed paths old copies come last."""
    script = SecureScript()
    (answer,) = script.give(opening(START))
    script.give(control(ControlType.CLOSE_CMD, START + 1, dpdcid=answer.spdcid, ar=1))
    octets = bytes(range(4))
    parts = [write(octets[k : k + 1], at=k, total=4) for k in range(4)]
    old = [rud(START + k, syn=k, spdcid=8) / parts[k] for k in range(4)]
    new = [rud(START + 1 + k, syn=k, spdcid=8, clear=START) / parts[k] for k in range(4)]
    (nack,) = script.give(old[0])
    assert (nack.nack, nack.payload_word) == (NackCode.NEW_START_PSN, START + 1)
    assert script.give(new[0])[0].is_ack
    assert script.give(old[3]) == []  # PSN START + 3 is packet 2 now
    for packet in new[1:]:
        (answer,) = script.give(packet)
        assert answer.is_ack
    assert answer.cack_psn == START + 4
    assert script.memory[:4] == octets


def test_a_syn_packet_that_contradicts_its_pdc_is_invalid() -> None:
    script = Script()
    own = script.establish_target()
    (nack,) = script.give(rud(START + 5, syn=4) / write(b"x"))
    assert (nack.nack, nack.spdcid) == (NackCode.INVALID_SYN, own)
    assert script.memory[0] == 0


@pytest.mark.conformance("C-046")
def test_a_target_that_never_agrees_to_a_start_is_given_up() -> None:
    """Each NEW_START_PSN has everything sent again: it must not go on for ever.

    But it is no refusal that Max_NACK_Retx_Cnt counts.
    """
    script = Script(max_nack_retx_cnt=0)
    script.post(b"x")
    (request,) = script.take()
    for k in range(200):
        again = script.give(
            refusal(request, code=NackCode.NEW_START_PSN, payload_word=70_000 + k * 5_000, spdcid=0)
        )
        if not again:
            break
        (request,) = again
    assert k == MOST_RENUMBERINGS
    assert [c.error for c in script.completions] == ["NEW_START_PSN"]
    assert script.pdcs == []


# -- secure domains -------------------------------------------------------------------------------


def test_one_domain_that_takes_clear_nacks_does_not_speak_for_another() -> None:
    lax = replace(DOMAINS[1], accept_clear=True)
    script = SecureScript(domains=(DOMAINS[0], lax))
    script.post(b"x", context="kept")
    (request,) = script.take()
    nack = refusal(request, code=NackCode.INV_DPDCID, spdcid=0)
    assert script.give_frame(script.frame(nack, sdi=None)) == []
    assert script.completions == []
    assert len(script.pdcs) == 1


def test_the_domain_of_idempotent_requests_decides_about_their_nacks() -> None:
    lax = replace(DOMAINS[1], accept_clear=True)
    script = SecureScript(domains=(DOMAINS[0], lax), max_nack_retx_cnt=0)
    script.post(b"x", delivery="rudi", key=KEY | 1 << 63)
    (request,) = script.take()
    nack = refusal(psn=request.pkt_id, code=NackCode.NO_RESOURCE, nt=1, spdcid=0)
    script.give_frame(script.frame(nack, sdi=None))
    assert script.completions == []


def test_half_open_pdcs_of_two_domains_are_not_one() -> None:
    script = SecureScript(secure_start="1rtt")
    (nack,) = script.give(opening(START))
    frame = script.frame(opening(nack.payload_word), sdi=OTHER)
    script.fep.receive([memoryview(frame)], script.now)
    (answer,) = script.take()
    assert answer.nack is NackCode.NEW_START_PSN
    (answer,) = script.give(opening(nack.payload_word))
    assert answer.is_ack


def test_a_secured_endpoint_says_nothing_in_clear_about_trimmed_packets() -> None:
    script = SecureScript()
    frame = script.frame(rud(START, syn=0) / write(b"x" * 100), sdi=None, dscp=4)
    script.fep.receive([memoryview(frame)], script.now)
    assert script.fep.transmit(script.now, 16) == []
    assert script.counters["tss_clear_refused"] == 1


@pytest.mark.parametrize("named", [True, False])
def test_a_client_cannot_speak_as_another_client(named: bool) -> None:
    """Its own key opens its own packets only, whichever source address they carry."""
    here, victim = "10.0.0.1", "10.0.0.2"
    ssi = 7 if named else int.from_bytes(bytes([10, 0, 0, 1]), "big")
    clients = {here: ssi, victim: 8} if named else {}
    domain = SecureDomain(sdi=SDI, mode="server", keys={0: bytes(range(32))}, clients=clients)
    server = SecureRecords(domain)
    key = provision_client(domain, 0, ssi.to_bytes(4, "big"))
    client = SecureRecords(SecureDomain(sdi=SDI, mode="client", keys={0: key}, ssi=ssi))
    honest = sealed_frame(client, HEADER, source=here, destination="10.0.0.9")
    forged = sealed_frame(client, HEADER, source=victim, destination="10.0.0.9")
    if named:
        assert opened(server, honest) == HEADER
    assert isinstance(opened(server, forged), str)


# -- what a peer can make grow --------------------------------------------------------------------


def test_what_is_resent_over_and_over_is_remembered_once() -> None:
    window = SendWindow(START)
    window.next = START + 8
    inference = LossInference(window, START, one_path=False)
    for _ in range(1_000):
        inference.sent_again(START)
    assert len(inference._again) == 1  # noqa: SLF001  memory alone


def test_only_the_last_retransmission_is_judged() -> None:
    """A packet sent again twice is not lost for what left between the two."""
    window = SendWindow(START)
    window.next = START + 8
    inference = LossInference(window, START, one_path=True)
    inference.arrived(START + 7)
    assert inference.lost(0) == [START, START + 1, START + 2]
    for psn in range(START + 1, START + 24):
        window.sacked(psn, 1)
        window.finish(psn) if psn < START + 8 else None
    inference.sent_again(START)
    window.next = START + 16
    inference.sent_again(START)
    inference.arrived(START + 15)
    assert START not in inference.lost(0)
    window.next = START + 24
    inference.arrived(START + 23)
    assert START in inference.lost(0)


@pytest.mark.conformance("C-182")
def test_a_packet_that_may_be_on_a_slow_path_is_not_lost() -> None:
    """However many newer ones are here: it must have left before the slowest of late would have."""
    window = SendWindow(START)
    window.next = START + 100
    inference = LossInference(window, START, one_path=False)
    inference.arrived(START + 99)
    sent_at = [0] * 1_024
    for n in range(100):
        sent_at[(START + n) % 1_024] = 10 * n
    assert inference.lost(50, sent_at, 25) == [START, START + 1, START + 2]
    assert inference.lost(50, sent_at, 25) == []
    assert inference.lost(50, sent_at, 45) == [START + 3, START + 4]
    assert len(inference.lost(50, sent_at, 10_000)) == 45
    assert inference.lost(50, sent_at, 10_000) == []


def test_a_negotiation_is_answered_once() -> None:
    script = Script()
    own = script.establish_target()
    packet = control(ControlType.NEGOTIATION, START + 1, dpdcid=own, ar=1, payload_word=0x01020000)
    seen = script.give(packet / b"\0\0\0\1")
    assert [s.control for s in seen if s.name == "cp"] == [ControlType.NEGOTIATION]
    packet.retx = 1
    seen = script.give(packet / b"\0\0\0\1")
    assert [s.name for s in seen] == ["ack_cc"]


def test_a_peer_cannot_have_more_control_packets_open_than_there_are_records() -> None:
    script = Script()
    own = script.establish_target()
    for k in range(1_500):
        packet = control(
            ControlType.NEGOTIATION, START + 1 + k, dpdcid=own, ar=0, payload_word=0x01020000
        )
        script.fep.receive([memoryview(script.frame(packet / b"\0\0\0\1"))], script.now)
    assert script.pdc.source.window.outstanding <= 1_024


def test_to_clear_one_response_of_many_costs_no_look_at_the_others() -> None:
    class Counting(dict[int, object]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            self.looks += len(self)
            return super().__iter__()

    script = Script()
    semantics = StubSemantics(script, {START + k: guaranteed() for k in range(1, 600)})
    own = script.establish_target()
    for k in range(1, 600):
        script.fep.receive(
            [memoryview(script.frame(rud(START + k, dpdcid=own) / write(b"x")))], script.now
        )
    script.take(1_024)
    destination = script.pdc.destination
    kept = destination.stored = Counting(destination.stored)  # type: ignore[assignment]
    assert len(kept) == 599
    for k in range(1, 11):
        script.give(rud(START + 600 + k, dpdcid=own, clear=START + k) / write(b"x"))
    assert min(kept) == START + 11
    assert isinstance(kept, Counting)
    assert kept.looks <= 600  # those of min()
    assert len(semantics.psns) == 610


@pytest.mark.parametrize("dscp", [0, 46, 64])
def test_the_code_point_of_trimmed_packets_is_nobody_elses(dscp: int) -> None:
    """Otherwise every packet would count as trimmed, and none be taken."""
    for name in ("dscp_trimmed", "dscp_trimmed_lasthop"):
        with pytest.raises(ConfigurationError, match=name):
            endpoint(HERE, **{name: dscp})


# -- lives ----------------------------------------------------------------------------------------


def test_a_failed_pdc_closes_although_data_came_before_its_close() -> None:
    """The lock of a read was taken off when the PDC failed, and must not be taken off twice."""
    script = Script(seed=3)
    script.establish_initiator()
    memory = bytearray(2 * MTU)
    script.fep.post(
        ReadRequest(peer=THERE, key=KEY, offset=0, memory=memoryview(memory)[:100], context="read")
    )
    (request,) = script.take()
    script.give(ack(request))
    script.post(b"x", context="write")
    (other,) = script.take()
    pdc = script.pdc
    nack = script.frame(refusal(other, code=NackCode.GTD_RESP_UNAVAIL))
    back = script.frame(
        rud(request.psn, dpdcid=request.spdcid, spdcid=TARGET, ar=1)
        / data(bytes(100), of=request.ses.message_id)
    )
    script.fep.receive([memoryview(nack), memoryview(back)], script.now)
    seen = script.take()
    assert ControlType.CLOSE_CMD in [s.control for s in seen if s.name == "cp"]
    script.wait(500 * MS)
    assert pdc not in script.pdcs


def test_nothing_is_written_to_a_region_that_was_taken_back() -> None:
    script = Script()
    own = script.establish_target()
    script.give(rud(START + 1, dpdcid=own, ar=1) / write(b"aa", at=0, total=4))
    script.fep.unregister(KEY)
    (answer,) = script.give(rud(START + 2, dpdcid=own, ar=1) / write(b"bb", at=2, total=4))
    assert answer.answer is not None
    assert answer.answer.name == "BAD_MKEY"
    assert script.memory[:4] == b"aa\0\0"


def test_an_address_may_be_spelled_in_any_way() -> None:
    """A deferred send begins again, and a directed receive matches, whatever the spelling."""
    feps = {a: endpoint(a, seed=k, deferrable_threshold=1) for k, a in enumerate(list(MACS6)[:2])}
    network = Network(feps, random.Random(1))
    here, there = feps
    feps[here].post(
        SendRequest(
            peer=there.replace("::", ":0:0:0:0:0:0:"), payload=memoryview(b"abc"), context="s"
        )
    )
    network.run(lambda: False, horizon_ns=10 * MS)
    memory = bytearray(3)
    feps[there].post_receive(
        ReceiveRequest(
            memory=memoryview(memory), peer=here.replace("::", ":0:0:0:0:0:0:"), context="r"
        )
    )
    network.run(lambda: bool(network.completions[here]))
    assert [c.error for c in network.completions[here]] == [None]
    assert memory == b"abc"
