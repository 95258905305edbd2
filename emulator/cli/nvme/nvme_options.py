"""Options of every verb of an NVMe/TCP host become its :class:`HostAlone`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from emulator.cli.endpoints.endpoint_options import NUMBER, SPAN, F, with_options
from emulator.cluster.nvme_tcp.initiator.host_options import HOST_NQN, HostOptions
from emulator.cluster.nvme_tcp.standalone.nvme_host_run import HostAlone
from emulator.cluster.nvme_tcp.wire.layouts import DISCOVERY_NQN, IO_PORT
from emulator.errors import UserError
from emulator.lab.standalone.script.phrases import host_and_port, ip, number

NETNS = click.option(
    "-n", "--netns", metavar="NAME|PATH", help="Network namespace to enter first; needs root."
)
FORMAT = click.option(
    "--format",
    "style",
    type=click.Choice(["json", "table"]),
    default="table",
    show_default=True,
    help="json: one object per line.",
)
SUBSYSTEM = click.option("-s", "--subsystem", required=True, metavar="NQN", help="Its NQN.")
NSID = click.option(
    "--nsid", type=click.IntRange(1), default=1, show_default=True, help="Namespace identifier."
)
OFFSET = click.option(
    "--offset", type=NUMBER, default="0", metavar="OCTETS", help="Where to begin.  [default: 0]"
)

_HOST: tuple[Callable[[Any], Any], ...] = (
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


def host_from(options: dict[str, Any], subsystem: str | None) -> HostAlone:
    """Make the host of the options, and take them out.  Raises :class:`UserError`.

    Several addresses, with commas between, are paths to one subsystem.
    """
    (address, port), *others = (_place(text) for text in options.pop("place").split(","))
    digests = options.pop("digests")
    alone = HostAlone(
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
