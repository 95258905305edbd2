"""One run of a cluster scenario: its cluster up, its services, its rows, its folder.

====================  ============================================================================
``result.json``       the rows, the networks with clock and dilation, events, works, errors ...
``networks.csv``      octets and drops of each network over the machine's time
``fabric.json``       the topology of the backend, with the other networks' names
``services/``         what every service printed
``*.pcap``            what a scenario captured
``NETWORK/``          ``capture.pcapng`` of all switch ports of each network, if that was asked for
====================  ============================================================================

Everything is on the host's clock, so a run has no digest: a second one differs.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from emulator.cluster.cluster_lab import ClusterLab, dilations
from emulator.cluster.isolation import tenants_of
from emulator.cluster.run.cluster_context import ClusterContext, NetworkSamples
from emulator.cluster.run.cluster_scenario import ClusterScenario, Row
from emulator.cluster.services.machine_map import MachineMap
from emulator.cluster.services.service_plan import plan_services
from emulator.cluster.services.service_runner import Services
from emulator.dataplane.capture.fabric_capture import Capture, Tap, describe
from emulator.dataplane.fabric_choice import choose
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.fabric.cable_delay import for_kernel_traffic
from emulator.dataplane.settings import FabricSettings, Progress
from emulator.dataplane.switch import switch_choice
from emulator.errors import UserError
from emulator.run.results import RunFolder

SCHEMA = "uetemu.cluster-result/1"
DILATION = 1000.0  # of the backend


@dataclass(frozen=True, kw_only=True)
class ClusterRequest:
    scenario: ClusterScenario
    parameters: Any
    topology: str | None = None
    stretched: Sequence[str] = ()
    changed: Sequence[str] = ()
    seed: int = 1
    output: Path | None = None
    #: whether all switch ports of all networks are captured, headers alone
    capture: bool = False


@dataclass
class ClusterResult:
    """``result.json`` of a cluster's run, while it grows."""

    scenario: str
    topology: str
    lab: str
    seed: int
    parameters: Mapping[str, object]
    networks: Sequence[Mapping[str, object]] = ()
    rows: list[Row] = field(default_factory=list)
    events: list[Mapping[str, object]] = field(default_factory=list)
    works: list[Mapping[str, object]] = field(default_factory=list)
    services: Sequence[Mapping[str, object]] = ()
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    schema: str = SCHEMA
    clock: str = "host"
    digest: None = None

    @property
    def succeeded(self) -> bool:
        """Return whether there are rows, none of which failed, and no errors."""
        return bool(self.rows) and not self.errors and all(r.get("ok", True) for r in self.rows)


def execute(
    request: ClusterRequest, progress: Progress | None = None
) -> tuple[Path, ClusterResult]:
    """Run the scenario; return its folder and result.

    Raises UserError for what cannot be, before anything is built.
    """
    spec = request.topology or request.scenario.topology
    topology = choose(spec).topology
    if not topology.networks:
        raise UserError(
            f"{spec} has no networks beside the backend: take --topology cluster, or a profile "
            "with a section networks"
        )
    stretched = dilations(topology, request.stretched)
    services_needed = request.scenario.services(request.parameters)
    planned = plan_services(services_needed, MachineMap(topology), request.changed)
    folder = RunFolder.create(request.scenario.name, request.output)
    name = f"c{secrets.token_hex(4)}"
    result = ClusterResult(
        scenario=request.scenario.name,
        topology=spec,
        lab=name,
        seed=request.seed,
        parameters=asdict(request.parameters),
    )
    backend = FabricSettings(
        spec=spec,
        seed=request.seed,
        dilation=DILATION,
        cable_delay=for_kernel_traffic(),
        switch=switch_choice.requested(switch_choice.DEFAULT),
    )
    with ClusterLab.create(
        name, topology, dilations=stretched, backend=backend, progress=progress
    ) as cluster:
        result.networks = list(_networks(cluster))
        services = Services.start(cluster, planned, progress)
        samples = NetworkSamples(cluster)
        context = ClusterContext(
            cluster=cluster,
            services=services,
            samples=samples,
            folder=folder.path,
            seed=request.seed,
            captured=request.capture,
        )
        try:
            with _captured(cluster if request.capture else None, folder.path, result):
                for row in request.scenario.conduct(context, request.parameters):
                    result.rows.append(row)
                    _note(result, folder, samples, services)
        except UserError as error:
            result.errors.append(str(error))
        except KeyboardInterrupt:
            result.errors.append("the run was interrupted: its rows are those until then")
            raise
        finally:
            for beside in context.fabric_runs:
                beside.end()
            samples.end()
            result.errors += services.died()
            services.save(folder.path)
            samples.write(folder.path / "networks.csv")
            _note(result, folder, samples, services)
    return folder.path, result


@contextmanager
def _captured(cluster: ClusterLab | None, folder: Path, result: ClusterResult) -> Iterator[None]:
    """Capture the headers that pass all switch ports of each network meanwhile; None: nothing."""
    captures: list[Capture] = []
    with ExitStack() as running:
        for network, lab in cluster.labs.items() if cluster is not None else ():
            chosen = [
                Tap(node.name, tuple(port.name for port in node.ports))
                for node in lab.topology.switches
            ]
            place = folder / network
            place.mkdir()
            captures.append(
                Capture(
                    chosen,
                    namespace=partial(namespaces.name_of, lab.name),
                    folder=place,
                    comment=describe(lab.name, lab.dilation),
                )
            )
            running.enter_context(captures[-1])
        yield
        for capture in captures:
            record = capture.stop()
            result.errors += record.errors
            result.warnings += record.warnings


def _note(
    result: ClusterResult, folder: RunFolder, samples: NetworkSamples, services: Services
) -> None:
    """Write what is known so far: a run that is killed keeps it."""
    result.events = [asdict(event) for event in samples.events]
    result.works = [asdict(work) for work in samples.works]
    result.services = services.rows()
    folder.write("result.json", vars(result))


def _networks(cluster: ClusterLab) -> Iterator[Mapping[str, object]]:
    for network, lab in cluster.labs.items():
        yield {
            "network": network,
            "clock": "host",
            "dilation": lab.dilation,
            "machines": len(lab.topology.gpus),
            "switches": len(lab.topology.switches),
            "control_plane": lab.topology.profile.control_plane,
            **({"isolation": lab.topology.profile.isolation} if tenants_of(lab.topology) else {}),
        }
