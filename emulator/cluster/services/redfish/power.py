"""The power of the servers of a cluster: off, all cables of the machine and its GPUs are down.

Its processes stay, as a namespace cannot lose its power: what is off is whatever leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator

from emulator.cluster.cluster_lab import ClusterLab
from emulator.dataplane.lab import Lab
from emulator.run.faults.fault_injector import recorded
from emulator.run.faults.live_injection import inject

ON, OFF = "On", "Off"


class ServerPower:
    """The power of every machine of the running cluster ``name``.

    The management network keeps its cables: a server's own controller stays reachable when it is
    off, and so does this service.
    """

    def __init__(self, name: str, kept: str) -> None:
        self.name = name
        self._kept = kept
        with ClusterLab.attach(name) as cluster:
            self.gpus = {server.name: server.gpus for server in cluster.backend.topology.servers}
            nodes = (node.name for lab in cluster.labs.values() for node in lab.topology.gpus)
            of_servers = {gpu for gpus in self.gpus.values() for gpu in gpus}
            self.machines = tuple(dict.fromkeys(n for n in nodes if n not in of_servers))

    def state(self, machine: str) -> str:
        """Return ``On`` or ``Off``: whether any cable of ``machine`` has its carrier."""
        with ClusterLab.attach(self.name) as cluster:
            pulled = [
                link in recorded(lab.name, lab.topology).dead
                for lab, node in self._ends(cluster, machine)
                for link, _, _ in lab.topology.neighbours(node)
            ]
        return OFF if pulled and all(pulled) else ON

    def switch(self, machine: str, state: str) -> None:
        """Put ``machine`` into ``state``.  Raises UserError if the cluster is gone."""
        verb = "down" if state == OFF else "up"
        with ClusterLab.attach(self.name) as cluster:
            for lab, node in self._ends(cluster, machine):
                inject(lab, f"nic {node} {verb}")

    def _ends(self, cluster: ClusterLab, machine: str) -> Iterator[tuple[Lab, str]]:
        """Yield the labs and nodes whose cables lose their carrier with ``machine``."""
        for network, lab in cluster.labs.items():
            if network == self._kept:
                continue
            for node in (machine, *self.gpus.get(machine, ())):
                if node in lab.topology.by_name:
                    yield lab, node
