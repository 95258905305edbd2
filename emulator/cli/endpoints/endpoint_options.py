"""Options of every endpoint that runs by itself, whatever its transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from emulator.cli.options import Option, lines_format
from emulator.cli.plugin_command import PluginCommand
from emulator.dataplane.cleanup import require_root
from emulator.errors import UserError
from emulator.lab.standalone.script.phrases import duration, number
from emulator.lab.standalone.session import Limits

F = TypeVar("F", bound=Callable[..., Any])


class Number(click.ParamType):  # type: ignore[type-arg]  # generic as of click 8.4
    """A whole number, also hexadecimal or with a multiple."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return number(value, param.opts[0] if param else "the value")


class DurationParam(click.ParamType):  # type: ignore[type-arg]  # generic as of click 8.4
    """A time in seconds, or with a unit; in ns here."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        return duration(value, param.opts[0] if param else "the time")


NUMBER, SPAN = Number(), DurationParam()
WHERE: tuple[Option, ...] = (
    click.option("-i", "--interface", metavar="NAME", help="Ethernet interface."),
    click.option("-n", "--netns", metavar="NAME|PATH", help="Network namespace to enter first."),
    click.option(
        "-a",
        "--address",
        metavar="FA",
        help="Own fabric address (FA).  [default: the interface's, of the peer's IP version]",
    ),
    click.option("-4", "version", flag_value=4, type=int, help="Take the IPv4 address."),
    click.option("-6", "version", flag_value=6, type=int, help="Take the IPv6 address."),
)
OFFERS: tuple[Option, ...] = (
    click.option("-r", "--region", "regions", metavar="KEY[:SIZE][,...]", multiple=True,
                 help="Register memory; may be given again (below)."),
    click.option("--receive", "receives", metavar="SIZE[xN][,...]", multiple=True,
                 help="Post receives for sends; may be given again (below)."),
    click.option("--receive-after", type=SPAN, default=0, metavar="TIME",
                 help="Post the receives so long after the first packet, so that earlier messages"
                 " are refused, kept or deferred."),
)  # fmt: skip
LEAVES: tuple[Option, ...] = (
    click.option("--duration", type=SPAN, metavar="TIME", help="End after so long."),
    click.option("--count", type=click.IntRange(1), metavar="N",
                 help="End after N completions of receives and writes with header data."),
    click.option("--pcap", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                 help="Write every frame sent and received into a new file (pcapng)."),
    click.option("--save", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                 help="Write data that arrives, and the regions at the end, into files."),
    click.option("--seed", type=NUMBER,
                 help="Decides random data.  [default: another one each time]"),
    lines_format("json"),
)  # fmt: skip
SETTINGS = click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="Any parameter of the endpoint (below); may be given again.",
)
#: What the role that acts has besides.
SCRIPT = click.option("--script", metavar="FILE|-", help="More operations, as JSON.")
IN_FLIGHT = click.option(
    "--in-flight",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Operations at a time; 0: all at once.",
)
START_AT = click.option(
    "--start-at",
    type=float,
    metavar="SECONDS",
    help="Begin the operations at this time (date +%s.%N), as other endpoints do; after= counts"
    " from there.  [default: now]",
)
TIMEOUT = click.option(
    "--timeout",
    type=SPAN,
    default="60",
    metavar="TIME",
    help="Give up after so long.  [default: 60s]",
)


#: Parts of the epilogs.
TIMES = "\b\nTIME is in seconds, or has a unit: 5ms, 250us, 7ns, 1.5s."
PATTERNS = """\
Patterns: reference (octet j of message i is (7*i + 13*j + j//256) mod 256),
          counter, zero, random, byte:0xNN, hex:..., text:..., file:PATH,
          or one element: uint64:1000"""
#: What an endpoint can be, with what it does.
_ROLES = {"target": "serve memory and receives", "initiator": "carry out operations at a target"}


def linger(default: str, help: str) -> Option:
    """Return ``--linger``, with a ``default`` in milliseconds."""
    shown = f"{help}  [default: {default}]"
    return click.option("--linger", type=SPAN, default=default, metavar="TIME", help=shown)


def role(
    group: click.Group, name: str, epilog: str, options: Sequence[Option]
) -> Callable[[Callable[..., int]], click.Command]:
    """Make a function the command of ``group`` that is the endpoint in this role."""
    phrases = click.argument("phrases", nargs=-1, metavar="[OPERATION]...")
    given = (phrases, *options) if name == "initiator" else options

    def made(function: Callable[..., int]) -> click.Command:
        command = group.command(name, short_help=_ROLES[name], cls=PluginCommand, epilog=epilog)
        return command(with_options(function, given))

    return made


def require_operations(options: Mapping[str, Any]) -> None:
    """Raise UserError where an initiator has nothing to do."""
    if not options["phrases"] and options["script"] is None:
        raise UserError("no operation is given; add one, for example write:3000, or --script FILE")


def taken(options: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Take options out; return those that were given, by what ``names`` calls each."""
    values = {there: options.pop(name, None) for name, there in names.items()}
    return {there: value for there, value in values.items() if value is not None}


def limits_from(options: dict[str, Any]) -> Limits:
    """Return the limits of the session; takes their options out."""
    names = ("duration", "count", "timeout", "linger", "close")
    values = taken(options, {name: name for name in names})
    return Limits(**values | {"timeout": values.get("timeout") or None})


def with_options(function: F, options: Sequence[Option]) -> F:
    """Give a command these options, in their order."""
    for option in reversed(options):
        function = option(function)
    return function


#: Fields of a run's configuration that the endpoint's own options and port decide.
_OWN = ("address", "mac", "neighbours", "ports", "payload_mtu", "mesh", "endless_receives")
GPU = click.option(
    "--gpu",
    metavar="[LAB:]GPU",
    help="Be this GPU of a running lab: in its namespace, on its port, in the lab's time (its"
    " dilation), configured for the fabric as in a run; --peer may name GPUs, too.  Of the options"
    " only --timeout, --duration, --linger and --start-at stay in this machine's time.",
)


def place(options: dict[str, Any], transport: str) -> None:
    """Put what ``--gpu`` says into ``options``, and addresses in place of names of GPUs.

    ``transport`` is what the endpoint speaks, as of a run.  Raises :class:`UserError`.
    """
    requested = options.pop("gpu")
    options["gpu"] = None
    if requested is None:
        if options["interface"] is None:
            raise UserError("say which port: -i NAME, or --gpu [LAB:]GPU in a running lab")
        return
    for name in ("interface", "netns", "address", "version"):
        if options[name] is not None:
            raise UserError(
                f"--gpu {requested} says the port and its address: leave -i, -n, -a, -4 and -6 out"
            )
    require_root("run an endpoint")
    # An endpoint on a named port, and --help, need none of these.
    from emulator.cli.labs.lab_choice import choose_lab, with_node
    from emulator.dataplane.kernel import namespaces
    from emulator.dataplane.lab_record import load_topology
    from emulator.lab.standalone.endpoint import LabGpu
    from emulator.run.endpoint_specs import endpoint_specs
    from emulator.transports import fit
    from topologies.addressing import gpu_address
    from topologies.advice import question

    lab, _, name = requested.rpartition(":")
    record = with_node(choose_lab(lab or None, "as LAB:GPU"), name)
    topology = load_topology(record.lab)
    names = [gpu.name for gpu in topology.gpus]
    if name not in names:
        raise UserError(f"lab {record.lab} has no GPU {name!r}; {question(name, names)}")
    switch = record.settings.switch
    spec = endpoint_specs(
        topology,
        fit(transport, topology, seed=record.settings.seed, switch=switch),
        namespace=lambda node: str(namespaces.path_of(record.lab, node)),
        nic_delays=record.settings.cable_delay == "nic",
        seed=record.settings.seed,
        memory_octets=1,
        pausing=switch is not None and switch.pausing is not None,
    )[names.index(name)]
    if len(spec.ports) > 1:
        ports = " or ".join(f"-i {port.interface}" for port in spec.ports)
        raise UserError(
            f"the NIC of {name} has several ports, and one endpoint is on one: take {ports} with"
            f" -n {spec.netns}"
        )
    (port,) = spec.ports
    options |= {"interface": port.interface, "netns": spec.netns, "address": spec.address}
    options["gpu"] = LabGpu(
        dilation=record.settings.dilation,
        config={key: value for key, value in spec.transport_config.items() if key not in _OWN},
        nic={
            "path_delays": port.path_delays,
            "by_class": spec.send_by_class,
            "queue_frames": spec.send_queue_frames,
            "slots": spec.receive_slots,
        },
    )
    addresses = {gpu.name: str(gpu_address(gpu).ip) for gpu in topology.gpus}
    for option in ("peers", "peer", "connect"):
        value = options.get(option)
        if isinstance(value, str):
            options[option] = addresses.get(value, value)
        elif value is not None:
            options[option] = tuple(addresses.get(one, one) for one in value)
