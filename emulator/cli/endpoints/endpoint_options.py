"""Options of every endpoint that runs by itself, whatever its transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from emulator.lab.standalone.script.phrases import duration, number

F = TypeVar("F", bound=Callable[..., Any])


class Number(click.ParamType):
    """A whole number, also hexadecimal or with a multiple."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return number(value, param.opts[0] if param else "the value")


class DurationParam(click.ParamType):
    """A time in seconds, or with a unit; in ns here."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        return duration(value, param.opts[0] if param else "the time")


NUMBER, SPAN = Number(), DurationParam()

WHERE: tuple[Callable[[Any], Any], ...] = (
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
OFFERS: tuple[Callable[[Any], Any], ...] = (
    click.option("-r", "--region", "regions", metavar="KEY[:SIZE][,...]", multiple=True,
                 help="Register memory; may be given again (below)."),
    click.option("--receive", "receives", metavar="SIZE[xN][,...]", multiple=True,
                 help="Post receives for sends; may be given again (below)."),
    click.option("--receive-after", type=SPAN, default=0, metavar="TIME",
                 help="Post the receives so long after the first packet, so that earlier messages"
                 " are refused, kept or deferred."),
)  # fmt: skip
LEAVES: tuple[Callable[[Any], Any], ...] = (
    click.option("--duration", type=SPAN, metavar="TIME", help="End after so long."),
    click.option("--count", type=click.IntRange(1), metavar="N",
                 help="End after N completions of receives and writes with header data."),
    click.option("--pcap", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                 help="Write every frame sent and received into a new file (pcapng)."),
    click.option("--save", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                 help="Write data that arrives, and the regions at the end, into files."),
    click.option("--seed", type=NUMBER,
                 help="Decides random data.  [default: another one each time]"),
    click.option("--format", "style", type=click.Choice(["json", "table"]), default="json",
                 show_default=True, help="json: one object per line."),
)  # fmt: skip
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


def with_options(function: F, options: Sequence[Callable[[Any], Any]]) -> F:
    """Give a command these options, in their order."""
    for option in reversed(options):
        function = option(function)
    return function
