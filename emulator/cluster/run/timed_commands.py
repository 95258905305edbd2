"""Commands on several machines at once, and when each has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from emulator.cluster.run.cluster_context import ClusterContext
from emulator.cluster.run.processes import last_words
from emulator.errors import UserError

LIMIT_S = 300.0
POLL_S = 0.001


def run_together(
    run: ClusterContext, commands: Mapping[str, Sequence[str]], purpose: str
) -> dict[str, float]:
    """Start a command on each machine and return when each has ended (s, of time.monotonic).

    Raises UserError, which says ``purpose``, for the first that fails or takes more than
    :data:`LIMIT_S`; none runs afterwards.
    """
    begun = {machine: run.started(machine, argv) for machine, argv in commands.items()}
    ends: dict[str, float] = {}
    deadline = time.monotonic() + LIMIT_S
    try:
        while len(ends) < len(begun):
            for machine, process in begun.items():
                if machine not in ends and process.poll() is not None:
                    ends[machine] = time.monotonic()
            if time.monotonic() > deadline:
                late = ", ".join(machine for machine in begun if machine not in ends)
                raise UserError(f"{late} did not {purpose} in {LIMIT_S:g} s")
            time.sleep(POLL_S)
    finally:
        for process in begun.values():
            process.kill()
    for machine, process in begun.items():
        _, err = process.communicate()
        if process.returncode:
            raise UserError(f"{machine} did not {purpose}: {last_words(err)}")
    return ends
