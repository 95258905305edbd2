"""Define what tests of trace formats share."""

from __future__ import annotations

from collections.abc import Callable

from scenarios.traces.trace_model import TraceRefusal


def outcome(read: Callable[[], object]) -> str:
    """Return what a reader refuses, or nothing; any other exception is a defect of it."""
    try:
        read()
    except TraceRefusal as refused:
        return str(refused)
    return ""
