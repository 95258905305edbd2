"""Jobs start: ranks find each other over management, and get their first parameters.

::

    management   rank 0 .. n-1  -- register: GPU, server, address, port -->  rendezvous on head0
                 rank 0 .. n-1  <-- barrier: all n are there ------------
                 rank 0 .. n-1  <-- addresses of all peers --------------
    frontend     rank 0 (master) == first parameters, by tree or chain ==> rank 1 .. n-1

Traffic: each GPU has a rank, a process in the namespace of its server.  It listens, registers at
the rendezvous by TCP, waits until its job is complete, and reads where its peers listen: what
TCPStore of PyTorch and the bootstrap of NCCL do.  Then the master sends ``parameters`` octets, and
every rank passes each piece on as it comes: to those of a binomial ``tree``, to the next of a
``chain``, or none (``flat``: the master sends to all).  Each tenant of the frontend has a job of
its own, since tenants do not reach each other.  A cluster without a frontend takes the storage
network, then management; ``over`` says which.

Then two starts that must fail, and say why: the last rank is ``missing``, or two processes have
one rank (``twice``).

Measured, by the host's clock: the slowest rank in each phase (ms of this machine), processes stand
before.  ``register`` has the TCP connection in it, ``exchange`` a request for each peer, and
``broadcast`` the comparison of checksums.  ``GBps`` is that of all copies together, in the
network's own time; ranks of one server reach each other without a cable.  Every receiver compares
SHA-256 with the master's, which comes by the rendezvous, and this scenario all with the seed's.

What should be seen: of small parameters, all phases cost some ms: Python and processors.  Of large
ones a tree fills the master's port with several copies, and a chain with one.

No packet of the rendezvous is on another network than management, and none of the parameters
there: both are counted, at the management switch and at all leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from emulator.cluster.run.clients.rendezvous_rank import layouts
from emulator.cluster.run.cluster_context import ClusterContext
from emulator.cluster.run.job_start import (
    JobPlan,
    started,
    tenants_servers,
    with_a_rank_twice,
    without_a_rank,
)
from emulator.cluster.run.packet_survey import management_watched
from emulator.errors import UserError
from emulator.scenario import parameter
from topologies.parts.design_parameters import COUNT, SIZE

TOPOLOGY = "cluster"
SERVICES = "rendezvous"
MISSING, TWICE, NONE = "missing", "twice", "none"
#: How long ranks wait for one that does not come (s of this machine).
DRILL_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters of the jobs; ``timeout`` is in seconds of this machine."""

    parameters: int = parameter("16MiB", SIZE, help="octets of the first parameters of a job")
    layout: tuple[str, ...] = parameter(
        ("tree", "chain"), choices=layouts(), many=True, help="how they travel, a start for each"
    )
    timeout: int = parameter(30, COUNT, help="how long a rank waits, in seconds of this machine")
    faults: tuple[str, ...] = parameter(
        (MISSING, TWICE),
        choices=(MISSING, TWICE, NONE),
        many=True,
        help="starts that must fail",
    )


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Start a job of every tenant in each layout, then those that fail."""
    groups = tenants_servers(run)
    gpus = {server.name: len(server.gpus) for server in run.machines.topology.servers}
    for tenant, servers in groups.items():
        if sum(gpus[one] for one in servers) < 2:
            raise UserError(
                f"the job of {tenant or 'this cluster'} has one GPU, and a job needs two; take "
                "more hosts, gpus_per_host=2 or fewer tenants"
            )
    with management_watched(run) as watch:
        for layout in parameters.layout:
            for tenant, servers in groups.items():
                name = f"{tenant or 'job'} by {layout}"
                yield from started(run, _plan(parameters, name, servers, layout))
        first, layout = next(iter(groups.values())), parameters.layout[0]
        if MISSING in parameters.faults:
            plan = _plan(parameters, f"job {MISSING}", first, layout)
            yield without_a_rank(run, replace(plan, timeout_s=min(DRILL_S, plan.timeout_s)))
        if TWICE in parameters.faults:
            yield with_a_rank_twice(run, _plan(parameters, f"job {TWICE}", first, layout))
    yield from run.samples.total_rows()
    yield from watch.rows()


def _plan(parameters: Parameters, name: str, servers: Sequence[str], layout: str) -> JobPlan:
    return JobPlan(
        name=name,
        servers=servers,
        octets=parameters.parameters,
        layout=layout,
        timeout_s=parameters.timeout,
    )
