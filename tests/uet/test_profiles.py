"""Test what each profile lets an endpoint ask for, and do for others (UES 2.2)."""

import re
from itertools import combinations
from typing import Any, Final

import pytest

from tests.harness.uet.exchange import KEY, WIRES, Exchange, Posted, Side, check_nothing_is_left
from tests.harness.uet.operations import (
    Operation,
    atomic,
    compare_and_swap,
    datagram,
    deferrable,
    fetch,
    no_operation,
    read_large,
    read_small,
    rendezvous,
    send,
    tagged,
    write,
    write_header_data,
)
from uet.config import FepConfig
from uet.config_checks import ConfigurationError
from uet.profiles import PROFILES, FepCapability, capabilities
from uet.ses.initiator.requests import MessageError
from uet.ses.resources import ResourceError
from uet.transport import ReceiveRequest, SendRequest, WriteRequest
from uet.wire.codes import Opcode
from uet.wire.frame import decode_frame

BASE, FULL, HPC = "ai_base", "ai_full", "hpc"
EVERYBODY: Final = frozenset({BASE, FULL, HPC})
#: Who may post an operation, by itself; and the capability that others are told to lack.
MAY: Final[dict[tuple[Operation, str], tuple[frozenset[str], str]]] = {
    (write, "rud"): (EVERYBODY, ""),
    (write, "rod"): (EVERYBODY, ""),
    (write_header_data, "rud"): (EVERYBODY, ""),
    (send, "rud"): (EVERYBODY, ""),
    (send, "rod"): (EVERYBODY, ""),
    (datagram, "uud"): (EVERYBODY, ""),
    (no_operation, "rud"): (EVERYBODY, ""),
    (atomic, "rud"): (EVERYBODY, ""),
    (read_small, "rud"): (frozenset({FULL, HPC}), "READ"),
    (read_large, "rod"): (frozenset({FULL, HPC}), "READ"),
    (fetch, "rud"): (frozenset({FULL, HPC}), "FETCHING_ATOMIC"),
    (compare_and_swap, "rod"): (frozenset({FULL, HPC}), "FETCHING_ATOMIC"),
    (tagged, "rud"): (frozenset({FULL, HPC}), "TAGGED_SEND"),
    (deferrable, "rud"): (frozenset({FULL}), "DEFERRABLE"),
    (rendezvous, "rud"): (frozenset({HPC}), "RENDEZVOUS"),
    (write, "rudi"): (frozenset({HPC}), "RUDI"),
    (read_large, "rudi"): (frozenset({HPC}), "RUDI"),
}
EVERY_SET: Final = [
    frozenset(some) for count in (1, 2, 3) for some in combinations(sorted(EVERYBODY), count)
]


def named(profiles: frozenset[str]) -> str:
    return "+".join(sorted(profiles))


def an_exchange(mine: frozenset[str], theirs: frozenset[str], **more: Any) -> Exchange:
    return Exchange(
        WIRES["loss"],
        3,
        first={"profiles": tuple(sorted(mine))},
        second={"profiles": tuple(sorted(theirs))},
        **more,
    )


def is_one_sentence(text: str) -> bool:
    return "\n" not in text and not re.search(r"\.\s|\.$", text)


# -- as initiator --------------------------------------------------------------------------------


@pytest.mark.conformance("C-208")
@pytest.mark.parametrize("profiles", EVERY_SET, ids=named)
@pytest.mark.parametrize("asked", MAY, ids=lambda asked: f"{asked[0].__name__}-{asked[1]}")
def test_what_may_be_posted(asked: tuple[Operation, str], profiles: frozenset[str]) -> None:
    """Two profiles together may what either may.  All else is refused before anything leaves."""
    operation, delivery = asked
    allowed, lacking = MAY[asked]
    exchange = an_exchange(profiles, EVERYBODY)
    side = exchange.sides[0]
    if profiles & allowed:
        operation(exchange, side, delivery)
        exchange.prove()
        return
    with pytest.raises(MessageError) as caught:
        operation(exchange, side, delivery)
    sentence = str(caught.value)
    # AI Base lacks tags too, which is said first.
    assert lacking in sentence or (profiles == {BASE} and "TAGGED_SEND" in sentence)
    assert all(profile in sentence for profile in profiles)
    assert is_one_sentence(sentence)
    assert side.fep.transmit(0, 64) == []
    assert side.fep.initiator.open_messages == 0
    assert len(side.fep.initiator.peer_handles) == 0
    assert side.fep.completions() == []


