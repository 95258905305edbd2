"""Sentences below a table: the link layer of cables, and what transports did not decide.

That is waits for timers and windows, and needless repeats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

Row = Mapping[str, object]

_SHARES = ("p50", "p95", "p99", "max")
#: Part of a row's time from which on a last flow by itself is told.
TAIL = 0.1


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


def last_lines(rows: Sequence[Row], name: Callable[[Row], str | None]) -> Iterator[str]:
    """Yield a sentence on the last flow of each transport that was by itself for the longest part.

    A tenth of the time is worth one.
    """
    worst: dict[object, Row] = {}
    for row in rows:
        if "flows" in row and _alone(row) >= max(TAIL, _alone(worst.get(row["transport"], {}))):
            worst[row["transport"]] = row
    for row in worst.values():
        share = 100 * _number(row, "last_flow_share")
        yield (
            f"{_what(row, name)}: of {row['flows']} flows {row['last_flow']} ended "
            f"{_number(row, 'last_flow_alone_us'):.1f} us after all others, at "
            f"{_number(row, 'last_flow_us'):.1f} us; it had {share:.1f} % of its NIC's rate then, "
            f"held back by {row['last_flow_waited_for']}"
        )


def flow_lines(rows: Sequence[Row], name: Callable[[Row], str | None]) -> Iterator[str]:
    """Yield for each row with flows of several sizes a table of their times by size.

    With several seeds values are medians over them, beside the least and the most slowdown p99.
    """
    of_seeds: dict[object, list[Row]] = {}
    for row in rows:
        of_seeds.setdefault(row.get("seed"), []).append(row)
    for number, alike in enumerate(zip(*of_seeds.values(), strict=False), 1):
        by_size: dict[int, list[Mapping[str, float]]] = {}
        for row in alike:
            for one in row.get("fct_by_size") or ():
                by_size.setdefault(one["up_to_bytes"] or 0, []).append(one)
        if len(by_size) < 2:
            continue
        seeds = len(alike) > 1
        transport = name(alike[0])
        told = f"Flows of row {number}{f', {transport}' if transport else ''}"
        yield f"{told:<31} {'FCT (us)':^35} {'slowdown':^35}".rstrip()
        heads = [*_SHARES, *_SHARES, *(("p99 from", "to") if seeds else ())]
        yield f"  {'size':<20} {'flows':>8}{''.join(f'{head:>9}' for head in heads)}"
        for bound, ones in sorted(by_size.items(), key=lambda item: item[0] or math.inf):
            p99 = [one["slowdown_p99"] for one in ones]
            values = [
                *(median(one[f"fct_{share}_us"] for one in ones) for share in _SHARES),
                *(median(one[f"slowdown_{share}"] for one in ones) for share in _SHARES),
                *((min(p99), max(p99)) if seeds else ()),
            ]
            size = f"up to {bound:,} B" if bound else "more"
            count = f"{median(one['flows'] for one in ones):g}"
            yield f"  {size:<20} {count:>8}{''.join(f'{value:>9.2f}' for value in values)}"


def _alone(row: Row) -> float:
    """Return the part of its time in which a row had one flow left."""
    time = _number(row, "time_us")
    return _number(row, "last_flow_alone_us") / time if time else 0.0


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


def link_lines(row: Mapping[str, object], transport: str | None = None) -> Iterator[str]:
    """Yield a sentence on retry and credits of ``row``, if its cables have a link layer."""
    if "replays" not in row:
        return
    parts = []
    if row["replays"]:
        mean, most = row["link_recovery_us"], row["link_recovery_max_us"]
        took = f", back after {mean:.3f} us on average, {most:.3f} at most" if mean else ""
        parts.append(
            f"{row['replays']} replays of {row['replayed_packets']} frames"
            f" ({row['replay_timeouts']} by the timer){took}"
        )
    if row["replay_full_us"]:
        parts.append(f"full replay buffers stopped ports for {row['replay_full_us']:.1f} us")
    if row["credit_stalled_us"]:
        parts.append(f"ports waited for credits for {row['credit_stalled_us']:.1f} us")
    if row.get("lossless_buffer_bytes") is not None:
        held, buffer = row["lossless_held_bytes"], row["lossless_buffer_bytes"]
        assert isinstance(held, int)
        assert isinstance(buffer, int)
        parts.append(f"a port held {held / 1000:.1f} of {buffer / 1000:.1f} KB at most")
    if row["link_lost_packets"]:
        parts.append(f"{row['link_lost_packets']} frames lost for good")
    what = f"{row['collective']} {row['size_bytes']} B"
    name = f"{transport}, {what}" if transport else what
    yield f"{name}: {'; '.join(parts) or 'nothing to replay'}"
