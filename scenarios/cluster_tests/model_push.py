"""A model file is brought to all servers: from one machine, or from server to server.

::

    one at a time        all at once          tree                            chain

    root --> h0          root --> h0          root --> h0          round 1    root -> h0 -> h1 -> h2
    root --> h1               +-> h1          root --> h1   h0 --> h2    2
    root --> h2               +-> h2          root, h0, h1 --> h4, h5 .. 3    each sends on what it
       ...                    +-> ...            ...                          has, while more comes

Traffic: a file of ``file`` octets lies on a root, and a copy comes to every server over the storage
network. ``sources`` chooses the roots. ``storage`` is ``storage0``, ``head`` is ``head0``, each
with an HTTP server (``curl`` fetches). ``storage`` also has the file in the file system that all
servers share (NFS, ``nfs-cat``). ``s3`` is the object store on ``storage0``, from which ``curl``
fetches with signed requests. The ways are those of the drawing:

- all at once, and one after another;
- tree: in each round everyone who has the file gives it to one who has not, so that the number of
  copies doubles, and one more. Only between rounds do they wait for each other;
- chain: every server passes on each piece as it comes. Relays in Python stand before the time
  begins, where ``curl`` is started within it.

Each copy is compared with the file, outside of the measured time.

Measured, in the storage network's time (the machine's divided by its dilation): the time to the
first and to the last server that has it; GB/s of all copies together; the octets that the root
sent; copies that are right.

What should be seen: one at a time takes N times as long as one copy. All at once fills the port of
the root, where no server gets more than its share. The tree takes log2(N + 1) rounds of one copy
each, and its root sends one copy a round. In the chain the root sends one copy in all, and the last
server has it soon after the first. With N of 4 and small files the start of clients, some 10 ms of
the machine each, and the wait between rounds count as well: take a larger ``file``. Both ends share
this machine's processors; where they set the pace, a larger ``--network-dilation storage=N`` gives
them time.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from filecmp import cmp
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from emulator.cluster.run.clients import file_relay
from emulator.cluster.run.clients.file_relay import RelayTask
from emulator.cluster.run.cluster_context import MODEL_DISTRIBUTION, ClusterContext
from emulator.cluster.run.processes import run_together
from emulator.cluster.services import kinds
from emulator.errors import UserError
from emulator.scenario import parameter
from topologies.cluster import HEAD
from topologies.model import STORAGE
from topologies.parts.design_parameters import SIZE

TOPOLOGY = "cluster"
MODEL = "model"
HTTP_PORT = 80
FROM_STORAGE, FROM_S3, FROM_HEAD = "storage", "s3", "head"
#: Clients.
BY_NFS, BY_S3, BY_HTTP = "nfs", "s3", "http"
#: Any key is taken.
SIGNED = ("--aws-sigv4", "aws:amz:us-east-1:s3", "--user", "any:key")
BUCKET = "models"


@dataclass(frozen=True, kw_only=True)
class Parameters:
    file: int = parameter(32 * 2**20, SIZE, help="octets of the model's file")
    sources: tuple[str, ...] = parameter(
        (FROM_STORAGE, FROM_HEAD),
        choices=(FROM_STORAGE, FROM_S3, FROM_HEAD),
        many=True,
        help="what the file comes from; s3 needs moto (uetemu[s3])",
    )


def services(parameters: Parameters) -> str:
    names = {FROM_STORAGE: kinds.nfs.name, FROM_S3: kinds.s3.name}
    return ",".join(name for source, name in names.items() if source in parameters.sources)


@dataclass(frozen=True, kw_only=True)
class ModelCopy:
    """One transfer from ``source``, a machine, to ``server``, by a kind of client."""

    source: str
    server: str
    by: str = BY_HTTP


#: Rounds of transfers that run together.
Rounds = Sequence[Sequence[ModelCopy]]


@dataclass(frozen=True, kw_only=True)
class PushWay:
    """A way to bring the file from ``root`` to all servers; without ``rounds`` it is the chain."""

    what: str
    root: str
    rounds: Rounds = ()


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Bring the file to all servers in each of the ways, and report how long it takes."""
    with TemporaryDirectory(prefix="uetemu-model-") as folder:
        original = Path(folder) / MODEL
        original.write_bytes(np.random.default_rng(run.seed).bytes(parameters.file))
        _offer(run, original, parameters.sources)
        for way in ways(run.machines.storage[0], run.machines.servers, parameters.sources):
            run.event(way.what)
            with TemporaryDirectory(prefix="uetemu-model-") as copies:
                push = ModelPush(run, original, Path(copies))
                with run.work(MODEL_DISTRIBUTION):
                    measured = push.measured(way)
                yield {"what": way.what, "source": way.root, **measured}


def _offer(run: ClusterContext, original: Path, sources: Sequence[str]) -> None:
    for store in run.services.of_kind(kinds.nfs) if FROM_STORAGE in sources else ():
        (run.services.folder(store.name) / kinds.SHARED / MODEL).write_bytes(original.read_bytes())
    for store in run.services.of_kind(kinds.s3) if FROM_S3 in sources else ():
        bucket = f"http://{store.address}:{store.port}/{BUCKET}"
        for request in (("-X", "PUT", bucket), ("-T", str(original), f"{bucket}/{MODEL}")):
            run.execute(store.machine, ("curl", "-sSf", *SIGNED, *request))


