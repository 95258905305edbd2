"""What transports did not decide, below a table: waits for timers and windows, needless repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

Row = Mapping[str, object]


def resent_lines(rows: Sequence[Row], name: Callable[[Row], str | None]) -> Iterator[str]:
    """Yield a sentence on each row that waited for retry timers, and one on needless repeats.

    ``name`` returns the transport and seed of a row, where they differ between rows.
    """
    for row in rows:
        if waited := _number(row, "rto_wait_us"):
            took = _number(row, "time_us")
            yield (
                f"{_what(row, name)}: an endpoint waited {waited:.1f} us for its retry timer, "
                f"{100 * waited / took:.0f} % of the {took:.1f} us"
            )
    worst = max(rows, key=_needless, default=None)
    if worst is not None and _needless(worst) > 0:
        again, lost = round(_number(worst, "retransmitted_packets")), _lost(worst)
        yield f"WARNING: {_what(worst, name)}: {again} packets were sent again and {lost} were lost"


def held_line(rows: Sequence[Row], parameters: Mapping[str, object]) -> str | None:
    """Return a sentence on ``in_flight``, where it held writes of a row back."""
    held = max((_number(row, "held_writes") for row in rows), default=0)
    if not held:
        return None
    most = f"{parameters.get('in_flight')} writes of {parameters.get('message')} B"
    return (
        f"in_flight binds: flows have at most {most} under way, and {held:.0f} more wait for an "
        "earlier one's acknowledgement: a window beside the transport's; in_flight= raises it"
    )


def _needless(row: Row) -> int:
    return round(_number(row, "retransmitted_packets")) - _lost(row)


def _lost(row: Row) -> int:
    """Return the frames that switches, cables and faults took."""
    faults = row.get("lost_packets")
    taken = sum(faults.values()) if isinstance(faults, Mapping) else 0
    return round(_number(row, "frames_lost")) + taken


def _number(row: Row, key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _what(row: Row, name: Callable[[Row], str | None]) -> str:
    transport = name(row)
    what = f"{row['collective']} {row['size_bytes']} B"
    return f"{transport}, {what}" if transport else what
