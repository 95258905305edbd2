"""Both ends of a rendezvous send tell the same story, whatever the wire swallows (UES 3.4)."""

import pytest

from tests.harness.uet.exchange import Exchange, Wire
from tests.harness.uet.network import destination
from uet.transport import ReceiveRequest, SendRequest
from uet.wire.codes import ACK_TYPES, REQUEST_TYPES

_UET = 42


@pytest.mark.parametrize("delivery", ["rud", "rod"])
@pytest.mark.parametrize("lost", ["acks", "data"])
def test_one_direction_fails_while_the_rest_is_read(lost: str, delivery: str) -> None:
    """Without the ACKs of its READ the receiver has the data, and without the data it has none."""
    exchange = Exchange(Wire(), 1, max_rto_retx_cnt=2)
    sender, receiver = exchange.sides
    swallowed = ACK_TYPES if lost == "acks" else REQUEST_TYPES
    fetching = False

    def swallow(frame: bytes, now: int) -> list[bytes]:
        nonlocal fetching
        kind = frame[_UET] >> 3
        if destination(frame) == sender.address:
            fetching = fetching or kind in REQUEST_TYPES  # the READ
        elif fetching and kind in swallowed:
            return []
        return [frame]

    exchange.network.tap = swallow
    data, memory = exchange.data(9_000), bytearray(9_000)
    receiver.fep.post_receive(ReceiveRequest(memory=memoryview(memory), tag=7, context="received"))
    sender.fep.post(
        SendRequest(
            peer=sender.peer, payload=memoryview(data), tag=7, protocol="rendezvous",
            delivery=delivery, context="sent",
        )
    )  # fmt: skip
    exchange.network.settle()
    assert fetching
    errors = {
        completion.context: completion.error
        for side in exchange.sides
        for completion in exchange.network.completions[side.address]
    }
    assert errors.keys() == {"received", "sent"}
    if lost == "acks":
        assert errors == {"received": None, "sent": None}
        assert memory == data
    else:
        assert None not in errors.values()
