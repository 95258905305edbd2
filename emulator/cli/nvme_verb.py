"""``uetemu nvme``: an NVMe/TCP target, and a host that discovers, reads, writes and measures it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import click

from emulator.cli.endpoints.endpoint_options import NUMBER, SPAN, F, with_options
from emulator.cli.options import Group, Option, lines_format
from emulator.cluster.nvme_tcp import standalone_run
from emulator.cluster.nvme_tcp.initiator.host_options import HOST_NQN, HostOptions
from emulator.cluster.nvme_tcp.target.controller import TargetSettings
from emulator.cluster.nvme_tcp.wire.layouts import DISCOVERY_NQN, IO_PORT
from emulator.errors import UserError
from emulator.lab.standalone.script.phrases import host_and_port, ip, number

NETNS = click.option(
    "-n", "--netns", metavar="NAME|PATH", help="Network namespace to enter first; needs root."
)
FORMAT = lines_format("table")
SUBSYSTEM = click.option("-s", "--subsystem", required=True, metavar="NQN", help="Its NQN.")
NSID = click.option(
    "--nsid", type=click.IntRange(1), default=1, show_default=True, help="Namespace identifier."
)
OFFSET = click.option(
    "--offset", type=NUMBER, default="0", metavar="OCTETS", help="Where to begin.  [default: 0]"
)
_HOST: tuple[Option, ...] = (
    NETNS,
    click.option("--host", "host_nqn", default=HOST_NQN, metavar="NQN",
                 help="Own NQN.  [default: one of uetemu's]"),
    click.option("--digests", type=click.Choice(["none", "header", "data", "both"]),
                 default="none", show_default=True, help="CRC-32C on headers, data."),
    click.option("--queues", type=click.IntRange(1, 65535), default=1, show_default=True,
                 help="I/O queues, each a TCP connection."),
    click.option("--entries", type=click.IntRange(2, 65536), default=128, show_default=True,
                 help="Entries of an I/O queue: one less are commands at a time."),
    click.option("--r2ts", type=click.IntRange(1, 65536), default=1, show_default=True,
                 help="R2Ts outstanding for a command, at most (MAXR2T)."),
    click.option("--no-flow-control", "flow_control", flag_value=False, default=True,
                 help="Go without SQHD; reads may then end without a response."),
    click.option("--keep-alive", type=SPAN, default="5", metavar="TIME",
                 help="KATO; 0: none.  [default: 5s]"),
    click.option("--timeout", type=SPAN, default="30", metavar="TIME",
                 help="Of a command; then the controller is connected again.  [default: 30s]"),
    click.option("--ctrl-loss", type=SPAN, default="600", metavar="TIME",
                 help="Try a lost controller so long; 0: give up at once.  [default: 600s]"),
    FORMAT,
)  # fmt: skip


def host_verb(function: F) -> F:
    """Give a command the address argument and the options of a host."""
    place = click.argument("place", metavar="ADDRESS[:PORT][,ADDRESS[:PORT]]...")
    return with_options(function, (place, *_HOST))


def host_from(options: dict[str, Any], subsystem: str | None) -> standalone_run.HostAlone:
    """Make the host of the options, and take them out.  Raises :class:`UserError`.

    Several addresses, with commas between, are paths to one subsystem.
    """
    (address, port), *others = (_place(text) for text in options.pop("place").split(","))
    digests = options.pop("digests")
    alone = standalone_run.HostAlone(
        options=HostOptions(
            address=address,
            subsystem=DISCOVERY_NQN if subsystem is None else subsystem,
            port=port,
            host_nqn=options.pop("host_nqn"),
            io_queues=options.pop("queues"),
            queue_entries=options.pop("entries"),
            header_digest=digests in ("header", "both"),
            data_digest=digests in ("data", "both"),
            r2ts=options.pop("r2ts"),
            flow_control=options.pop("flow_control"),
            keep_alive_s=options.pop("keep_alive") / 1e9,
            command_timeout_s=options.pop("timeout") / 1e9,
            ctrl_loss_s=options.pop("ctrl_loss") / 1e9,
        ),
        netns=options.pop("netns"),
        table=options.pop("style") == "table",
    )
    paths = (replace(alone.options, address=other, port=at) for other, at in others)
    return replace(alone, others=tuple(paths))


def _place(text: str) -> tuple[str, int]:
    """Return the address and port of a target."""
    host, port = host_and_port(text, listens=False)
    if not host:
        raise UserError("the target has no address; write ADDRESS or ADDRESS:PORT")
    return ip(host, "the target's address"), number(port or IO_PORT, "the port", low=1, high=65535)


_PATH = click.Path(dir_okay=False, path_type=Path)


@click.group("nvme", cls=Group, short_help="an NVMe/TCP target, or a host of one, in any namespace")
def command() -> None:
    """Serve block storage by NVMe/TCP, or use a target of any maker, over the kernel's TCP.

    \b
    uetemu nvme target disk.img --size 1G --listen 10.0.0.1 --subsystem nqn.2026-01.example:disk
    uetemu nvme discover 10.0.0.1
    uetemu nvme write 10.0.0.1 -s nqn.2026-01.example:disk data.bin
    uetemu nvme bench 10.0.0.1 -s nqn.2026-01.example:disk --pattern randread --depth 32

    Linux's own host connects with: nvme connect -t tcp -a 10.0.0.1 -s 4420 -n NQN
    """


@command.command("target", short_help="serve files or memory as namespaces")
@click.argument("files", nargs=-1, type=_PATH, metavar="[FILE]...")
@click.option(
    "--memory",
    "memories",
    type=NUMBER,
    multiple=True,
    metavar="SIZE",
    help="Serve sparse memory too; may be given again.",
)
@click.option(
    "--size",
    type=NUMBER,
    metavar="SIZE",
    help="Make files that are not there, sparse, of so many octets (1G, 64M).",
)
@click.option(
    "--block-size",
    type=NUMBER,
    default="512",
    metavar="OCTETS",
    help="Of a logical block: 512, 1024, 2048, 4096.  [default: 512]",
)
@click.option("--read-only", is_flag=True, help="Refuse writes to files.")
@click.option(
    "-l",
    "--listen",
    multiple=True,
    default=("",),
    metavar="[ADDRESS][:PORT]",
    help="Where hosts connect; may be given again.  [default: all, port 4420]",
)
@SUBSYSTEM
@click.option(
    "--allow",
    "hosts",
    multiple=True,
    metavar="NQN",
    help="Admit this host only; may be given again.  [default: any]",
)
@click.option(
    "--queues",
    type=click.IntRange(1, 65535),
    default=TargetSettings.queues,
    show_default=True,
    help="I/O queues of a controller.",
)
@click.option(
    "--entries",
    type=click.IntRange(2, 4096),
    default=TargetSettings.queue_entries,
    show_default=True,
    help="Entries of a queue.",
)
@click.option("--no-digests", is_flag=True, help="Agree to no digests.")
@click.option("--duration", type=SPAN, metavar="TIME", help="End after so long.")
@NETNS
@FORMAT
def target(
    queues: int, entries: int, no_digests: bool, style: str, files: tuple[Path, ...], **given: Any
) -> int:
    """Serve FILEs as the namespaces 1, 2, ... of a subsystem, until a signal.

    Events: start, connection (the end of one: its queue, and what was wrong with it), end with the
    counters.  A FILE that is not there needs --size.  The discovery subsystem is at the same port.
    """
    settings = TargetSettings(
        queues=queues,
        queue_entries=entries,
        header_digest=not no_digests,
        data_digest=not no_digests,
    )
    return standalone_run.serve(
        standalone_run.StandAloneTarget(
            files=files, settings=settings, table=style == "table", **given
        )
    )


@command.command("discover", short_help="list the subsystems that a target offers")
@host_verb
def discover(**options: Any) -> int:
    """List the subsystems of the discovery log at ADDRESS."""
    return standalone_run.show_discovery(host_from(options, None))


@command.command("identify", short_help="show a controller and its namespaces")
@SUBSYSTEM
@host_verb
def identify(subsystem: str, **options: Any) -> int:
    """Show the Identify data of a subsystem's controller and its namespaces."""
    return standalone_run.show_identity(host_from(options, subsystem))


