"""Endpoints of different revisions and manners understand each other."""

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from typing import Any, Final

import pytest

from tests.harness.nightly import nightly, nightly_beyond
from tests.harness.uet.exchange import MTU, PROTECTIONS, WIRES, Exchange, Side, begin_at
from tests.harness.uet.operations import TOGETHER, Operation, read_large, write, write_one
from uet.compatibility import REFERENCE_PROVIDER, STANDARD, Compatibility
from uet.pds.packets import SYN_RETX_TRANSFER
from uet.wire.codes import PacketType
from uet.wire.headers import ACK_CC_NSCC

SWITCHES: Final = tuple(there.name for there in fields(Compatibility))
WIRE: Final = WIRES["all_but_corruption"]
#: What a switch needs to make a difference.
PROTECTED: Final = {"epsn_in_close_ack": PROTECTIONS["tss_cluster"]}
#: Where the UET packet begins, over UDP and IPv4.
UET_AT: Final = 14 + 20 + 8
#: Wires for switches that rely on one: were an answer without guarantee lost, the next copy of the
#: request would draw plain success.
HARMLESS: Final = {"plain_unexpected_response": "reordering"}
BOTH: Final = ("first", "second", "both")
#: Switches for formats that differ, so that both ends must agree.
AGREED: Final = frozenset({"target_restart_token_first"})


def value(name: str) -> Any:
    """Return what a switch is when it is on."""
    return 2 if name == "override_mpr_zero_value" else True


def given(parameters: dict[str, Any], sides: str) -> dict[str, Any]:
    """Return the given parameters for one side, or for both."""
    names = ("first", "second") if sides == "both" else (sides,)
    return dict.fromkeys(names, parameters)


def exercise(
    exchange: Exchange, what: tuple[tuple[Operation, str], ...] = TOGETHER, *, prove: bool = True
) -> None:
    """Each side asks the other for everything."""
    asked = [(side, *each) for side in exchange.sides for each in what]
    exchange.rng.shuffle(asked)
    for side, operation, delivery in asked:
        operation(exchange, side, delivery)
    if prove:
        exchange.prove()


def of_sides() -> Iterator[object]:
    """Yield each switch with its sides; one of the three is tried at once, and all are at night."""
    for number, name in enumerate(SWITCHES):
        now = "both" if name in AGREED else BOTH[number % len(BOTH)]
        yield name, now
        yield from (nightly((name, one)) for one in BOTH if one != now and name not in AGREED)


@pytest.mark.parametrize(("name", "sides"), list(of_sides()))
def test_a_switch(name: str, sides: str) -> None:
    compatibility = Compatibility(**{name: value(name)})
    exercise(
        Exchange(
            WIRES[HARMLESS.get(name, "all_but_corruption")],
            SWITCHES.index(name),
            rod_reorder=True,
            **given({"compatibility": compatibility}, sides),
            **PROTECTED.get(name, {}),
        )
    )


#: Where one side alone has its manners, what is not left to the night.
ONE_SIDED = {("first", "plain", "refuse"), ("second", "tss_cluster", "keep")}


@pytest.mark.parametrize(
    ("sides", "protection", "unexpected"),
    [
        one if one[0] == "both" or one in ONE_SIDED else nightly(one)
        for one in product(BOTH, ["plain", "tss_cluster"], ["keep", "refuse"])
    ],
)
def test_the_reference_provider(sides: str, protection: str, unexpected: str) -> None:
    """All of its manners, in either role, in clear and secured.

    Both ends let its unsecured refusals in, as ``uetemu fep --compat`` does.
    """
    manners = REFERENCE_PROVIDER
    if sides != "both":
        manners = replace(manners, **dict.fromkeys(AGREED, False))
    protected = dict(PROTECTIONS[protection])
    if "domains" in protected:
        protected["domains"] = tuple(replace(d, accept_clear=True) for d in protected["domains"])
    exercise(
        Exchange(
            WIRE,
            BOTH.index(sides),
            rod_reorder=True,
            unexpected=unexpected,
            **given({"compatibility": manners}, sides),
            **protected,
        )
    )


