"""``uetemu up``: build a fabric and leave it running."""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from types import FrameType

import click

from emulator.cli.options import SEED, TABLE_OR_JSON, option
from emulator.cli.plugin_command import PluginCommand
from emulator.cli.progress_bar import progress_bar
from emulator.cluster.cluster_lab import DEFAULTS, ClusterLab, dilations, member_name
from emulator.cluster.services.machine_map import MachineMap
from emulator.cluster.services.service_plan import ALL, KINDS, NONE, missing, plan_services
from emulator.cluster.services.service_runner import Services
from emulator.dataplane import homing
from emulator.dataplane.cleanup import require_root
from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.fabric_choice import choose
from emulator.dataplane.kernel.fabric.cable_delay import for_kernel_traffic
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch import switch_choice as choice
from emulator.run.plan.run_plan import usual_switch
from emulator.run.plan.variants import DEFAULT_TRANSPORT
from topologies import catalogue
from topologies.exports.mermaid import inventory
from topologies.model import Topology

DEFAULT_DILATION = 1000.0


@click.command(
    "up",
    cls=PluginCommand,
    sections=(
        lambda: "Topologies and their parameters:",
        *(catalogue.describe, choice.describe, control_plane.describe),
    ),
)
@click.argument("topology", metavar="[TOPOLOGY | FILE]", default=catalogue.DEFAULT)
@click.option("--name", metavar="LAB", help="Name of the lab; default: that of the topology.")
@click.option(
    "--dilation",
    type=click.FloatRange(0, min_open=True),
    default=DEFAULT_DILATION,
    show_default=True,
    help="Host time per fabric time: at 1000 a 400 Gb/s link runs at 400 Mb/s.",
)
@option(
    "stretched",
    "Of a cluster: host time per time of a network beside the backend; default: "
    + ", ".join(f"{name}={value:g}" for name, value in DEFAULTS.items())
    + ".",
)
@click.option(
    "--services",
    metavar="SERVICES",
    default=NONE,
    show_default=True,
    help=f"Of a cluster: {ALL}, or NAME[@MACHINE+...],...; uetemu services lists them.",
)
@option(
    "changed",
    "A parameter of a service, such as llm.ttft=0.1: seconds of its network's time.",
)
@option(
    "switch",
    "What the switches do: PROFILE or PROFILE:param=value,...; none: plain queues "
    f"[default: as a fabric profile says, or {choice.DEFAULT}].",
    metavar="SWITCH",
)
@option(
    "plane",
    "How switches learn their routes: NAME or NAME:param=value,...; default: as the topology "
    f"says, or {control_plane.DEFAULT}.",
    metavar="PLANE",
)
@SEED
@TABLE_OR_JSON
def command(  # noqa: PLR0913  options of the verb
    topology: str,
    name: str | None,
    dilation: float,
    stretched: tuple[str, ...],
    services: str,
    changed: tuple[str, ...],
    switch: str | None,
    plane: str | None,
    seed: int,
    form: str,
) -> None:
    """Build TOPOLOGY and leave it running as a lab.

    TOPOLOGY is NAME, NAME:param=value,... or a fabric profile FILE.yaml.
    """
    require_root("build a lab")
    chosen = choose(topology)
    model, homed = homing.resolved(chosen.topology, plane)
    model = control_plane.chosen(model, plane)
    # of a switch that the profile does not request, no line of it is to blame
    answering = chosen.answering() if switch is None else nullcontext()
    switch = switch or usual_switch(chosen.transport or DEFAULT_TRANSPORT, model, chosen)
    asic = choice.requested(switch)
    lab = chosen.lab if name is None else name
    planned = plan_services(services, MachineMap(model), changed)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    began = time.monotonic()
    settings = FabricSettings(
        spec=topology,
        seed=seed,
        dilation=dilation,
        cable_delay="nic" if asic is not None and asic.pausing else for_kernel_traffic(),
        switch=asic,
        persistent=True,
    )
    with (
        answering,
        progress_bar(f"building {lab}") as progress,
        ClusterLab.create(
            lab, model, dilations=dilations(model, stretched), backend=settings, progress=progress
        ) as cluster,
    ):
        try:
            started = Services.start(cluster, planned, progress)
        except BaseException:
            cluster.discard()
            raise
    took = time.monotonic() - began
    if form == "json":
        facts = _facts(lab, topology, model, switch, took) | {"services": started.rows()}
        if homed is not None:
            facts["homing"] = dataclasses.asdict(homed)
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(
            f"lab {lab} is up: {inventory(model)}, switch {switch}, "
            f"control plane {model.profile.control_plane}, "
            f"{f'homing {homed}, ' if homed else ''}in {took:.1f} s\n"
            + "".join(
                f"  {one.network}, lab {member_name(lab, one.network)}: {inventory(one)}\n"
                for one in model.networks
            )
            + "".join(f"  {line}\n" for line in (*started.lines(), *_left_out(services)))
            + f"  uetemu status {lab}\n"
            f"  uetemu exec {lab}:{model.gpus[0].name} -- ip route\n"
            f"  uetemu down {lab}"
        )


def _left_out(services: str) -> Iterator[str]:
    for kind in KINDS.values() if services == ALL else ():
        for program in missing(kind):
            yield f"service {kind.name}: left out; to have it, {program.advice}"


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Whatever ends a build half-way takes it back, as Ctrl-C does."""
    raise KeyboardInterrupt


def _facts(lab: str, spec: str, model: Topology, switch: str, took: float) -> dict[str, object]:
    return {
        "lab": lab,
        "topology": spec,
        "switch": None if switch == choice.NONE else switch,
        "control_plane": model.profile.control_plane,
        "gpus": len(model.gpus),
        "switches": len(model.switches),
        "links": len(model.links),
        "networks": {one.network: member_name(lab, one.network) for one in model.networks},
        "seconds": round(took, 3),
    }
