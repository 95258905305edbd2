"""Ranges of octets against plain sets."""

from hypothesis import given
from hypothesis import strategies as st

from uet.ses.octet_ranges import OctetRanges

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=30)


@given(RANGES, st.integers(0, 70), st.integers(0, 20))
def test_added_octets_are_covered(pieces: list[tuple[int, int]], at: int, length: int) -> None:
    ranges, there = OctetRanges(), set[int]()
    for start, octets in pieces:
        ranges.add(start, start + octets)
        there.update(range(start, start + octets))
    assert ranges.covers(at, at + length) == (set(range(at, at + length)) <= there)


@given(RANGES)
def test_octets_are_placed_once(pieces: list[tuple[int, int]]) -> None:
    ranges, there = OctetRanges(), set[int]()
    for start, octets in pieces:
        if not octets:
            continue
        new = set(range(start, start + octets))
        assert ranges.place(start, start + octets, most_gaps=100) == (not new & there)
        if not new & there:
            there |= new
        assert all(ranges.covers(octet, octet + 1) == (octet in there) for octet in range(80))


def test_no_more_gaps_than_allowed() -> None:
    ranges = OctetRanges()
    assert [ranges.place(10 * n, 10 * n + 1, most_gaps=2) for n in range(5)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert ranges.place(1, 10, most_gaps=2)  # closes a gap


def test_one_set_includes_another() -> None:
    one, other = OctetRanges(), OctetRanges()
    one.add(0, 4)
    other.add(4, 8)
    one.include(other)
    assert one.covers(0, 8)
    assert not other.covers(0, 8)
