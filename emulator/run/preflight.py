"""What has to hold before a run touches the kernel; each failure is one sentence."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence

import psutil

from emulator import cleanup, lab_record
from emulator.endpoint.gpu import DIRECTORY as GPU_MEMORY
from emulator.errors import UserError
from emulator.fabric.capabilities import FEATURES, Capabilities, probe
from emulator.fabric.capture import Tap
from emulator.scenario import Trial
from topologies.units import format_size

#: What an agent process takes besides its GPU's memory (octets): measured, rounded up.
AGENT_BYTES = 40 * 2**20
#: Left to the rest of the machine (octets).
SPARE_BYTES = 256 * 2**20


def check(lab: str, taps: Sequence[Tap], trials: Sequence[Trial], ranks: int) -> Capabilities:
    """What the machine offers; :class:`UserError` unless a run can be expected to succeed on it."""
    cleanup.require_root("run a scenario")
    check_name(lab)
    found = probe()
    for missing in found.lacking():
        remedy = FEATURES[missing.name].remedy
        raise UserError(f"{missing.name} is missing ({missing.detail}); {remedy}")
    check_tools(taps)
    for trial in trials:
        check_memory(trial.size_bytes, [trial.memory_bytes] * ranks)
    return found


def lab_name(scenario: str) -> str:
    """A name for a lab that nobody else has."""
    stem = "".join(c if c.isalnum() and c.isascii() else "-" for c in scenario.lower())
    return f"{stem.strip('-')[:15] or 'run'}-{secrets.token_hex(4)}"


def check_name(lab: str) -> None:
    """The name is well formed, and nothing carries it."""
    lab_record.check_name(lab)
    if cleanup.exists(lab):
        raise UserError(
            f"a lab named {lab} exists already; choose another --name, or remove it with "
            f"uetemu clean {lab}"
        )


def check_tools(taps: Sequence[Tap]) -> None:
    if not taps:
        return
    if shutil.which("dumpcap") is None and shutil.which("tcpdump") is None:
        raise UserError(
            "capturing needs dumpcap (Debian package tshark) or tcpdump; install one of them, or "
            "run with --capture none"
        )


def check_agents(ranks: int) -> None:
    """An agent for each of ``ranks`` GPUs fits the machine, whatever it will have to do."""
    wanted, available = AGENT_BYTES * ranks, _available()
    if wanted > available:
        raise UserError(
            f"the agents of {ranks} GPUs need {_gib(wanted)} of memory and the machine has "
            f"{_gib(available)} to give; use fewer GPUs"
        )


def check_memory(size_bytes: int, memory_octets: Sequence[int]) -> None:
    """GPU memories (octets by rank) and agents for a trial of ``size_bytes`` fit the machine."""
    wanted = sum(memory_octets)
    room = shutil.disk_usage(GPU_MEMORY).free
    if wanted > room:
        raise UserError(
            f"a size of {format_size(size_bytes)} needs {_gib(wanted)} of GPU memory and "
            f"{GPU_MEMORY} has {_gib(room)} free; use smaller sizes or fewer GPUs, or mount it "
            "larger"
        )
    wanted += AGENT_BYTES * len(memory_octets)
    available = _available()
    if wanted > available:
        raise UserError(
            f"a size of {format_size(size_bytes)} needs {_gib(wanted)} of memory and the machine "
            f"has {_gib(available)} to give; use smaller sizes or fewer GPUs"
        )


def _available() -> int:
    return max(0, psutil.virtual_memory().available - SPARE_BYTES)


def _gib(octets: int) -> str:
    return f"{octets / 2**30:.2f} GiB"
