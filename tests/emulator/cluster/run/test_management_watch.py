"""Ports of training and of other networks' services are foreign to management."""

from __future__ import annotations

from emulator.cluster.run.packet_survey import foreign_ports
from emulator.cluster.services import kinds
from topologies.cluster import MODEL_PORT


def test_training_storage_and_model_servers_have_no_place_on_management() -> None:
    assert {4791, 4793, kinds.NFS_PORT, MODEL_PORT} <= foreign_ports()
    assert not {22, kinds.RENDEZVOUS_PORT, kinds.files.port} & foreign_ports()
