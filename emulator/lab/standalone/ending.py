"""The end of an endpoint's life: what has come of it, and the exit status."""

from __future__ import annotations

import sys

from emulator.lab.standalone.report import EventReport
from emulator.lab.standalone.script.outcomes import Outcomes
from emulator.lab.standalone.session import EndpointSession, PeerLearner
from emulator.sim.endpoint.nic.packet_nic import Nic

#: The reason for an end that neither the user nor the work has requested.
BROKEN = "error"


def end(
    session: EndpointSession,
    endpoint: PeerLearner,
    nic: Nic,
    outcomes: Outcomes,
    report: EventReport,
    reason: str,
    **more: object,
) -> int:
    """Report the end, with ``more``; return the exit status."""
    at_end = list(outcomes.regions_at_end())
    tally = outcomes.tally
    errors = list(tally.errors)
    if session.unfinished and reason != BROKEN:
        some = "operation" if session.unfinished == 1 else "operations"
        errors.append(f"{session.unfinished} {some} had not ended")
    if session.missing and reason != BROKEN:
        errors.append(f"{session.missing} of the completions to wait for did not come")
    status = 1 if tally.failed or errors else 0
    report.event(
        "end",
        reason=reason,
        status=status,
        operations={
            "posted": tally.posted,
            "succeeded": tally.succeeded,
            "unfinished": session.unfinished,
        },
        received=tally.received,
        failed=tally.failed,
        errors=errors,
        regions=at_end,
        counters={name: value for name, value in sorted(endpoint.counters().items()) if value},
        nic={name: value for name, value in nic.counters().items() if value},
        **more,
    )
    for sentence in errors:
        sys.stderr.write(f"uetemu: {sentence}\n")
    return status
