"""A running cluster: its networks as labs, whose machines stand in several of them.

::

    cluster          the backend: GPUs and rails
    cluster-front    the frontend           \
    cluster-stor     the storage network     |  one namespace for each machine, which has
    cluster-mgmt     the management network /   a name in every lab that it is in

Each is an ordinary lab, to be captured, faulted and looked at by its name.  They are built together
and go together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from emulator.cluster import isolation
from emulator.dataplane import lab_record
from emulator.dataplane.kernel.fabric.cable_delay import for_kernel_traffic
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings, Membership, Progress
from emulator.errors import UserError
from topologies.addressing import PORT_PREFIXES
from topologies.advice import near
from topologies.model import BACKEND, FRONTEND, MANAGEMENT, STORAGE, Topology, TopologyError


def member_name(cluster: str, network: str) -> str:
    """Return the name of the lab of ``network``; UserError if that is too long for one."""
    name = f"{cluster}-{PORT_PREFIXES[network]}"
    if not lab_record.LAB_NAME.fullmatch(name):
        raise UserError(
            f"the networks of cluster {cluster!r} would be labs with names such as {name!r}, which "
            "is too long: take --name with fewer letters"
        )
    return name


class ClusterLab:
    """The labs of a cluster by the network's name, the backend's last.

    Make one with :meth:`create` or find one with :meth:`attach`.
    """

    def __init__(self, name: str, labs: Mapping[str, Lab]) -> None:
        self.name = name
        self.labs = labs

    @classmethod
    def create(
        cls,
        name: str,
        topology: Topology,
        *,
        dilations: Mapping[str, float],
        backend: FabricSettings,
        progress: Progress | None = None,
    ) -> Self:
        """Build every network of ``topology``; return when all routes are there.

        ``dilations`` are those of the networks beside the backend, whose settings are ``backend``.
        The others have its seed and persistence.

        Raises UserError as that does.  Whatever is raised, nothing of the cluster is left.
        """
        names = {one.network: member_name(name, one.network) for one in topology.networks}
        shared: dict[str, Path] = {}
        labs: dict[str, Lab] = {}
        with ExitStack() as undo:
            for network in topology.networks:
                label = names[network.network]
                settings = FabricSettings(
                    spec=f"{backend.spec} ({network.network})",
                    seed=backend.seed,
                    dilation=dilations[network.network],
                    cable_delay=for_kernel_traffic(),
                    persistent=backend.persistent,
                    membership=Membership(cluster=name, network=network.network),
                    shared={n: p for n, p in shared.items() if n in network.by_name},
                )
                resolved = isolation.resolved(network)
                lab = Lab.create(label, resolved, settings, progress=progress)
                undo.callback(lab.discard)
                labs[network.network] = lab
                if isolation.has_border(lab):
                    isolation.build_border(lab)
                isolation.build_tenants(lab)
                for node in network.gpus:
                    shared.setdefault(node.name, lab.netns(node.name))
            labs[BACKEND] = Lab.create(name, topology, backend, progress=progress)
            undo.pop_all()
        return cls(name, labs)

    @classmethod
    def attach(cls, name: str) -> Self:
        """The running cluster ``name``.  Raises UserError if there is none, or it is not whole."""
        backend = Lab.attach(name)
        labs = {
            one.network: Lab.attach(member_name(name, one.network))
            for one in backend.topology.networks
        }
        return cls(name, labs | {BACKEND: backend})

    @property
    def backend(self) -> Lab:
        """Return the lab of the scale-out network, whose name is the cluster's."""
        return self.labs[BACKEND]

    def discard(self) -> None:
        """Take down what this process made, also if it is persistent."""
        for lab in reversed(tuple(self.labs.values())):
            lab.discard()

    def lab_of(self, node: str) -> Lab:
        """Return the first lab that has ``node``; TopologyError if none has."""
        for lab in self.labs.values():
            if node in lab.topology.by_name:
                return lab
        raise TopologyError(f"cluster {self.name} has no node {node!r}")

    def addresses(self, machine: str) -> Iterator[tuple[str, str]]:
        """Yield the networks that ``machine`` is in, each with the address that it has there."""
        for network, lab in self.labs.items():
            node = lab.topology.by_name.get(machine)
            for port in node.ports if node is not None else ():
                if port.address is not None:
                    yield network, str(port.address.ip)

    def close(self) -> None:
        """Take down what this process made and is not persistent; let go of the rest."""
        for lab in reversed(tuple(self.labs.values())):
            lab.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


#: Host seconds per second of a network, which carries kernel TCP and real daemons: a cable of 100
#: Gb/s at 20 passes 5 Gb/s.  It is as slow as two processor cores keep up with.
DEFAULTS: Mapping[str, float] = {FRONTEND: 20.0, STORAGE: 100.0, MANAGEMENT: 1.0}


def dilations(topology: Topology, words: Iterable[str]) -> dict[str, float]:
    """Return the dilation of each network of ``topology``, with those that ``words`` set.

    A word is ``NETWORK=NUMBER``.  Raises UserError for a network that is not there or a number that
    cannot be.
    """
    found = {one.network: DEFAULTS[one.network] for one in topology.networks}
    for word in words:
        name, equals, number = (part.strip() for part in word.partition("="))
        if not equals:
            raise UserError(f"{word!r} is not NETWORK=NUMBER, such as {FRONTEND}=50")
        if name not in found:
            if name == BACKEND:
                raise UserError("the dilation of the backend is set by --dilation")
            known = near(name, found) if found else ": the topology has no other networks"
            raise UserError(f"there is no network {name!r}{known}")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise UserError(f"the dilation of {name} is {number!r}; it is a number above 0")
        found[name] = value
    return found
