"""``uetemu hca``: one RoCEv2 endpoint on an interface, against any RDMA stack."""

from __future__ import annotations

from typing import Any

import click

from emulator.cli.endpoints.endpoint_options import IN_FLIGHT, SCRIPT, SPAN, START_AT, TIMEOUT
from emulator.cli.endpoints.gpu_choice import place
from emulator.cli.endpoints.hca_options import EPILOG, config_values, peer_from, shared
from emulator.cli.plugin_command import PluginCommand
from emulator.dataplane.cleanup import require_root
from emulator.errors import UserError
from emulator.lab.standalone.rocev2_endpoint import StandAloneHca
from emulator.lab.standalone.session import Limits


@click.group(
    "hca",
    invoke_without_command=True,
    short_help="one RoCEv2 endpoint on an interface, against any RDMA stack",
)
@click.pass_context
def command(context: click.Context) -> None:
    """Be one end of a reliable connection (RC) of RoCEv2 on an interface of this machine.

    \b
    uetemu hca target -i eth0 --listen --region default:1M --receive 4096x8
    uetemu hca initiator -i eth0 --connect 10.0.0.2 write:3000 read:3000 send:100

    The other end may be any RDMA stack.  The interface may have the address in the kernel too: its
    answers to RoCEv2 packets are suppressed while the endpoint lives.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


@command.command("target", short_help="serve memory and receives", cls=PluginCommand, epilog=EPILOG)
@shared
@click.option(
    "--linger",
    type=SPAN,
    default="0.5",
    metavar="TIME",
    help="Stay so long after the last of --count, for a peer that missed an answer."
    "  [default: 500ms]",
)
def target(linger: int, **options: Any) -> int:
    """Serve memory and receives to the peer, until --count, --duration or a signal.

    \b
    uetemu hca target -i eth0 --listen --region default:64k,address=0x10000
    uetemu hca target -i eth0 --qpn 0x11 --psn 0 --peer 10.0.0.2 --peer-qpn 0x12 \\
        --peer-psn 0 --region 0x1234:64k,expect=file:data.bin --duration 10s

    Events are JSON objects, one a line: card (both ends'), start, completion, refused (the first
    of a kind that was refused or dropped: what is its counter), error, end.  A write without an
    immediate completes nothing at its target: it shows in the regions and counters at the end.
    One with an immediate takes a receive, which completes too.  Exit status 0: all that came was
    as expected.
    """
    limits = Limits(duration=options.pop("duration"), count=options.pop("count"), linger=linger)
    return _run("target", limits, options)


@command.command(
    "initiator", short_help="carry out operations at a target", cls=PluginCommand, epilog=EPILOG
)
@click.argument("phrases", nargs=-1, metavar="[OPERATION]...")
@shared
@SCRIPT
@IN_FLIGHT
@START_AT
@TIMEOUT
@click.option(
    "--linger",
    type=SPAN,
    default="0.2",
    metavar="TIME",
    help="Stay so long at the end.  [default: 200ms]",
)
def initiator(
    phrases: tuple[str, ...],
    script: str | None,
    in_flight: int,
    timeout: int,
    linger: int,
    **options: Any,
) -> int:
    """Carry out OPERATIONs at the peer, in their order.

    \b
    OPERATION         FIELDS (those of all: count, after, error)
    write:SIZE        key, offset, step, pattern, index, header_data
    read:SIZE         key, offset, step, expect, index
    send:SIZE         pattern, index, header_data
    fetch:sum         key, offset, step, operand, expect
    cswap             key, offset, step, operand, compare, expect

    \b
    uetemu hca initiator -i eth0 --connect 10.0.0.2 write:5000,offset=4k,pattern=file:in.bin
    uetemu hca initiator -i eth0 --connect 10.0.0.2 read:2500,expect=reference
    uetemu hca initiator -i eth0 --connect 10.0.0.2 send:3000,header_data=0xa1,count=5
    uetemu hca initiator -i eth0 --connect 10.0.0.2 fetch:sum,operand=5,count=2,expect=1000/1005
    uetemu hca initiator -i eth0 --connect 10.0.0.2 write:300,key=0x99,error=REM_ACCESS_ERR

    Without a key an operation is for the region on the peer's card, offset octets behind its
    beginning; with a key, offset is a virtual address.  header_data is an immediate of 32 bits.
    Atomics are on 64 bits in little-endian order.

    \b
    step       octets from one message's place to the next [SIZE; atomics: 0]
    error      LOC_LEN_ERR, WR_FLUSH_ERR, BAD_RESP_ERR, RETRY_EXC_ERR,
               RNR_RETRY_EXC_ERR, REM_INV_REQ_ERR, REM_ACCESS_ERR, REM_OP_ERR

    Several results expected of several messages have slashes between them.  error= expects that
    one; every error ends the connection.  A script is a list of such phrases, or of objects:
    {"op": "write", "size": 3000, "count": 2}.

    Exit status 0: every operation succeeded, with the result it was to have.
    """
    if not phrases and script is None:
        raise UserError("no operation is given; add one, for example write:3000, or --script FILE")
    limits = Limits(
        duration=options.pop("duration"),
        timeout=timeout or None,
        count=options.pop("count"),
        linger=linger,
    )
    return _run("initiator", limits, options, phrases=phrases, script=script, in_flight=in_flight)


def _run(role: str, limits: Limits, options: dict[str, Any], **more: Any) -> int:
    place(options, "rocev2")
    values = config_values(options)
    peer = peer_from(options)
    require_root("run an endpoint")
    return StandAloneHca(
        role=role,
        limits=limits,
        values=values,
        peer=peer,
        table=options.pop("style") == "table",
        **options,
        **more,
    ).run()