def ways(storage: str, servers: Sequence[str], sources: Sequence[str]) -> Iterator[PushWay]:
    """Yield the ways from ``sources``, of which ``storage`` is the machine of two."""

    def copies(root: str, by: str) -> list[ModelCopy]:
        return [ModelCopy(source=root, server=one, by=by) for one in servers]

    if FROM_STORAGE in sources:
        yield PushWay(what="nfs, all at once", root=storage, rounds=[copies(storage, BY_NFS)])
    if FROM_S3 in sources:
        yield PushWay(what="s3, all at once", root=storage, rounds=[copies(storage, BY_S3)])
    for source, root, suffix in ((FROM_STORAGE, storage, ""), (FROM_HEAD, HEAD, f" from {HEAD}")):
        if source in sources:
            each = copies(root, BY_HTTP)
            yield PushWay(
                what=f"http, one at a time{suffix}", root=root, rounds=[[one] for one in each]
            )
            yield PushWay(what=f"http, all at once{suffix}", root=root, rounds=[each])
            yield PushWay(what=f"http, tree{suffix}", root=root, rounds=tree(root, servers))
            yield PushWay(what=f"relays, chain{suffix}", root=root)


def tree(root: str, servers: Sequence[str]) -> Rounds:
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
    folder: Path

    def measured(self, way: PushWay) -> Mapping[str, object]:
        """Carry out ``way``; return times in the network's time, octets and comparisons."""
        sent = self._sent(way.root)
        ends = self._by_rounds(way) if way.rounds else self._by_chain(way)
        sent = self._sent(way.root) - sent
        servers = self.run.machines.servers
        right = sum(cmp(self.original, self._place(one), shallow=False) for one in servers)
        octets = len(servers) * self.original.stat().st_size
        dilation = self.run.dilation(STORAGE)
        return {
            "rounds": len(way.rounds) or None,
            "first_ms": min(ends) / dilation * 1e3,
            "last_ms": max(ends) / dilation * 1e3,
            "GBps": octets / (max(ends) / dilation) / 1e9,
            "source_sent": sent,
            "copies": len(servers),
            "right": right,
            "ok": right == len(servers),
        }

    def _by_rounds(self, way: PushWay) -> Sequence[float]:
        """Let clients fetch the file round by round; return when each had it (s)."""
        copies = [one for now in way.rounds for one in now]
        ends: list[float] = []
        with ExitStack() as serving:
            for source in dict.fromkeys(one.source for one in copies if one.by == BY_HTTP):
                serving.enter_context(self._served(source, way.root))
            began = time.monotonic()
            for now in way.rounds:
                commands = {one.server: self._command(one) for one in now}
                found = run_together(self.run, commands, "get the file")
                ends += [end - began for end in found.values()]
        return ends

    def _by_chain(self, way: PushWay) -> Sequence[float]:
        """Let relays pass the file on; return when each had it (s)."""
        servers = self.run.machines.servers
        begins: list[float] = []
        with self._served(way.root, way.root):
            begun: dict[str, subprocess.Popen[str]] = {}
            for before, server in zip((way.root, *servers), servers, strict=False):
                first, last = before == way.root, server == servers[-1]
                task = RelayTask(
                    source=self._address(before),
                    port=HTTP_PORT,
                    path=f"/{MODEL}" if first else "",
                    target=str(self._place(server)),
                    listen="" if last else self._address(server),
                    octets=self.original.stat().st_size,
                )
                begun[server] = self.run.begin(server, file_relay.__name__, asdict(task))
            ends = self.run.gathered(begun, released=lambda: begins.append(time.monotonic()))
            return [end - begins[0] for _, end in ends]

    def _address(self, machine: str) -> str:
        return self.run.machines.address(machine, STORAGE)

    def _command(self, copy: ModelCopy) -> Sequence[str]:
        target, address = str(self._place(copy.server)), self._address(copy.source)
        if copy.by == BY_NFS:
            remote = f"nfs://{address}{kinds.EXPORT}/{MODEL}"
            return ("sh", "-c", 'exec nfs-cat "$1" > "$2"', "sh", remote, target)
        if copy.by == BY_S3:
            remote = f"http://{address}:{kinds.s3.port}/{BUCKET}/{MODEL}"
            return ("curl", "-sSf", *SIGNED, "-o", target, remote)
        return ("curl", "-sSf", "-o", target, f"http://{address}:{HTTP_PORT}/{MODEL}")

    def _place(self, server: str) -> Path:
        folder = self.folder / server
        folder.mkdir(exist_ok=True)
        return folder / MODEL

    @contextmanager
    def _served(self, source: str, root: str) -> Iterator[None]:
        """Serve the file of ``source`` by HTTP during the block."""
        place = self.original if source == root else self._place(source)
        argv = [sys.executable, "-u", "-m", "http.server", str(HTTP_PORT)]
        argv += ["--bind", self._address(source), "--directory", str(place.parent)]
        process = self.run.started(source, argv)
        try:
            assert process.stdout is not None
            if "Serving HTTP" not in process.stdout.readline():
                raise UserError(f"no HTTP server starts on {source}: is port {HTTP_PORT} in use?")
            yield
        finally:
            process.kill()
            process.communicate()

    def _sent(self, machine: str) -> int:
        lab = self.run.cluster.labs[STORAGE]
        return sum(one.tx_bytes for one in lab.counters([machine]).values())