#: Parameters that one side has and the other has not, or has otherwise.
DIFFERENCES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "psn_range": ({"mpr": 1}, {"mpr": 8}),
    "large_psn_range": ({"mpr": 1}, {"mpr": 255, "window_bytes": 1 << 20}),
    "ack_and_ack_cc": ({"ack_type": "ack"}, {"ack_type": "ack_cc"}),
    "ack_and_ack_ccx": ({"ack_type": "ack"}, {"ack_type": "ack_ccx"}),
    "ack_cc_and_ack_ccx": ({"ack_type": "ack_cc"}, {"ack_type": "ack_ccx"}),
    "rod_reorder": ({"rod_reorder": True}, {"rod_reorder": False}),
    "optimized_headers": ({"optimized_headers": True}, {"optimized_headers": False}),
    "windows": ({"window_bytes": 4_096}, {"window_bytes": 1 << 20}),
    "duplicates": ({"drop_network_duplicates": True}, {"drop_network_duplicates": False}),
    "loss_inference": ({"infer_loss": True}, {"infer_loss": False}),
    "every_ack": ({"ack_per_packet": True}, {"ack_gen_trigger": 32_768, "mpr": 2}),
    "inline_data": ({"max_ack_data_size": 0}, {"max_ack_data_size": 1_024}),
    "unexpected": ({"unexpected": "keep"}, {"unexpected": "refuse"}),
    "eager": ({"eager_size": 0}, {"eager_size": 8_000}),
    "clear": ({"pds_clear_time": 0}, {"pds_clear_time": 100_000_000}),
    "code_points": ({"dscp_data": 10, "dscp_control": 20}, {"ecn_capable": False}),
    # A second PDC toward four makes that side ask for one to be closed, with messages under way.
    "few_pdcs": ({"max_pdcs": 4}, {"max_pdcs": 1_000, "short_message_packets": 0}),
    "few_messages": ({"max_inbound_messages": 4}, {"max_inbound_messages": 4_096}),
    "patience": ({"rto_init_time": 100_000}, {"rto_init_time": 2_000_000}),
}


@pytest.mark.parametrize("swapped", nightly_beyond(1, [False, True]))
@pytest.mark.parametrize("name", DIFFERENCES)
def test_different_parameters(name: str, swapped: bool) -> None:
    first, second = DIFFERENCES[name][:: -1 if swapped else 1]
    both: dict[str, Any] = {} if name == "rod_reorder" else {"rod_reorder": True}
    exchange = Exchange(WIRE, 50, first=first, second=second, **both)
    for side in exchange.sides:
        # Before the first ACK each assumes of the other what it has itself, and may overrun it.
        write(exchange, side, "rud")
        write(exchange, side, "rod")
    exchange.prove(close=False)
    exercise(exchange)


@pytest.mark.parametrize("starts", [("0rtt", "1rtt"), ("1rtt", "0rtt"), ("1rtt", "1rtt")])
def test_how_secured_pdcs_begin(starts: tuple[str, str]) -> None:
    first, second = ({"secure_start": how} for how in starts)
    exercise(
        Exchange(WIRE, 3, first=first, second=second, rod_reorder=True, **PROTECTIONS["tss_direct"])
    )


# -- how revisions show -------------------------------------------------------------------------


def close_pdcs(exchange: Exchange, side: Side) -> None:
    """Close what ``side`` has initiated, while it stays open for more."""
    side.fep.table.quiesce()
    for pdc in side.fep.table.by_id.values():
        side.fep.activate(pdc)
    network = exchange.network
    assert network.run(lambda: not side.fep.table.open_initiators, horizon_ns=network.now + 10**10)
    network.run(lambda: False, horizon_ns=network.now + 10**10)


