"""A small lab for endpoint tests: two servers, so that a rail and a scale-up network exist."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from emulator.control_plane import control_plane_choice as control_plane
from emulator.endpoint.agent_pool import AgentPool
from emulator.endpoint.agent_spec import AgentSpec
from emulator.endpoint.clock import Clock
from emulator.lab import Lab
from emulator.pytest_plugin.lab_life import built
from emulator.run.run_agents import agent_specs
from emulator.transports import fit
from topologies import catalogue
from topologies.model import Topology

root = pytest.mark.root
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="builds namespaces: needs root")

DILATION = 1000.0
UET_PORT = 4793


def within(seconds: float, condition: Callable[[], bool], what: str) -> None:
    """Poll until ``condition`` holds; the budget only bounds a failure."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"after {seconds} s still not: {what}"
        time.sleep(0.005)


@contextmanager
def small_lab(spec: str = "rail_clos:hosts=2,gpus_per_host=1", **options: Any) -> Iterator[Lab]:
    """A lab of a random name, removed afterwards; ``plane`` is its control plane."""
    settings: dict[str, Any] = {"dilation": DILATION, "seed": 1, "spec": spec} | options
    topology = control_plane.chosen(catalogue.load(spec), settings.pop("plane", None))
    with built(f"ep-{secrets.token_hex(3)}", topology, **settings) as lab:
        yield lab


def specs_of(lab: Lab, **changes: Any) -> list[AgentSpec]:
    topology: Topology = lab.topology
    return agent_specs(
        topology,
        fit(changes.get("transport", "uet"), topology),
        namespace=lambda node: str(lab.netns(node)),
        nic_delays=lab.cable_delay == "nic",
        seed=lab.seed,
        memory_octets=changes.get("memory_octets", 16 << 20),
    )


def pool_of(lab: Lab, specs: Sequence[AgentSpec] | None = None) -> AgentPool:
    """Agents for every GPU of ``lab``, not yet started."""
    return AgentPool(lab.name, specs or specs_of(lab), Clock.start(lab.dilation))
