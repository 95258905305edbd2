"""A cluster that runs during a block, as a scenario of clusters sees it."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from emulator.cluster.cluster_lab import ClusterLab, dilations
from emulator.cluster.run.cluster_context import ClusterContext, NetworkSamples
from emulator.cluster.services.machine_map import MachineMap
from emulator.cluster.services.service_plan import plan_services
from emulator.cluster.services.service_runner import Services
from emulator.dataplane.settings import FabricSettings
from topologies import catalogue


@contextmanager
def running_cluster(
    spec: str, folder: Path, *, services: str = "none", parameters: Sequence[str] = ()
) -> Iterator[ClusterContext]:
    """The cluster ``spec`` with ``services``; captures go to ``folder``."""
    topology = catalogue.load(spec)
    settings = FabricSettings(spec=spec, seed=1, dilation=1000)
    planned = plan_services(services, MachineMap(topology), parameters)
    with ClusterLab.create(
        f"c-{secrets.token_hex(4)}", topology, dilations=dilations(topology, []), backend=settings
    ) as cluster:
        samples = NetworkSamples(cluster)
        try:
            yield ClusterContext(
                cluster=cluster,
                services=Services.start(cluster, planned),
                samples=samples,
                folder=folder,
                seed=1,
            )
        finally:
            samples.end()