@command.command("read", short_help="read blocks into a file")
@SUBSYSTEM
@NSID
@OFFSET
@click.option("--length", type=NUMBER, metavar="OCTETS", help="[default: up to the end]")
@click.option("-o", "--out", type=_PATH, metavar="FILE", help="A new file.  [default: none]")
@host_verb
def read(
    subsystem: str, nsid: int, offset: int, length: int | None, out: Path | None, **options: Any
) -> int:
    """Read octets of a namespace; report their SHA-256, counters and latencies."""
    return standalone_run.read_blocks(host_from(options, subsystem), nsid, offset, length, out)


@command.command("write", short_help="write a file into blocks")
@SUBSYSTEM
@NSID
@OFFSET
@click.option("--flush/--no-flush", default=True, show_default=True, help="Flush at the end.")
@host_verb
@click.argument("source", metavar="FILE|-")
def write(subsystem: str, nsid: int, offset: int, flush: bool, source: str, **options: Any) -> int:
    """Write a FILE of whole blocks to a namespace; report its SHA-256, counters and latencies."""
    host = host_from(options, subsystem)
    if source == "-":
        return standalone_run.write_blocks(
            host, nsid, offset, cast(BinaryIO, sys.stdin.buffer), flush=flush
        )
    try:
        opened = open(source, "rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}; give a readable file") from None
    with opened:
        return standalone_run.write_blocks(host, nsid, offset, opened, flush=flush)


@command.command("bench", short_help="measure commands per second and latencies")
@SUBSYSTEM
@NSID
@click.option(
    "--pattern",
    type=click.Choice(standalone_run.PATTERNS),
    default="randread",
    show_default=True,
    help="Writes overwrite the namespace.",
)
@click.option(
    "--size", type=NUMBER, default="4k", metavar="OCTETS", help="Of a command.  [default: 4k]"
)
@click.option(
    "--depth", type=click.IntRange(1), default=1, show_default=True, help="Commands at a time."
)
@click.option(
    "--count", type=click.IntRange(1), default=1000, show_default=True, help="Commands in all."
)
@click.option("--seed", type=NUMBER, default="1", help="Decides places and data.  [default: 1]")
@click.option("--verify", is_flag=True, help="Read back and compare what was written.")
@host_verb
def measure(subsystem: str, **options: Any) -> int:
    """Carry out commands at a depth; report octets and commands per second, and latencies.

    The times are the host's clock: two Python processes and the kernel's TCP, not a disk.
    """
    names = ("pattern", "nsid", "size", "depth", "count", "seed", "verify")
    load = standalone_run.BenchLoad(**{name: options.pop(name) for name in names})
    return standalone_run.bench(host_from(options, subsystem), load)