def test_a_threshold_beyond_the_profile_means_a_plain_send() -> None:
    """What was not asked for by name is not refused, but sent as the profile can."""
    for profile, opcode in (
        (BASE, Opcode.SEND),
        (FULL, Opcode.DEFERRABLE_SEND),
        (HPC, Opcode.SEND),
    ):
        exchange = an_exchange(
            frozenset({profile}), EVERYBODY, deferrable_threshold=100, ecn_capable=False
        )
        exchange.network.keep = True
        side, there = exchange.sides
        data = exchange.data(5_000)
        posted = exchange.receive(there, 5_000)
        exchange.post(side, SendRequest, payload=memoryview(data))
        exchange.prove()
        assert posted.message == data
        assert opcodes(exchange, side) == {opcode}


def opcodes(exchange: Exchange, side: Side) -> set[int]:
    """Return the opcodes of the requests that ``side`` has sent."""
    found = set()
    for frame in exchange.network.sent:
        decoded = decode_frame(frame, crc="off")
        for layer in decoded.layers:
            kind, _, name = layer.name.partition(".")
            if kind == "ses" and "response" not in name and layer.header is not None:
                values = dict(zip(layer.header.names, layer.values, strict=True))
                if decoded.envelope.source == side.address:
                    found.add(values["opcode"])
    return found


# -- as target -----------------------------------------------------------------------------------


@pytest.mark.conformance("C-208")
@pytest.mark.parametrize("profile", sorted(EVERYBODY))
@pytest.mark.parametrize("asked", MAY, ids=lambda asked: f"{asked[0].__name__}-{asked[1]}")
def test_what_is_carried_out(asked: tuple[Operation, str], profile: str) -> None:
    """All else is answered UNSUPPORTED_OP, every time, and touches nothing."""
    operation, delivery = asked
    allowed, _ = MAY[asked]
    if operation is deferrable:
        allowed = frozenset({FULL, HPC})  # as a plain tagged send
    tagged_receives = operation in (tagged, deferrable, rendezvous)
    exchange = an_exchange(EVERYBODY, frozenset({profile}))
    side, there = exchange.sides
    if profile in allowed:
        operation(exchange, side, delivery)
        exchange.prove()
        return
    if tagged_receives and profile == BASE:
        for length in (0, 10, 3_000):
            exchange.post(
                side, SendRequest, payload=memoryview(bytes(length)), tag=7, protocol="eager"
            )
    else:
        operation(exchange, side, delivery)
    before = bytes(there.region)
    done = exchange.network.completions
    assert exchange.network.run(lambda: len(done[side.address]) == side.expected.total())
    exchange.network.settle()
    assert len(done[side.address]) == side.expected.total()
    assert done[there.address] == [] or operation is rendezvous
    for completion in done[side.address]:
        # An empty message has nothing to be read later, and goes as a plain one.
        plain = operation is rendezvous and profile == FULL and not completion.length
        assert completion.error == (None if plain else "UNSUPPORTED_OP")
    assert there.region == before
    assert there.fep.counters()["rx_requests_refused"] > 0
    check_nothing_is_left(side)
    exchange.close()


