"""PAUSE frames by priority, octet by octet (IEEE 802.1Q 36, IEEE 802.3 31B)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.dataplane.switch.pfc.headroom import (
    allowance_ns,
    device_ns,
    headroom_bytes,
    reaction_ns,
)
from emulator.dataplane.switch.pfc.pause_frame import (
    DESTINATION,
    FRAME_OCTETS,
    LONGEST,
    duration_ns,
    frame,
    quanta,
)

G = 10**9
SOURCE = bytes.fromhex("020000000001")
#: Class 3 for as long as can be said.
GOLDEN = bytes.fromhex(
    "0180c2000001020000000001880801010008000000000000ffff0000000000000000"
    "0000000000000000000000000000000000000000000000000000"
)


@pytest.mark.conformance("R-043")
def test_the_frame_octet_by_octet() -> None:
    assert len(GOLDEN) == FRAME_OCTETS
    assert frame(SOURCE, {3: LONGEST}) == GOLDEN
    assert quanta(GOLDEN[:6], GOLDEN[14:]) == {3: LONGEST}


@pytest.mark.conformance("R-043")
@given(st.dictionaries(st.integers(0, 7), st.integers(0, LONGEST)))
def test_classes_that_are_not_meant_are_not_in_it(times: dict[int, int]) -> None:
    octets = frame(SOURCE, times)
    assert len(octets) == FRAME_OCTETS
    assert quanta(octets[:6], octets[14:]) == times


@pytest.mark.conformance("R-043")
def test_xon_is_a_time_of_nothing() -> None:
    assert quanta(DESTINATION, frame(SOURCE, {0: 0})[14:]) == {0: 0}


def test_other_mac_control_is_no_pause_by_priority() -> None:
    whole_link = bytes.fromhex("0001ffff").ljust(46, b"\0")  # IEEE 802.3 annex 31B
    assert quanta(DESTINATION, whole_link) is None
    assert quanta(b"\xff" * 6, GOLDEN[14:]) is None


@pytest.mark.parametrize(
    ("rate", "longest_us"),
    [(G, 33_553.92), (10 * G, 3_355.392), (100 * G, 335.5392), (400 * G, 83.8848)],
)
def test_quanta_are_512_bit_times(rate: int, longest_us: float) -> None:
    assert duration_ns(LONGEST, rate) == pytest.approx(longest_us * 1000, abs=1)
    assert duration_ns(0, rate) == 0
    assert duration_ns(1, rate) == -(-512 * G // rate)


@pytest.mark.parametrize(
    ("rate", "metres", "kilobytes"),
    [(10, 100, 20.7), (40, 100, 32.2), (100, 5, 70.1), (100, 100, 82.0), (100, 300, 107)],
)
def test_headroom_of_usual_links(rate: int, metres: int, kilobytes: float) -> None:
    """5 ns a metre; frames of 9216 octets, lossless ones of 4200, check sequence included."""
    room = headroom_bytes(rate * G, 5 * metres, 9216 - 18, lossless_mtu=4200 - 18)
    assert room / 1000 == pytest.approx(kilobytes, rel=0.005)


def test_headroom_covers_what_the_emulator_lets_pass() -> None:
    for rate in (G, 25 * G, 50 * G, 200 * G, 400 * G, 800 * G):
        for delay in (0, 300, 5_000):
            for response in (0, device_ns(rate), 20_000):
                late = reaction_ns(delay, response_ns=response) + allowance_ns(rate, 9_000)
                passing = rate * late / 8e9 + 9_038
                assert headroom_bytes(rate, delay, 9_000, response_ns=response) >= passing
