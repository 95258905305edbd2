"""``python -m emulator.dataplane.switch.bpf.ship``: compile the switch program to ship.

To be called after a change of its sources; takes clang, libbpf-dev and bpftool.
"""

from __future__ import annotations

import subprocess
from typing import get_args

from emulator.dataplane.settings import Clock
from emulator.dataplane.switch.bpf import switch_program


def main() -> None:
    """Write an object for each clock, without DWARF; others are removed."""
    switch_program.SHIPPED.mkdir(exist_ok=True)
    for old in switch_program.SHIPPED.iterdir():
        old.unlink()
    for clock in get_args(Clock):
        with switch_program.compiled(switch_program.PLACEHOLDERS, clock=clock) as made:
            target = switch_program.shipped(clock)
            subprocess.run(["bpftool", "gen", "object", str(target), str(made)], check=True)


if __name__ == "__main__":
    main()
