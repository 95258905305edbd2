"""Receiver credit in the whole endpoint: what leaves before there is any, and what is forgotten."""

from typing import Any

import pytest

from tests.harness.uet.script import MTU, TARGET, US, Script, Seen, control, refusal
from tests.harness.uet.script import ack as acknowledge
from uet.wire.codes import ControlType, NackCode

RTT = 4 * US
PATH: dict[str, Any] = {"cc": "rccc", "base_rtt": RTT, "link_rate": 100 * 10**9}


def flight(**parameters: Any) -> tuple[Script, list[Seen]]:
    """A new endpoint with much to send, and all that leaves on trust."""
    script = Script(**PATH, **parameters)
    script.post(bytes(200 * MTU))
    return script, script.take()


def requests(seen: list[Seen]) -> list[Seen]:
    """Return the requests that carry data and ask for credit."""
    return [p for p in seen if p.name == "req_cc_state"]


def sent(seen: list[Seen]) -> list[int]:
    """The PSNs of :func:`requests`."""
    return [p.psn for p in requests(seen)]


@pytest.mark.conformance("C-180")
def test_only_the_oldest_packet_asks_before_a_peer_is_known() -> None:
    """Once in a round trip, however many are refused: all the others wait for credit."""
    script, packets = flight()
    assert len(packets) > 50
    leaving: list[int] = []
    for packet in packets:
        leaving += sent(script.give(refusal(packet, code=NackCode.TRIMMED, spdcid=0)))
    assert leaving == []
    first = packets[0].psn
    (again,) = script.wait(RTT)
    assert (again.psn, again.retx, again.syn) == (first, 1, 1)
    assert script.wait(RTT - 1) == []
    assert script.give(refusal(again, code=NackCode.TRIMMED, spdcid=0)) == []
    assert sent(script.wait(RTT)) == [first]


@pytest.mark.conformance("C-180")
def test_what_asked_in_vain_is_not_owed() -> None:
    """Refused for many round trips, it has all of the first credit for what is left to send."""
    script, packets = flight()
    for packet in packets:
        script.give(refusal(packet, code=NackCode.TRIMMED, spdcid=0))
    for _ in range(20):
        (asking,) = requests(script.wait(RTT))
        script.give(refusal(asking, code=NackCode.TRIMMED, spdcid=0))
    (asking,) = requests(script.wait(RTT))
    script.give(acknowledge(asking, retx=1))
    source = script.pdc.peer.congestion.credit
    assert source is not None
    assert source.credit == -(len(asking.payload) + 8 + 12 + 4 + 44 + 40)
    grant = control(
        ControlType.CREDIT, 0, dpdcid=asking.spdcid, spdcid=TARGET, payload_word=4 * 8
    )  # fmt: skip
    assert len(sent(script.give(grant))) > 4


def test_a_second_pdc_asks_with_its_first_packet_too() -> None:
    """A new PDC has no window on trust where its context has one already, and has used it up."""
    script, packets = flight()
    script.now += RTT
    script.give(acknowledge(packets[-1]))
    script.wait(2 * RTT)
    script.post(bytes(10 * MTU), delivery="rod")
    ordered = requests(script.wait(2 * RTT))
    assert [(p.psn_offset, p.syn) for p in ordered] == [(0, 1)]


def test_who_waits_for_credit_does_not_ask_about_its_tail() -> None:
    """Nothing is in flight: silence says nothing of packets that the peer has refused."""
    script, packets = flight(tail_loss_time=10 * RTT, rto_init_time=100 * RTT)
    script.give(acknowledge(packets[0], cack=packets[0].psn))
    for packet in packets[1:]:
        script.give(refusal(packet, code=NackCode.TRIMMED))
    kinds = {p.control for p in script.wait(40 * RTT)}
    assert kinds == {ControlType.CREDIT_REQ}
    assert "tx_tail_loss_probes" not in script.counters


def test_what_is_answered_waits_no_more() -> None:
    """A refused packet that had arrived after all: its context asks for no credit for it."""
    script, packets = flight()
    congestion = script.pdc.peer.congestion
    script.pdc.source.messages.take_back()
    message = script.pdc.source.messages.current
    assert message is not None
    message.packets = message.sent  # nothing follows
    script.give(acknowledge(packets[0], cack=packets[0].psn))
    script.give(refusal(packets[-1], code=NackCode.TRIMMED))
    script.take()
    assert congestion.backlog > 0
    script.give(acknowledge(packets[-1], cack=packets[-1].psn))
    assert congestion.backlog == 0
    assert congestion.next_deadline() is None
