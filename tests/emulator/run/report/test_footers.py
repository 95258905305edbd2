"""Lines below a table on what held transports back, and on needless repeats."""

from emulator.run.report.footers import flow_lines, held_line, resent_lines

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


def of_size(bound: int | None, value: float) -> dict[str, object]:
    shares = ("p50", "p95", "p99", "max")
    times = {f"fct_{share}_us": value for share in shares}
    return {"up_to_bytes": bound, "flows": 3, **times, **{f"slowdown_{s}": value for s in shares}}


def test_flows_of_several_sizes_have_a_table_over_seeds() -> None:
    rows = [
        {**ROW, "seed": seed, "fct_by_size": [of_size(10_000, seed), of_size(None, 9.5)]}
        for seed in (1, 2, 4)
    ]
    title, heading, small, large = flow_lines(rows, lambda row: "uet")
    assert title.startswith("Flows of row 1, uet")
    assert heading.split()[-3:] == ["p99", "from", "to"]
    assert small.split() == ["up", "to", "10,000", "B", "3", *["2.00"] * 8, "1.00", "4.00"]
    assert large.split()[:3] == ["more", "3", "9.50"]


def test_flows_of_one_size_have_none() -> None:
    row = {**ROW, "seed": 1, "fct_by_size": [of_size(10_000, 1.0)]}
    assert list(flow_lines([row, {**ROW, "seed": 1}], lambda row: None)) == []
