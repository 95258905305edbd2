"""Test what a run is refused for before anything is built."""

from __future__ import annotations

import pytest

from emulator.errors import UserError
from emulator.run.plan import preflight
from topologies import catalogue
from topologies.model import FRONTEND, MANAGEMENT, STORAGE


@pytest.mark.parametrize("network", [FRONTEND, STORAGE, MANAGEMENT])
def test_only_the_backend_of_a_cluster_carries_runs(network: str) -> None:
    cluster = catalogue.load("cluster:hosts=2")
    preflight.check_network(cluster)
    with pytest.raises(UserError, match=f"is the {network} network of a cluster"):
        preflight.check_network(cluster.network_named(network))
    preflight.check_network(catalogue.load("cluster_storage"))
