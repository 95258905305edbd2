"""PSNs of a peer from anywhere in the number space: what is not in flight changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.uet.invariants import check
from tests.harness.uet.script import (
    INITIATOR,
    MTU,
    START,
    TARGET,
    Script,
    ack,
    control,
    refusal,
    rud,
    write,
)
from uet.pds.window import MASK
from uet.wire.codes import ControlType, NackCode

HALF = 1 << 31
#: How far it lies behind the next PSN, all round the number space.
FAR = [
    *(ahead & MASK for ahead in (1, 2, 64, 1 << 15, 1 << 16, 1 << 17)),
    *(HALF + near for near in range(-3, 4)),
    HALF - (1 << 16),
    HALF + (1 << 16),
    *(-behind & MASK for behind in ((1 << 16) + 1, 1 << 17, 1 << 24)),
]


def target() -> tuple[Script, int]:
    """One that has never sent a request."""
    script = Script()
    script.establish_target()
    return script, INITIATOR


def idle() -> tuple[Script, int]:
    """One whose requests are all answered."""
    script = Script()
    script.establish_initiator()
    return script, TARGET


def busy() -> tuple[Script, int]:
    """One with packets in flight."""
    script = Script()
    script.establish_initiator()
    script.post(bytes(5 * MTU), context="served")
    script.take()
    return script, TARGET


@pytest.mark.conformance("C-039")
@pytest.mark.parametrize("made", [target, idle, busy])
def test_what_is_not_in_flight_changes_nothing(made: Callable[[], tuple[Script, int]]) -> None:
    script, peer = made()
    pdc = script.pdc
    requests, window, there = pdc.source.requests, pdc.source.window, pdc.destination.window
    own: dict[str, Any] = {"dpdcid": pdc.id, "spdcid": peer}

    def state() -> tuple[object, ...]:
        return (
            window.base, window.next, window.done, window.delivered, list(requests.size),
            requests.max_cack, requests.peer_range, len(requests.retransmit),
            there.base, there.max_clear, there.received,
        )  # fmt: skip

    before = state()
    for far in FAR:
        psn, early = (window.next + far) & MASK, (there.base + far) & MASK
        for packet in (
            ack(psn=psn, mpr=1, **own),
            ack(psn=psn, mpr=1, sack=((psn - 40) & MASK, (1 << 64) - 1), **own),
            ack(psn=(psn - 1) & MASK, cack=psn, **own),
            ack(psn=psn, p=1, code=None, **own),
            refusal(code=NackCode.TRIMMED, psn=psn, **own),
            refusal(code=NackCode.PSN_OOR_WINDOW, psn=psn, **own),
            control(ControlType.CLEAR_CMD, 0, payload_word=early, **own),
            control(ControlType.ACK_REQ, early, **own),
        ):
            script.give(packet)
            assert state() == before, (far, packet.summary())
    assert script.counters["rx_drop_ack_of_unsent"] == 3 * len(FAR)
    check(script.fep, script.now)
    if made is target:
        request = rud(START + 1, dpdcid=pdc.id, ar=1) / write(b"served", message_id=3)
        (answer,) = script.give(request)
        assert answer.cack_psn == START + 1
    else:
        if made is idle:
            script.post(b"served", context="served")
            script.take()
        script.give(ack(psn=window.next - 1, **own))
        assert script.completions[-1].context == "served"
