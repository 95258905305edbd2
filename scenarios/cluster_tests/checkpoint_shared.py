"""Checkpoints go to the file system that all servers share, and other servers restore them.

::

    h0 -- state0 --+                                  +-- state3 --> h0
    h1 -- state1 --+== NFS: storage0:/data ===========+-- state0 --> h1
    h2 -- state2 --+                                  +-- state1 --> h2

Traffic: every server writes its state of ``state`` octets to a file of its own on ``storage0``, all
at once (``nfs-cp``, NFSv3). The command ends when the server has committed the file. Then every
server reads the file of the server before it, as a job does that comes back on other machines, and
compares it. In ``checkpoint_storage`` each server has blocks of its own, and finds only its own.

Measured, in the storage network's time (the machine's divided by its dilation): the slowest server,
with the start of its client; GB/s of all together; ``port_share``, their octets over what the port
of ``storage0`` carries in that time; states that are right, compared outside of the measured time.

What should be seen: the port of ``storage0`` is full, or else this machine sets the pace: a larger
``--network-dilation storage=N`` gives it time. Every state is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from emulator.cluster.run.clients.dataset_reader import content
from emulator.cluster.run.cluster_context import ClusterContext
from emulator.cluster.run.storage_nodes import shared_states
from emulator.cluster.services import kinds
from emulator.scenario import parameter
from topologies.parts.design_parameters import SIZE

TOPOLOGY = "cluster"
SERVICES = kinds.nfs.name
#: What states are drawn from, beside the seed and the server's number.
_STATE = 3


@dataclass(frozen=True, kw_only=True)
class Parameters:
    state: int = parameter(16 * 2**20, SIZE, help="octets of each server's state")


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Let all servers write their states, and each read that of the one before it."""
    states = {
        server: content(run.seed, _STATE, number, octets=parameters.state)
        for number, server in enumerate(run.machines.servers)
    }
    with shared_states(run, states) as shared:
        run.event("all write")
        yield shared.write("written")
        run.event("all read another one's")
        yield shared.restore("restored by others")
