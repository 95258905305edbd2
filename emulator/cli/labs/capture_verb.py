"""``uetemu capture``: look into a running lab's ports with Wireshark or tshark."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

import click

from emulator.cli.labs.lab_choice import agreed, choose_lab, up
from emulator.cli.options import LAB
from emulator.dataplane.capture.fabric_capture import Tap, describe, parse_snaplen, ports_of, select
from emulator.dataplane.capture.live_stream import live_stream
from emulator.dataplane.cleanup import require_root
from emulator.dataplane.lab import Lab
from emulator.errors import UserError


def _named(taps: Sequence[Tap], most: int = 8) -> str:
    ports = sum(len(tap.ports) for tap in taps)
    return ", ".join(map(str, taps)) if ports <= most else f"{ports} ports of {len(taps)} nodes"


def _parted(ports: str) -> tuple[dict[str, str], str]:
    """The words of ``ports`` that begin with a lab, each with it, and ``ports`` without labs.

    Of two parts, LAB:NODE or NODE:PORT, the first is a lab if there is one of this name that has
    no such node.
    """
    labs = up()
    named: dict[str, str] = {}
    rest = []
    for word in ports.split(","):
        first, _, others = (part.strip() for part in word.partition(":"))
        if (":" in others and first) or (
            others and first in labs and first not in labs[first].nodes
        ):
            named[word.strip()] = first
            word = others
        rest.append(word)
    return named, ",".join(rest)


@click.command(name="capture")
@click.argument("ports", metavar="[LAB:]NODE[:PORT],...")
@LAB
@click.option(
    "--snaplen",
    default="headers",
    show_default=True,
    metavar="headers|full|N",
    help="How much of each frame: its headers (192 octets), all, or N octets.",
)
@click.option(
    "-w", "--write", "target", default="-", metavar="FILE", help="Write to FILE, not to stdout."
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N packets.")
@click.option(
    "--duration",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="End after so many seconds of the wall clock (fabric time is dilated).",
)
def command(
    ports: str,
    lab: str | None,
    snaplen: str,
    target: str,
    count: int | None,
    duration: float | None,
) -> None:
    """Stream the packets of ports of a running lab as pcapng to standard output.

    \b
    uetemu capture h0g0 | wireshark -k -i -
    uetemu capture 'rail0:up*,spine0' | tshark -r -
    uetemu capture demo:rail0:up0,spine0 -w some.pcapng

    Names may hold wildcards.  LAB is for where several are running; said once it is that of all
    ports, as is that of --lab.  Interfaces in the capture are called node:port.  Times are those of
    the wall clock; the comment in the file relates them to fabric time.  Ends with Ctrl-C or when
    the reading program does.
    """
    octets = parse_snaplen(snaplen)
    if target == "-" and sys.stdout.isatty():
        raise UserError(
            "a capture is binary and standard output is a terminal: "
            "append | wireshark -k -i - or | tshark -r -, or name a file with -w"
        )
    require_root("capture")
    named, selection = _parted(ports)
    name = agreed(lab, named) or choose_lab(None, "as LAB:NODE:PORT or with --lab").lab
    running = Lab.attach(name)
    taps = select(selection, ports_of(running.topology))
    if not taps:
        raise UserError("nothing to capture: name at least one node, or all")
    with contextlib.ExitStack() as stack:
        if target == "-":
            out = sys.stdout.fileno()
        else:
            try:
                out = stack.enter_context(open(target, "wb")).fileno()
            except OSError as error:
                raise UserError(f"cannot write {target}: {error.strerror}") from None
        stream = stack.enter_context(
            live_stream(
                taps,
                namespace=lambda node: running.netns(node).name,
                out=out,
                snaplen=octets,
                comment=describe(running.name, running.dilation),
                count=count,
            )
        )
        with contextlib.suppress(KeyboardInterrupt):
            # Also without a terminal: a script that waits for this line misses no frame.
            click.echo(f"capturing on {_named(taps)}; Ctrl-C ends", err=True)
            stream.wait(duration)
        captured, counts = stream.stop()
        if stream.reader_gone:
            # Python would otherwise complain at its end that it cannot flush standard output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), out)
        missed = {count.port: count.dropped for count in counts if count.dropped}
        losses = ", ".join(f"{number} missed at {port}" for port, number in missed.items())
        click.echo(f"{captured} packets captured, {losses or 'none missed'}", err=True)
