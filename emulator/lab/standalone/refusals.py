"""Reports of what an endpoint refuses or drops, at the first occurrence of each kind.

The numbers at the end are their counts.  Nothing here is on the path of packets: counters are
looked at once a turn, and a counter that stands at zero costs one comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from emulator.lab.standalone.report import EventReport

_PREFIXES = ("rx_drop_", "tss_")
_NAMES = frozenset(
    {
        "rx_requests_refused", "rx_malformed_requests", "rx_datagrams_dropped",
        "rx_naks_fatal", "rx_bad_responses", "qp_errors",
    }
)  # fmt: skip


def is_refusal(name: str) -> bool:
    """Return whether a counter of that name counts what was refused or dropped."""
    return name in _NAMES or name.startswith(_PREFIXES)


class Refusals:
    """Reports each kind of refusal once to ``report``; ``counts`` are those of the endpoint."""

    def __init__(self, counts: Mapping[str, int], report: EventReport) -> None:
        self._counts, self._report = counts, report
        self._seen = 0  # counters that have been there
        self._silent: list[str] = []  # of these, refusals that have not happened yet
        self._reported: set[str] = set()

    def look(self, frames: Sequence[memoryview]) -> None:
        """Report refusals since the last call, during which ``frames`` arrived."""
        counts = self._counts
        if len(counts) != self._seen:
            self._seen = len(counts)
            self._silent = [
                name for name in counts if name not in self._reported and is_refusal(name)
            ]
        for name in [name for name in self._silent if counts[name]]:
            self._silent.remove(name)
            self._reported.add(name)
            self._report.event("refused", what=name, peer=_only_source(frames))


def _only_source(frames: Sequence[memoryview]) -> str | None:
    """Return whose the frames are, if they are all of one."""
    sources = {
        bytes(frame[26:30] if bytes(frame[12:14]) == b"\x08\x00" else frame[22:38])
        for frame in frames
    }
    if len(sources) != 1:
        return None
    (source,) = sources
    return str(ip_address(source)) if len(source) in (4, 16) else None
