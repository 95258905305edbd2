"""The secret of a run's one-time keys follows from everything that determines its packets."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection
from typing import Any

from emulator.installed_packages import version_of
from emulator.run.plan.run_plan import RunPlan
from topologies.exports import mermaid as export
from uet.addresses import Neighbours

#: Fields of a request that stand elsewhere, or that no packet depends on.
_WITHOUT_EFFECT = frozenset(
    (
        *("scenario", "parameters", "output", "lab"),
        *("digest", "capture", "snaplen", "event_log", "workers", "parts"),
        "fabric",
    )
)


def _chosen(options: Any, *, without: Collection[str] = ()) -> dict[str, object]:
    """Return the fields of ``options`` that are not at their default.

    All others stay out of the secret, or each new option would give every run new keys.
    """
    return {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if field.name not in without and getattr(options, field.name) != _default(field)
    }


def _default(field: dataclasses.Field[object]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def run_secret(plan: RunPlan, life: int) -> bytes:
    """The secret of the endpoints' ``life``-th life in the run of ``plan``.

    One command determines it: where the secret comes again, so do all packets, octet by octet.
    """
    return hashlib.sha256(_text(plan, life)).digest()


def plan_digest(plan: RunPlan) -> bytes:
    """Return a digest of all that determines the packets of ``plan``, for ranks to compare."""
    return hashlib.sha256(_text(plan, 0, brief=True)).digest()


def _text(plan: RunPlan, life: int, *, brief: bool = False) -> bytes:
    """Return as JSON what determines the packets of ``plan`` in that ``life``.

    Of a table of neighbours there is a digest, made once: its length is that of the fabric, and
    every endpoint has it.  Of the addresses of a mesh there is one if the text is to be ``brief``;
    secrets follow from the addresses themselves, as they always have.
    """
    digests: dict[int, str] = {}

    def digest(table: object, content: object) -> str:
        if id(table) not in digests:
            text = json.dumps(content, sort_keys=True)
            digests[id(table)] = hashlib.sha256(text.encode()).hexdigest()
        return digests[id(table)]

    def plain(value: object) -> object:
        if isinstance(value, Neighbours):
            return [value.own, digest(value.table, dict(value.table.macs))]
        # Of a mesh of connections, the class of which a run without RoCEv2 does not load.
        if (addresses := getattr(value, "addresses", None)) is not None:
            return digest(value, addresses) if brief else addresses
        return repr(value)

    determined = _determined(plan, life)
    return json.dumps(determined, sort_keys=True, default=plain).encode()


def _topology(plan: RunPlan) -> dict[str, Any]:
    """Return the topology without what earlier versions had not, unless it is chosen."""
    data: dict[str, Any] = export.as_data(plan.topology)  # made for this caller
    if data["parameters"].get("scale_up_links") is None:
        data["parameters"].pop("scale_up_links", None)
    for server in data["servers"]:
        scale_up = server["scale_up"]
        if not scale_up["links"]:
            del scale_up["links"], scale_up["sums"]
    return data


def _determined(plan: RunPlan, life: int) -> dict[str, object]:
    """Return everything that determines the packets of ``plan`` in that ``life``."""
    request = plan.request
    return {
        "version": version_of("uetemu"),
        "scenario": request.scenario.name,
        "parameters": _chosen(request.parameters),
        "asked": _chosen(request, without=_WITHOUT_EFFECT),
        "topology": _topology(plan),
        "stages": [
            (stage.transport.name, dict(stage.transport.configs), repr(stage.switch))
            for stage in plan.stages
        ],
        "dilation": 1.0,  # these two are in the secrets of all earlier versions
        "started": None,
        "life": life,
    }
