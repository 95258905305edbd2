"""Files with the ranks of each group, as ASTRA-sim takes them: ``{"1": [0, 1], "2": [2, 3]}``."""

from __future__ import annotations

import json
from pathlib import Path

from scenarios.traces.trace_file import TraceFile
from scenarios.traces.trace_model import TraceRefusal


def read_groups(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group that ``path`` names; TraceRefusal if it is no such file."""
    file = TraceFile(path)
    try:
        content = json.loads(file.text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise file.wrong(line, 'not JSON; write for example {"1": [0, 1]}') from None
    if not isinstance(content, dict):
        raise file.wrong(1, 'not a mapping; write for example {"1": [0, 1]}')
    groups = {}
    for name, ranks in content.items():
        if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
            raise TraceRefusal(
                f"{file.name}: group {name[:40]!r} is no list of ranks; write for example [0, 1]"
            )
        groups[name] = tuple(ranks)
    return groups
