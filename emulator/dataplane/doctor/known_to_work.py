"""Features that worked since the machine was started, for runs, which need not try them again.

What loads the switch program takes the kernel's verifier as long as all other trials together.  A
run loads it next, anyway, and fails with the kernel's reason where it is not what it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from emulator.dataplane.kernel.programs import compiler
from emulator.dataplane.switch.bpf import switch_program

#: Where it stands: a digest of the start of the machine, the rights and the program.
RECORD = compiler.CACHE / "asic" / "works"
_MACHINE = (
    "/proc/sys/kernel/random/boot_id",
    "/proc/version",
    "/sys/kernel/security/lockdown",
    "/proc/self/uid_map",
)
_RIGHTS = ("Uid:", "CapEff:", "NoNewPrivs:", "Seccomp:")


def is_known() -> bool:
    """Return whether the switch program has worked here and nothing that matters has changed."""
    return _read(RECORD) == _digest()


def note() -> None:
    """Note that it works, where there is room for that."""
    fresh = RECORD.with_name(f"{RECORD.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(_digest())
        fresh.replace(RECORD)


def _digest() -> str:
    rights = [line for line in _read("/proc/self/status").splitlines() if line.startswith(_RIGHTS)]
    program = sorted(
        (entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
        for folder in (switch_program.SOURCES, switch_program.SHIPPED)
        for entry in os.scandir(folder)
        if entry.is_file()
    )
    known = [*map(_read, _MACHINE), *rights, repr(program)]
    return hashlib.sha256("\n".join(known).encode()).hexdigest()


def _read(path: str | Path) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