@pytest.mark.parametrize("reported", [False, True])
def test_the_expected_psn_of_a_closing_ack(reported: bool) -> None:
    """Who is told where the next secured PDC must begin has none of them refused."""
    exchange = Exchange(
        WIRES["perfect"],
        4,
        # It knows that nothing was accepted before under these keys.
        second={"compatibility": Compatibility(epsn_in_close_ack=reported), "expected_psn": 0},
        **PROTECTIONS["tss_cluster"],
    )
    side = exchange.sides[0]
    table = side.fep.table
    begins = iter((1 << 30, 1 << 20, 1 << 19))  # ever lower: by itself none would be right
    begin_at(side, lambda: next(begins))
    starts = []
    for _ in range(3):
        write(exchange, side, "rud")
        exchange.prove(close=False)
        (pdc,) = table.by_id.values()
        starts.append(pdc.start_psn)
        close_pdcs(exchange, side)
    assert starts == [1 << 30, (1 << 30) + 1, (1 << 30) + 2]
    assert side.fep.counters().get("pdcs_renumbered", 0) == (0 if reported else 2)


@pytest.mark.parametrize(
    ("first", "second", "agreed"),
    [
        (STANDARD, STANDARD, SYN_RETX_TRANSFER),
        (REFERENCE_PROVIDER, STANDARD, 0),
        (STANDARD, REFERENCE_PROVIDER, 0),
    ],
)
@pytest.mark.parametrize("ordered", [False, True])
def test_negotiation(
    first: Compatibility, second: Compatibility, agreed: int, ordered: bool
) -> None:
    """A negotiation makes a PDC and settles on what both have; requests then use that PDC."""
    exchange = Exchange(
        WIRE, 6, first={"compatibility": first}, second={"compatibility": second}, rod_reorder=True
    )
    side = exchange.sides[0]
    assert side.fep.open_pdc(side.peer, ordered=ordered, negotiate=True)
    for operation in (write, read_large):
        operation(exchange, side, "rod" if ordered else "rud")
    exchange.prove(close=False)
    for each in exchange.sides:
        (pdc,) = each.fep.table.by_id.values()
        assert (pdc.negotiated, pdc.ordered) == (agreed, ordered)
    exchange.close()


@pytest.mark.parametrize("kind", ["noop", "negotiation"])
def test_an_empty_pdc_closes(kind: str) -> None:
    exchange = Exchange(WIRE, 7)
    for side in exchange.sides:
        assert side.fep.open_pdc(side.peer, negotiate=kind == "negotiation")
    exchange.prove()


@pytest.mark.parametrize(("override", "most"), [(None, 600), (1, 128), (3, 384)])
def test_a_zero_range_means_what_its_receiver_thinks(override: int | None, most: int) -> None:
    """``mpr`` 0 says nothing, or what Override_MPR_Zero_Value says (UES 1.0.3)."""
    exchange = Exchange(
        WIRES["perfect"],
        8,
        first={"compatibility": Compatibility(override_mpr_zero_value=override)},
        window_bytes=1 << 24,
    )
    side = exchange.sides[0]
    outstanding: list[int] = []

    def without_range(frame: bytes, now: int) -> list[bytes]:
        outstanding.extend(pdc.source.window.outstanding for pdc in side.fep.table.by_id.values())
        if frame[UET_AT] >> 3 != PacketType.ACK_CC:
            return [frame]
        at = UET_AT + ACK_CC_NSCC.field("mpr").offset // 8
        return [frame[:at] + b"\0" + frame[at + 1 :]]

    exchange.network.tap = without_range
    write(exchange, side, "rud")
    exchange.prove(close=False)
    outstanding.clear()
    write_one(exchange, side, "rud", 600 * MTU)
    exchange.prove()
    assert max(outstanding) == most


def test_a_closed_pdc_is_not_made_again() -> None:
    """A copy of every frame comes once more when all is closed: nothing begins, nothing is done."""
    exchange = Exchange(WIRES["reordering"], 9, rod_reorder=True)
    exchange.network.keep = True
    exercise(exchange)
    regions = [bytes(side.region) for side in exchange.sides]
    frames = list(exchange.network.sent)
    random.Random(1).shuffle(frames)
    idempotent = (PacketType.RUDI_REQ, PacketType.RUDI_RESP)
    for frame in frames:
        if frame[UET_AT] >> 3 not in idempotent:
            exchange.network.carry(frame)
    exchange.network.run(lambda: False, horizon_ns=exchange.network.now + 10**11)
    for side, region in zip(exchange.sides, regions, strict=True):
        assert side.region == region
        assert not side.fep.table.by_id
        assert not side.fep.completions()
