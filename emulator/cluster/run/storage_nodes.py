"""The storage nodes of a cluster: NVMe/TCP targets, a file system that all share, their clients."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from emulator.cluster.run.cluster_context import (
    CHECKPOINT_RESTORE,
    CHECKPOINT_WRITE,
    HELD,
    ClusterContext,
)
from emulator.cluster.run.processes import ProcessorTimes, run_together
from emulator.cluster.services import kinds
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
        return self.run.services.of_kind(kinds.nvme)

    @property
    def names(self) -> Sequence[str]:
        return [record.machine for record in self.records]

    @property
    def targets(self) -> list[tuple[str, str]]:
        """Return address and NQN of each."""
        return [(record.address, kinds.subsystem_of(record.machine)) for record in self.records]

    @property
    def capacity_bps(self) -> int:
        """Return what the ports of all carry together, one way (bit/s of the network's time)."""
        topology = self.run.cluster.labs[STORAGE].topology
        return sum(link.rate_bps for name in self.names for link, _, _ in topology.neighbours(name))

    def stage(self, node: int, offset: int, content: bytes) -> None:
        """Put ``content`` on the disk of ``node``, without its network, before a measurement."""
        path = self.run.services.folder(self.records[node].name) / kinds.DISK
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


@dataclass(frozen=True, kw_only=True)
class SharedStates:
    """The ``states`` of servers, of one size, that lie in ``folder`` for their clients.

    Each server writes its own, others restore them.  Times are the storage network's.

    In the shared file system a server's is called ``prefix`` and its name.
    """

    run: ClusterContext
    states: Mapping[str, bytes]
    prefix: str
    folder: Path

    def write(self, what: str) -> Mapping[str, object]:
        """Let all servers write their states at once; return the row, of what is right there."""
        for server, state in self.states.items():
            (self.folder / server).write_bytes(state)
        took_s = self._timed(
            CHECKPOINT_WRITE,
            {one: ("nfs-cp", str(self.folder / one), self._remote(one)) for one in self.states},
        )
        shared = self.run.services.folder(self._store.name) / kinds.SHARED
        return self._row(
            what,
            took_s,
            [
                (shared / f"{self.prefix}{one}").read_bytes() == state
                for one, state in self.states.items()
            ],
        )

    def restore(self, what: str) -> Mapping[str, object]:
        """Let each server read the state of the one before it; return the row, of what is right."""
        servers = tuple(self.states)
        before = dict(zip(servers, (servers[-1], *servers[:-1]), strict=True))
        copies = {one: self.folder / f"{one}-restored" for one in servers}
        took_s = self._timed(
            CHECKPOINT_RESTORE,
            {one: ("nfs-cp", self._remote(before[one]), str(copies[one])) for one in servers},
        )
        right = [copies[one].read_bytes() == self.states[before[one]] for one in servers]
        return self._row(what, took_s, right)

    @property
    def _store(self) -> ServiceRecord:
        (store,) = self.run.services.of_kind(kinds.nfs)
        return store

    def _remote(self, server: str) -> str:
        return f"nfs://{self._store.address}{kinds.EXPORT}/{self.prefix}{server}"

    def _timed(self, work: str, commands: Mapping[str, Sequence[str]]) -> float:
        """Run ``commands`` together; return the time of the slowest, in the network's time (s)."""
        began = time.monotonic()
        with self.run.work(work):
            ends = run_together(self.run, commands, "copy its state")
        return (max(ends.values()) - began) / self.run.dilation(STORAGE)

    def _row(self, what: str, took_s: float, right: Sequence[bool]) -> Mapping[str, object]:
        """Return the row of a transfer, of which some are ``right``."""
        topology = self.run.cluster.labs[STORAGE].topology
        link, _, _ = next(topology.neighbours(self._store.machine))
        total = sum(map(len, self.states.values()))
        return {
            "what": what,
            "servers": len(right),
            "octets": total,
            "slowest_ms": took_s * 1e3,
            "GBps": total / took_s / 1e9,
            "port_share": total * 8 / took_s / link.rate_bps,
            "right": sum(right),
            "ok": all(right),
        }


@contextmanager
def shared_states(
    run: ClusterContext, states: Mapping[str, bytes], prefix: str = ""
) -> Iterator[SharedStates]:
    """Provide a folder for the files of ``states``; UserError if nobody else could restore them."""
    if len(states) < 2:
        raise UserError("one server has no other one to restore its state; take hosts=2 or more")
    with TemporaryDirectory(prefix="uetemu-states-") as name:
        yield SharedStates(run=run, states=states, prefix=prefix, folder=Path(name))


@dataclass(frozen=True, kw_only=True)
class WatchedClients:
    """The outcome: the clients' ``answers``, in their order, and shares of time that computed.

    ``busy_share`` is that of all processors of this machine, with what others did, and
    ``target_share`` that of the process of the busiest target.
    """

    answers: Sequence[Any]
    busy_share: float
    target_share: float


def watched(
    run: ClusterContext,
    nodes: StorageNodes,
    client: str,
    tasks: Mapping[str, Mapping[str, object]],
) -> WatchedClients:
    """Run the module ``client`` on all machines of ``tasks``, released once all are ready.

    Raises UserError with the last words of the first that fails.
    """
    begun = {
        machine: run.begin(machine, client, {**task, HELD: True}) for machine, task in tasks.items()
    }
    noted: list[tuple[StorageUsage, ProcessorTimes]] = []

    def note() -> None:
        noted.append((nodes.usage(), ProcessorTimes.now()))

    answers = [answer for _, answer in run.gathered(begun, released=note)]
    note()
    (before, processors_before), (usage, processors) = noted
    computed = zip(usage.cpu_s, before.cpu_s, strict=True)
    took_s = usage.at_s - before.at_s
    return WatchedClients(
        answers=answers,
        busy_share=processors.busy_share_since(processors_before),
        target_share=max(after - before for after, before in computed) / took_s,
    )
