"""``uetemu capture``: look into a running lab's ports with Wireshark or tshark."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

import click

from emulator.cleanup import require_root
from emulator.cli.lab_choice import only_lab
from emulator.errors import UserError
from emulator.fabric.capture import Tap, describe, parse_snaplen, ports_of, select
from emulator.fabric.stream import Stream
from emulator.lab import Lab


def _named(taps: Sequence[Tap], most: int = 8) -> str:
    ports = sum(len(tap.ports) for tap in taps)
    return ", ".join(map(str, taps)) if ports <= most else f"{ports} ports of {len(taps)} nodes"


@click.command(name="capture")
@click.argument("ports", metavar="NODE[:PORT],...")
@click.option("--lab", metavar="NAME", help="Which lab; not needed when only one is running.")
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

    Names may hold wildcards.  Interfaces in the capture are called node:port.  Times are those of
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
    running = Lab.attach(lab or only_lab("with --lab"))
    taps = select(ports, ports_of(running.topology))
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
            Stream(
                taps,
                namespace=lambda node: running.netns(node).name,
                out=out,
                snaplen=octets,
                comment=describe(running.name, running.dilation),
                count=count,
            )
        )
        # Also without a terminal: a script that waits for this line misses no frame.
        click.echo(f"capturing on {_named(taps)}; Ctrl-C ends", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            stream.wait(duration)
        captured, counts = stream.stop()
        if stream.reader_gone:
            # Python would otherwise complain at its end that it cannot flush standard output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), out)
        missed = {count.port: count.dropped for count in counts if count.dropped}
        losses = ", ".join(f"{number} missed at {port}" for port, number in missed.items())
        click.echo(f"{captured} packets captured, {losses or 'none missed'}", err=True)
