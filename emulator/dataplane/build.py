"""Builds the nodes of a fabric for a run: the one place that knows which kinds there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from emulator.dataplane.dataplane import Dataplane
from emulator.dataplane.kernel.fabric.fabric_plan import Progress
from emulator.dataplane.lab import Lab
from emulator.dataplane.model.fabric import ModelDataplane
from emulator.dataplane.switch.switch_choice import SwitchChoice
from topologies.model import Topology

Kind = Literal["kernel", "model"]


def build(  # noqa: PLR0913  settings of a fabric
    kind: Kind,
    name: str,
    topology: Topology,
    *,
    seed: int,
    spec: str,
    switch: SwitchChoice | None,
    worker_of: Mapping[str, int] | None = None,
    worker: int | None = None,
    progress: Progress | None = None,
) -> Dataplane:
    """Build the nodes of ``topology`` as ``name``; arguments are those of :meth:`Lab.create`.

    Raises UserError for a fabric that ``kind`` cannot have.
    """
    if kind == "model":
        return ModelDataplane(
            name, topology, seed=seed, switch=switch, worker_of=worker_of, worker=worker
        )
    return Lab.create(
        name,
        topology,
        dilation=1,
        clock="virtual",
        seed=seed,
        spec=spec,
        switch=switch,
        worker_of=worker_of,
        worker=worker,
        progress=progress,
    )