@pytest.mark.conformance("C-208")
@pytest.mark.parametrize("profile", sorted(EVERYBODY))
@pytest.mark.parametrize("unexpected", ["refuse", "keep"])
@pytest.mark.parametrize("late", [False, True])
def test_a_deferrable_send_without_the_capability_is_a_plain_one(
    profile: str, unexpected: str, late: bool
) -> None:
    """Matched, kept or refused like any other; with it, the message waits at its initiator."""
    exchange = an_exchange(frozenset({FULL}), frozenset({profile}), unexpected=unexpected)
    exchange.network.keep = True
    side, there = exchange.sides
    sent = [exchange.data(3_000) for _ in range(3)]
    posted: list[Posted] = []

    def post() -> None:
        posted.extend(exchange.receive(there, 3_000) for _ in sent)

    if late:
        exchange.later.append(post)
    else:
        post()
    for data in sent:
        exchange.post(side, SendRequest, payload=memoryview(data), protocol="deferrable")
    exchange.prove()
    assert sorted(receive.message for receive in posted) == sorted(sent)
    assert opcodes(exchange, side) == {Opcode.DEFERRABLE_SEND}
    waited = late and profile == FULL
    assert (Opcode.DEFERRABLE_RTR in opcodes(exchange, there)) is waited


@pytest.mark.parametrize(
    ("profiles", "receive", "lacking"),
    [
        ({BASE}, {"tag": 1}, "TAGGED_SEND"),
        ({FULL}, {"tag": 1}, None),
        ({HPC}, {"tag": 1}, None),
        ({BASE}, {"tag": 1, "ignore": 3}, "TAGGED_SEND"),
        ({FULL}, {"tag": 1, "ignore": 3}, "WILDCARD"),
        ({BASE, FULL}, {"tag": 1, "ignore": 3}, "WILDCARD"),
        ({HPC}, {"tag": 1, "ignore": 3}, None),
        ({FULL, HPC}, {"tag": 1, "ignore": 3}, None),
        ({BASE}, {}, None),
    ],
)
def test_receives(profiles: set[str], receive: dict[str, Any], lacking: str | None) -> None:
    (fep, _) = (side.fep for side in an_exchange(frozenset(profiles), EVERYBODY).sides)
    posted = ReceiveRequest(memory=memoryview(bytearray(10)), **receive)
    if lacking is None:
        fep.post_receive(posted)
        return
    with pytest.raises(ResourceError, match=lacking) as caught:
        fep.post_receive(posted)
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("mine", sorted(EVERYBODY))
@pytest.mark.parametrize("theirs", sorted(EVERYBODY))
def test_short_headers(mine: str, theirs: str) -> None:
    """Only who has the capability sends them, and who has not refuses them."""
    exchange = an_exchange(frozenset({mine}), frozenset({theirs}), optimized_headers=True)
    side = exchange.sides[0]
    exchange.post(side, WriteRequest, key=KEY, offset=0, payload=memoryview(b"short"))
    done = exchange.network.completions[side.address]
    assert exchange.network.run(lambda: bool(done))
    refused = mine != BASE and theirs == BASE
    assert [c.error for c in done] == ["UNSUPPORTED_OP" if refused else None]
    exchange.network.settle()
    exchange.close()


# -- what they are made of -----------------------------------------------------------------------


@pytest.mark.conformance("C-208")
@pytest.mark.parametrize("profiles", EVERY_SET, ids=named)
def test_two_profiles_are_their_union(profiles: frozenset[str]) -> None:
    union = FepCapability.NONE
    for profile in profiles:
        union |= PROFILES[profile]
    assert capabilities(profiles) == union
    config = FepConfig(address="10.0.1.1", mac="02:00:00:00:00:01", profiles=tuple(profiles))
    assert config.capabilities == union


def test_what_one_profile_has_over_another() -> None:
    base, full, hpc = (PROFILES[name] for name in (BASE, FULL, HPC))
    assert base == base & full == base & hpc
    assert full & ~hpc == FepCapability.DEFERRABLE
    assert hpc & ~full == (
        FepCapability.WILDCARD
        | FepCapability.RENDEZVOUS
        | FepCapability.TSEND_ATOMIC
        | FepCapability.RUDI
    )


def test_an_unknown_profile() -> None:
    with pytest.raises(ConfigurationError, match=r"'ai_max'.*ai_base, ai_full, hpc") as caught:
        FepConfig(address="10.0.1.1", mac="02:00:00:00:00:01", profiles=("ai_max",))
    assert is_one_sentence(str(caught.value))
