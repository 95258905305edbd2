"""Lines below a table on what held transports back, and on needless repeats."""

from __future__ import annotations

from emulator.run.report.footers import held_line, resent_lines

ROW = {
    "collective": "incast", "size_bytes": 1024, "time_us": 200.0, "frames_lost": 0,
    "retransmitted_packets": 0, "rto_wait_us": 0.0, "held_writes": 0,
}  # fmt: skip


def lines(*rows: dict[str, object]) -> list[str]:
    return list(resent_lines(rows, lambda row: None))


def test_a_row_that_waited_for_nothing_has_no_line() -> None:
    assert lines(ROW) == []
    assert held_line([ROW], {"in_flight": 128, "message": 65536}) is None


def test_the_share_of_a_timer_is_told() -> None:
    assert lines({**ROW, "rto_wait_us": 50.0}) == [
        "incast 1024 B: an endpoint waited 50.0 us for its retry timer, 25 % of the 200.0 us"
    ]


def test_repeats_beyond_what_was_lost_are_told_of_the_worst_row() -> None:
    fair = {**ROW, "retransmitted_packets": 9, "frames_lost": 3, "lost_packets": {"in_queue": 6}}
    worse = {**fair, "retransmitted_packets": 12}
    assert lines(fair) == []
    assert lines(fair, worse) == [
        "WARNING: incast 1024 B: 12 packets were sent again and 9 were lost"
    ]


def test_a_window_that_binds_is_told() -> None:
    line = held_line([ROW, {**ROW, "held_writes": 48}], {"in_flight": 16, "message": 32768})
    assert line is not None
    assert "at most 16 writes of 32768 B under way, and 48 more wait" in line
