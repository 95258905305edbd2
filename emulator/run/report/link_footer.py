"""The link layer of cables as a person reads it below a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


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
