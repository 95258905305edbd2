"""Ports of training and of other networks' services are foreign to management."""

from __future__ import annotations

from emulator.cluster.run.management_watch import foreign_ports
from emulator.cluster.services.kinds import files, nfs, rendezvous
from topologies.cluster import MODEL_PORT


def test_training_storage_and_model_servers_have_no_place_on_management() -> None:
    assert {4791, 4793, nfs.PORT, MODEL_PORT} <= foreign_ports()
    assert not {22, rendezvous.PORT, files.PORT} & foreign_ports()
