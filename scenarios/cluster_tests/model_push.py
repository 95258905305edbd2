"""A model file is brought to all servers: from one storage node, or from server to server.

::

    one at a time           all at once             tree

    storage0 --> h0         storage0 --> h0         storage0 --> h0          round 1
    storage0 --> h1                  +-> h1         storage0 --> h1   h0 --> h2    2
    storage0 --> h2                  +-> h2         h0, h1 and h2 --> h4, h5, h6   3
       ...                           +-> ...          ...

Traffic: a file of ``file`` octets lies on ``storage0``, in the file system that all servers share.
Four ways bring a copy to every server over the storage network:

- ``nfs``: each reads it from the shared file system (NFSv4, ``nfs-cat``), all at once;
- ``http, one at a time``: each fetches it from an HTTP server on ``storage0``, one after another;
- ``http, all at once``: likewise, together;
- ``http, tree``: in each round everyone who has the file gives it to one who has not, so that the
  number of copies doubles, and one more. Only between rounds do they wait for each other.

Each copy is compared with the file, outside of the measured time.

Measured, in the storage network's time (the machine's divided by its dilation): the time to the
first and to the last server that has it; GB/s of all copies together; the octets that ``storage0``
sent; copies that are right.

What should be seen: one at a time takes N times as long as one copy. All at once fills the port of
``storage0``, where no server gets more than its share. The tree takes log2(N + 1) rounds of one
copy each, and ``storage0`` sends one copy a round. With N of 4 and small files the start of
clients, some 10 ms of the machine each, and the wait between rounds count as well: take a larger
``file``. Both ends share this machine's processors; where they set the pace, a larger
``--network-dilation storage=N`` gives them time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from emulator.cluster_run.cluster_context import ClusterContext
from emulator.errors import UserError
from emulator.scenario import parameter
from emulator.services.kinds.nfs import EXPORT, NFS, SHARED
from topologies.model import STORAGE
from topologies.parts.design_parameters import SIZE

TOPOLOGY = "cluster"
SERVICES = "nfs"
MODEL = "model"
HTTP_PORT = 8000
LIMIT_S = 300.0
POLL_S = 0.001


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The file."""

    file: int = parameter(32 * 2**20, SIZE, help="octets of the model's file")


@dataclass(frozen=True, kw_only=True)
class ModelCopy:
    """One transfer: ``source`` None is the shared file system, else the machine with HTTP."""

    source: str | None
    server: str


#: Rounds of transfers that run together.
Rounds = Sequence[Sequence[ModelCopy]]


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Bring the file to all servers in each of the ways, and report how long it takes."""
    (store,) = run.services.of_kind(NFS)
    servers = run.machines.servers
    original = run.services.folder(store.name) / SHARED / MODEL
    original.write_bytes(np.random.default_rng(run.seed).bytes(parameters.file))
    ways: dict[str, Rounds] = {
        "nfs, all at once": [[ModelCopy(source=None, server=one) for one in servers]],
        "http, one at a time": [[ModelCopy(source=store.machine, server=one)] for one in servers],
        "http, all at once": [[ModelCopy(source=store.machine, server=one) for one in servers]],
        "http, tree": tree(store.machine, servers),
    }
    for what, rounds in ways.items():
        run.event(what)
        with TemporaryDirectory(prefix="uetemu-model-") as folder:
            push = ModelPush(run, original, store.address, Path(folder))
            yield {"what": what, "rounds": len(rounds), **push.measured(store.machine, rounds)}


def tree(root: str, servers: Sequence[str]) -> Rounds:
    """Return rounds in which every machine that has the file gives it to one that has not."""
    having, left = [root], list(servers)
    rounds = []
    while left:
        now = [ModelCopy(source=source, server=left.pop(0)) for source in having[: len(left)]]
        rounds.append(now)
        having += [one.server for one in now]
    return rounds


@dataclass(frozen=True)
class ModelPush:
    """One way to bring ``original`` to servers, whose copies are in ``folder``."""

    run: ClusterContext
    original: Path
    nfs_address: str
    folder: Path

    def measured(self, store: str, rounds: Rounds) -> Mapping[str, object]:
        """Carry out ``rounds``; return times in the network's time, octets and comparisons."""
        copies = [one for now in rounds for one in now]
        sources = dict.fromkeys(one.source for one in copies if one.source is not None)
        dilation = self.run.dilation(STORAGE)
        sent = self._sent(store)
        ends: list[float] = []
        with ExitStack() as serving:
            for source in sources:
                serving.enter_context(self._served(source, store))
            began = time.monotonic()
            for now in rounds:
                ends += [end - began for end in self._carried_out(now)]
            sent = self._sent(store) - sent
        right = sum(cmp(self.original, self._place(one.server), shallow=False) for one in copies)
        octets = len(copies) * self.original.stat().st_size
        return {
            "first_ms": min(ends) / dilation * 1e3,
            "last_ms": max(ends) / dilation * 1e3,
            "GBps": octets / (max(ends) / dilation) / 1e9,
            f"{store}_sent": sent,
            "copies": len(copies),
            "right": right,
            "ok": right == len(copies),
        }

    def _carried_out(self, copies: Sequence[ModelCopy]) -> list[float]:
        """Start all of ``copies`` and return when each has ended."""
        begun = [(one, self.run.started(one.server, self._command(one))) for one in copies]
        ends: dict[str, float] = {}
        deadline = time.monotonic() + LIMIT_S
        try:
            while len(ends) < len(begun):
                for one, process in begun:
                    if one.server not in ends and process.poll() is not None:
                        ends[one.server] = time.monotonic()
                if time.monotonic() > deadline:
                    raise UserError(f"not all servers have the file after {LIMIT_S:g} s")
                time.sleep(POLL_S)
        finally:
            for _, process in begun:
                process.kill()
        for one, process in begun:
            _, err = process.communicate()
            if process.returncode:
                words = err.strip().splitlines() or ["it gave no reason"]
                raise UserError(f"{one.server} did not get the file: {words[-1]}")
        return list(ends.values())

    def _command(self, copy: ModelCopy) -> Sequence[str]:
        """Return the client of ``copy``."""
        target = str(self._place(copy.server))
        if copy.source is None:
            remote = f"nfs://{self.nfs_address}{EXPORT}/{MODEL}?version=4"
            return ("sh", "-c", 'exec nfs-cat "$1" > "$2"', "sh", remote, target)
        address = self.run.machines.address(copy.source, STORAGE)
        return ("curl", "-sSf", "-o", target, f"http://{address}:{HTTP_PORT}/{MODEL}")

    def _place(self, server: str) -> Path:
        """Return where the copy of ``server`` is."""
        folder = self.folder / server
        folder.mkdir(exist_ok=True)
        return folder / MODEL

    @contextmanager
    def _served(self, source: str, store: str) -> Iterator[None]:
        """Serve the file of ``source`` by HTTP during the block."""
        place = self.original if source == store else self._place(source)
        address = self.run.machines.address(source, STORAGE)
        argv = [sys.executable, "-u", "-m", "http.server", str(HTTP_PORT)]
        argv += ["--bind", address, "--directory", str(place.parent)]
        process = self.run.started(source, argv)
        try:
            assert process.stdout is not None
            if "Serving HTTP" not in process.stdout.readline():
                raise UserError(f"no HTTP server starts on {source}: is port {HTTP_PORT} in use?")
            yield
        finally:
            process.kill()
            process.communicate()

    def _sent(self, store: str) -> int:
        """Return what ``store`` has sent over the storage network."""
        lab = self.run.cluster.labs[STORAGE]
        return sum(one.tx_bytes for one in lab.counters([store]).values())
