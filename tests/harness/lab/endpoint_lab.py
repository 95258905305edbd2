"""A small lab for endpoint tests: two servers, so that a rail and a scale-up network exist."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from emulator.pytest_plugin.labs import built
from topologies import catalogue

DILATION = 1000.0
UET_PORT = 4793


@contextmanager
def small_lab(spec: str = "rail_clos:hosts=2,gpus_per_host=1", **options: Any) -> Iterator[Lab]:
    """A lab of a random name, removed afterwards; ``plane`` is its control plane."""
    settings: dict[str, Any] = {"dilation": DILATION, "seed": 1, "spec": spec} | options
    topology = control_plane.chosen(catalogue.load(spec), settings.pop("plane", None))
    with built(f"ep-{secrets.token_hex(3)}", topology, FabricSettings(**settings)) as lab:
        yield lab
