"""Options that several verbs have, each declared once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from topologies.units import parse_time_ns

Option = Callable[[Any], Any]

TABLE_OR_JSON: Option = click.option(
    "--format", "-f", "form", type=click.Choice(["table", "json"]), default="table"
)
#: Of verbs that work in a lab whose name the argument need not have.
LAB: Option = click.option(
    "--lab", metavar="NAME", help="Which lab; not needed when only one is running."
)
PARAMETERS: Option = click.option(
    "--param", "pairs", multiple=True, metavar="NAME=VALUE", help="of the scenario"
)
ITERATIONS: Option = click.option(
    "--iterations", metavar="N", help="same as --param iterations=..."
)
RUN_FOLDER: Option = click.option(
    "--output", type=click.Path(path_type=Path), help="run folder [default: runs/...]"
)
FABRIC: Option = click.option(
    "--fabric",
    type=click.Choice(["kernel", "model"]),
    default="kernel",
    show_default=True,
    help="kernel: switches forward real frames in namespaces, which takes root; model: switches "
    "are a model in this process, without root, and each result says so",
)
LAB_NAME: Option = click.option("--name", metavar="LAB", help="name of the lab while it stands")
SEED: Option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="decides everything that is random",
)


def waiting_prices(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the prices of waiting GPUs: ``gpu_watts``, ``nic_watts``, ``gpu_hour``."""
    for name, metavar, meaning in (
        (
            "--gpu-hour",
            "PRICE",
            "what a GPU costs an hour, in any currency: adds what waiting costs",
        ),
        ("--nic-watts", "W", "what a NIC takes while its GPU waits for the network"),
        ("--gpu-watts", "W", "what a GPU takes while it waits for the network"),
    ):
        option = click.option(
            name,
            metavar=metavar,
            type=click.FloatRange(min=0, min_open=True),
            callback=_finite,
            help=meaning,
        )
        command = option(command)
    return command


def _finite(
    _context: click.Context, _option: click.Parameter, number: float | None
) -> float | None:
    if number is not None and not math.isfinite(number):
        raise click.BadParameter("it is not finite; write a number such as 700")
    return number


def delay_bounds(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the bounds of one-way delays, in ns."""
    scale_out = click.option(
        "--delay-bound",
        default="10us",
        callback=lambda _, __, text: parse_time_ns(text),
        show_default=True,
        metavar="TIME",
        help="one-way delay that an idle fabric should keep from GPU to GPU.",
    )
    scale_up = click.option(
        "--scale-up-bound",
        default="1us",
        callback=lambda _, __, text: parse_time_ns(text),
        show_default=True,
        metavar="TIME",
        help="the same of scale-up networks.",
    )
    return scale_out(scale_up(command))


def nic(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the option ``--nic``; its choices are loaded with a verb that has it."""
    from emulator.sim.endpoint.nic import nic_profile

    return click.option(
        "--nic",
        type=click.Choice([nic_profile.NONE, *nic_profile.PROFILES]),
        default=nic_profile.NONE,
        show_default=True,
        help="time that NICs take from a doorbell to the wire and from a packet to a completion, "
        "as of this one; none: no time",
    )(command)


def pxn(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the option ``--pxn``."""
    from emulator.run.plan.variants import PXN_MODES

    return click.option(
        "--pxn",
        type=click.Choice(PXN_MODES),
        default=PXN_MODES[0],
        show_default=True,
        help="writes to another rail go over NVLink to the GPU that stands on it, which sends them "
        "on: where the fabric has no other way, wherever that is shorter, or never",
    )(command)


def gpu_direct(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the option ``--gpu-direct``."""
    return click.option(
        "--gpu-direct",
        metavar="on|off[:hosts=HOST+HOST,rate=RATE]",
        default="on",
        show_default=True,
        help="off: the data of these servers, or of all, go through host memory, as without "
        "GPUDirect RDMA, where what a GPU sends and receives shares RATE (461 Gb/s)",
    )(command)


#: Options that say something else in each verb that has them.
_VARIED: Mapping[str, Mapping[str, Any]] = {
    "topology": {"metavar": "SPEC|FILE"},
    "transport": {"metavar": "SPEC"},
    "switch": {"metavar": "SPEC"},
    "plane": {"flag": "--control-plane", "metavar": "SPEC"},
    "stretched": {
        "flag": "--network-dilation", "metavar": "NETWORK=NUMBER", "multiple": True,
    },
    "changed": {
        "flag": "--service-param", "metavar": "SERVICE.NAME=NUMBER", "multiple": True,
    },
    "report": {"is_flag": True},
}  # fmt: skip


def option(name: str, help: str, **more: Any) -> Option:
    """Return the option that a verb has as its parameter ``name``, with the verb's own ``help``."""
    given = {"flag": f"--{name}", **_VARIED[name], "help": help, **more}
    return click.option(given.pop("flag"), name, **given)


def output_option(help: str, **kind: bool) -> Option:
    """Return ``--output``, which is of that kind, as of :class:`click.Path`."""
    return click.option("--output", "-o", type=click.Path(path_type=Path, **kind), help=help)


def result_format(help: str | None, first: str = "table") -> Option:
    """Return ``--format``: ``first``, or JSON."""
    return click.option(
        "--format",
        "form",
        type=click.Choice([first, "json"]),
        default=first,
        show_default=True,
        help=help,
    )


def lines_format(default: str) -> Option:
    """Return ``--format`` of what reports while it goes on."""
    return click.option(
        "--format",
        "style",
        type=click.Choice(["json", "table"]),
        default=default,
        show_default=True,
        help="json: one object per line.",
    )


class Group(click.Group):
    """A group that shows its help where no command follows."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help on standard error, and exit with status 2, without any argument."""
        if not args:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)
