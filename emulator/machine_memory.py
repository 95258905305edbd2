"""How much memory the machine has, and has to give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Control groups of this process (cgroups(7)), and where they are mounted.
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


class MachineMemory(NamedTuple):
    """Octets of memory: all, and what programs can have without swapping."""

    total: int
    available: int


def machine_memory() -> MachineMemory:
    """Return what the kernel says now; a control group, as of a container, may give less.

    psutil reads the same two lines, but takes 11 ms to import, of every start.
    """
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    total, available = (int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    return MachineMemory(total, max(0, min([available, *_left_by_groups(total)])))


def _left_by_groups(total: int) -> Iterator[int]:
    """Yield what each group leaves to this process that limits it below ``total`` (octets)."""
    for line in _OWN_GROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            top, limit, used = _GROUPS, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top, limit, used = _GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        own = Path(path).relative_to("/")
        for group in (own, *own.parents):
            with suppress(OSError, ValueError):  # it has no limit, or is not shown here
                most = int((top / group / limit).read_text())
                if most >= total:
                    continue
                statistics = dict(map(str.split, (top / group / "memory.stat").open()))
                files = int(statistics["inactive_file"]) + int(statistics["active_file"])
                yield most - int((top / group / used).read_text()) + files
