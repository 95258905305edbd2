"""The storage nodes of a running cluster: their NVMe/TCP targets, disks and ports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from emulator.cluster.run.cluster_context import ClusterContext
from emulator.cluster.services.kinds.block_storage import BLOCK_STORAGE, DISK, subsystem_of
from emulator.cluster.services.service_runner import ServiceRecord
from emulator.errors import UserError
from topologies.model import STORAGE


@dataclass(frozen=True, kw_only=True)
class StorageUsage:
    """Octets that each port has sent and processor seconds of each target, ``at_s`` of the run."""

    at_s: float
    octets: Mapping[str, int]
    cpu_s: Sequence[float]


@dataclass(frozen=True)
class StorageNodes:
    """Every machine of ``run`` that serves blocks, in the order of their numbers."""

    run: ClusterContext

    @cached_property
    def records(self) -> Sequence[ServiceRecord]:
        """The services that are NVMe/TCP targets."""
        return self.run.services.of_kind(BLOCK_STORAGE)

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the machines."""
        return [record.machine for record in self.records]

    @property
    def targets(self) -> list[tuple[str, str]]:
        """Return address and NQN of each."""
        return [(record.address, subsystem_of(record.machine)) for record in self.records]

    @property
    def capacity_bps(self) -> int:
        """Return what the ports of all carry together, one way (bit/s of the network's time)."""
        topology = self.run.cluster.labs[STORAGE].topology
        return sum(link.rate_bps for name in self.names for link, _, _ in topology.neighbours(name))

    def stage(self, node: int, offset: int, content: bytes) -> None:
        """Put ``content`` on the disk of ``node``, without its network, before a measurement."""
        path = self.run.services.folder(self.records[node].name) / DISK
        room = path.stat().st_size
        if offset + len(content) > room:
            raise UserError(
                f"{offset + len(content)} octets do not fit into the {room} of "
                f"{self.names[node]}; take less, or --service-param nvme.size=OCTETS"
            )
        with path.open("r+b") as disk:
            os.pwrite(disk.fileno(), content, offset)

    def received_octets(self, node: int) -> int:
        """Return what the switch has sent to ``node`` since its lab was built."""
        lab = self.run.cluster.labs[STORAGE]
        _, _, theirs = next(lab.topology.neighbours(self.names[node]))
        return lab.counters([theirs.node])[str(theirs)].tx_bytes

    def usage(self) -> StorageUsage:
        """Return what ports have sent and targets computed until now."""
        return StorageUsage(
            at_s=self.run.samples.now_s,
            octets=self.run.samples.port_octets(STORAGE),
            cpu_s=[_cpu_s(record.process.pid) for record in self.records],
        )

    def port_rows(self, before: StorageUsage) -> Iterator[Mapping[str, object]]:
        """Yield octets and use of each node's port since ``before``, in the network's time."""
        lab = self.run.cluster.labs[STORAGE]
        now = self.usage()
        after, took_s = now.octets, now.at_s - before.at_s
        for number, name in enumerate(self.names):
            link, ours, theirs = next(lab.topology.neighbours(name))
            rate_bps = link.rate_bps
            seconds = took_s / lab.dilation
            sent = after[str(ours)] - before.octets[str(ours)]
            received = after[str(theirs)] - before.octets[str(theirs)]
            yield {
                "what": f"port of {name}",
                "sent_octets": sent,
                "received_octets": received,
                "rate_Gbps": rate_bps / 1e9,
                "sent_use_share": sent * 8 / seconds / rate_bps,
                "received_use_share": received * 8 / seconds / rate_bps,
                "cpu_share": (now.cpu_s[number] - before.cpu_s[number]) / took_s,
            }


def _cpu_s(pid: int) -> float:
    """Return what the process ``pid`` has computed (s), 0 if it is gone: proc(5), fields 14, 15."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
