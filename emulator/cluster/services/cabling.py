"""Comparison of the cabling that LLDP reports with the model of the cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from emulator.cluster.services import kinds
from emulator.cluster.services.service_runner import Services
from emulator.errors import UserError
from topologies.model import CableEnd, Topology

ANSWER_S = 20


class CablingRow(NamedTuple):
    """One end of a cable: the far end by the model, and the one that LLDP reports."""

    end: CableEnd
    modelled: CableEnd
    reported: CableEnd | None

    @property
    def right(self) -> bool:
        return self.modelled == self.reported


def cabling(topology: Topology, services: Services) -> Iterator[CablingRow]:
    """Yield every end of a cable in the networks of machines of ``topology`` that has an lldpd.

    Raises UserError if no node has one, or one does not answer.
    """
    sockets = {
        record.machine: services.folder(record.name) / kinds.SOCKET
        for record in services.of_kind(kinds.lldp)
    }
    if not sockets:
        raise UserError("no node of the cluster runs lldp: build it with --services lldp")
    heard = {node: _neighbours(socket, node) for node, socket in sockets.items()}
    for network in topology.networks:
        for link in network.links:
            for ours, theirs in (link.ends, link.ends[::-1]):
                if ours.node in heard:
                    yield CablingRow(ours, theirs, heard[ours.node].get(ours.port))


def _neighbours(socket: Path, node: str) -> Mapping[str, CableEnd]:
    """Return who is plugged into each port of ``node``, as its lldpd has heard."""
    argv = ["lldpcli", "-u", str(socket), "-f", "json0", "show", "neighbors"]
    try:
        answer = subprocess.run(
            argv, capture_output=True, text=True, timeout=ANSWER_S, check=True
        ).stdout
        groups: list[dict[str, Any]] = json.loads(answer)["lldp"]
    except (subprocess.SubprocessError, ValueError, KeyError) as error:
        raise UserError(f"lldpd of {node} does not answer: {error}") from None
    found = {}
    for interface in (row for group in groups for row in group.get("interface", ())):
        name = interface["chassis"][0]["name"][0]["value"]
        port = interface["port"][0]["id"][0]["value"]
        found[interface["name"]] = CableEnd(name, port)
    return found
