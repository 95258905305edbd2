"""The machine, kernel and versions that a run was made on, for whoever repeats it."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from emulator.compiled.finder import engine
from emulator.installed_packages import versions_of
from emulator.machine_memory import machine_memory

_PACKAGES = ("uetemu", "scapy", "pyroute2", "mininet", "numpy", "click", "google-crc32c")


def describe_machine() -> dict[str, object]:
    """Machine, kernel and versions as JSON types."""
    memory = machine_memory()
    return {
        "kernel": {
            "release": platform.release(),
            "version": platform.version(),
            "machine": platform.machine(),
        },
        "distribution": _distribution(),
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "load_average_1min": os.getloadavg()[0],
        "python": sys.version.split()[0],
        "engine": engine(),
        "packages": versions_of(_PACKAGES),
        "command": sys.argv,
    }


def _distribution() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), None)
