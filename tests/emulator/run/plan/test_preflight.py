"""Test what a run is refused for before anything is built."""

import shutil
from pathlib import Path

import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.plan import preflight
from emulator.run.plan.preflight import Need
from emulator.run.plan.trial_load import TrialLoad
from emulator.transports.wire_cost import WireCost
from topologies import catalogue
from topologies.model import FRONTEND, MANAGEMENT, STORAGE


@pytest.mark.parametrize("network", [FRONTEND, STORAGE, MANAGEMENT])
def test_only_the_backend_of_a_cluster_carries_runs(network: str) -> None:
    cluster = catalogue.load("cluster:hosts=2")
    preflight.check_network(cluster)
    with pytest.raises(UserError, match=f"is the {network} network of a cluster"):
        preflight.check_network(cluster.network_named(network))
    preflight.check_network(catalogue.load("cluster_storage"))


def test_one_worker_needs_no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(UserError, match=r"/dev/shm has 0\.00 MiB free.* or take --workers 1"):
        preflight.check_memory(2**20, [2**20])
    preflight.check_memory(2**20, [2**20], shared=False)


def test_pairs_that_talk_are_counted_once_a_direction() -> None:
    topology = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,spines=1")
    alltoall = scenario.load("alltoall")
    (trial,) = alltoall.schedules(alltoall.parameters({"sizes": "4KiB"}), topology, 1)
    load = TrialLoad.of(trial, topology, WireCost(around_bytes=100, payload_mtu=4096))
    assert load.pairs == 4 * 2  # those of the own server are reached by the scale-up network
    idle, busy = (Need.of(load.memory_octets, pairs=n) for n in (0, load.pairs))
    assert busy.endpoints - idle.endpoints == load.pairs * preflight.PAIR_BYTES
