"""States of servers in the file system that all share: each writes its own, others restore them.

Times are the storage network's: the machine's divided by its dilation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from emulator.cluster.run.cluster_context import ClusterContext
from emulator.cluster.run.timed_commands import run_together
from emulator.cluster.services.kinds.nfs import EXPORT, NFS, SHARED
from emulator.cluster.services.service_runner import ServiceRecord
from emulator.errors import UserError
from topologies.model import STORAGE


@dataclass(frozen=True, kw_only=True)
class SharedStates:
    """The ``states`` of servers, of one size, that lie in ``folder`` for their clients.

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
            {one: ("nfs-cp", str(self.folder / one), self._remote(one)) for one in self.states}
        )
        shared = self.run.services.folder(self._store.name) / SHARED
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
            {one: ("nfs-cp", self._remote(before[one]), str(copies[one])) for one in servers}
        )
        right = [copies[one].read_bytes() == self.states[before[one]] for one in servers]
        return self._row(what, took_s, right)

    @property
    def _store(self) -> ServiceRecord:
        """Return the service that is the shared file system."""
        (store,) = self.run.services.of_kind(NFS)
        return store

    def _remote(self, server: str) -> str:
        return f"nfs://{self._store.address}{EXPORT}/{self.prefix}{server}"

    def _timed(self, commands: Mapping[str, Sequence[str]]) -> float:
        """Run ``commands`` together; return the time of the slowest, in the network's time (s)."""
        began = time.monotonic()
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
