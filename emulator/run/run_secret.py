"""The secret of a run's one-time keys follows from everything that determines its packets."""

from __future__ import annotations

import dataclasses
import hashlib
import json

from emulator.run.environment import version_of
from emulator.run.plan.run_plan import RunPlan
from topologies.exports import mermaid as export

#: Fields of a request that stand elsewhere, or that no packet depends on.
_WITHOUT_EFFECT = frozenset(
    (
        *("scenario", "parameters", "clock", "output", "lab"),
        *("digest", "capture", "snaplen", "event_log", "workers"),
    )
)


def _default(field: dataclasses.Field[object]) -> object:
    """Return the default of a request's field.

    Options at their default stay out of the secret, or each new one would give every run new keys.
    """
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def run_secret(plan: RunPlan, life: int, *, dilation: float, started: int | None) -> bytes:
    """The secret of the endpoints' ``life``-th life in the run of ``plan``.

    ``started`` (ns since 1970) is for a run on the host's clock, whose packets are others every
    time; ``None`` for one in virtual time, which one command determines.  Where the secret
    comes again, so do all packets, octet by octet.
    """
    request = plan.request
    asked = {
        there.name: getattr(request, there.name)
        for there in dataclasses.fields(request)
        if there.name not in _WITHOUT_EFFECT and getattr(request, there.name) != _default(there)
    }
    determined = {
        "version": version_of("uetemu"),
        "scenario": request.scenario.name,
        "parameters": dataclasses.asdict(request.parameters),
        "asked": asked,
        "topology": export.as_data(plan.topology),
        "stages": [
            (stage.transport.name, dict(stage.transport.configs), repr(stage.switch))
            for stage in plan.stages
        ],
        "dilation": dilation,
        "started": started,
        "life": life,
    }
    text = json.dumps(determined, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).digest()
