"""``uetemu hca``: one RoCEv2 endpoint on an interface, against any RDMA stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from emulator.cli.endpoints.endpoint_options import (
    GPU,
    IN_FLIGHT,
    LEAVES,
    NUMBER,
    OFFERS,
    SCRIPT,
    SPAN,
    START_AT,
    TIMEOUT,
    WHERE,
    F,
    place,
    with_options,
)
from emulator.cli.plugin_command import PluginCommand
from emulator.dataplane.cleanup import require_root
from emulator.errors import UserError
from emulator.lab.standalone.cards import DEFAULT_PORT, Card, CardExchange, card_from, meeting
from emulator.lab.standalone.rocev2_endpoint import StandAloneHca
from emulator.lab.standalone.script.endpoint_parameters import ROCEV2_ELSEWHERE, describe_settings
from emulator.lab.standalone.script.phrases import ip
from emulator.lab.standalone.session import Limits
from emulator.rocev2.config import HcaConfig
from emulator.rocev2.wire.codes import PATH_MTUS

#: Options that are a field of HcaConfig each: parameter name -> field.
_FIELDS = {"mtu": "mtu", "dscp": "dscp_data", "ecn": "ecn_capable"}
#: Options that name what is on the peer's card: parameter name -> its name there.
_CARD = {
    "peer_qpn": "qpn",
    "peer_psn": "psn",
    "peer_mtu": "mtu",
    "peer_rkey": "rkey",
    "peer_vaddr": "vaddr",
}
_SHARED: tuple[Callable[[Any], Any], ...] = (
    *WHERE,
    GPU,
    click.option("--qpn", type=NUMBER, help="Own queue pair.  [default: random]"),
    click.option("--psn", type=NUMBER, help="PSN of the first packet sent.  [default: random]"),
    # how the peer is met
    click.option("--listen", metavar="[HOST][:PORT]", is_flag=False, flag_value="",
                 help=f"Wait for the peer to exchange cards over TCP (below); port {DEFAULT_PORT}"
                 " unless told otherwise."),
    click.option("--connect", metavar="HOST[:PORT]", help="Exchange cards with a peer that"
                 " listens, also one that will soon."),
    click.option("-p", "--peer", metavar="ADDRESS|GID",
                 help="The peer, without an exchange: say --peer-qpn and --peer-psn too."),
    click.option("--peer-mac", metavar="MAC", help="MAC address that reaches the peer."
                 "  [default: the kernel is asked]"),
    click.option("--peer-qpn", type=NUMBER, help="The peer's queue pair."),
    click.option("--peer-psn", type=NUMBER, help="PSN of the first packet that it sends."),
    click.option("--peer-mtu", type=NUMBER, help="Most payload of a packet that it takes."
                 f"  [default: {PATH_MTUS[-1]}]"),
    click.option("--peer-rkey", type=NUMBER, help="R_Key of its memory."),
    click.option("--peer-vaddr", type=NUMBER, help="Virtual address of that.  [default: 0]"),
    # on the wire
    click.option("--mtu", type=NUMBER, help=f"Path MTU: {', '.join(map(str, PATH_MTUS))}."
                 "  [default: the largest that fits]"),
    click.option("--dscp", type=NUMBER,
                 help=f"DSCP of packets but CNPs.  [default: {HcaConfig.dscp_data}]"),
    click.option("--ecn/--no-ecn", default=None, help="Mark packets ECN-capable.  [default: ecn]"),
    click.option("--set", "settings", metavar="NAME=VALUE", multiple=True,
                 help="Any parameter of the endpoint (below); may be given again."),
    *OFFERS,
    *LEAVES,
)  # fmt: skip
EPILOG = f"""\b
TIME is in seconds, or has a unit: 5ms, 250us, 7ns, 1.5s.

\b
Regions:  KEY[:SIZE][,address=N][,fill=PATTERN][,index=I][,access=rw|r|w]
          [,expect=PATTERN]
          KEY is the R_Key and may be "default"; address is where the region
          begins for peers [0]; expect is judged at the end
Receives: SIZE[xN][,after=TIME][,repost][,expect=PATTERN][,index=I]
          they are taken in this order, as from a shared receive queue
Patterns: reference (octet j of message i is (7*i + 13*j + j//256) mod 256),
          counter, zero, random, byte:0xNN, hex:..., text:..., file:PATH,
          or one element: uint64:1000

The card of an end is one JSON object in one line: address, or gid; qpn; psn;
mtu; and rkey, vaddr, length of its first region.  The end that connects
sends its own first, the other one answers.  The event "card" tells it too.

Parameters of --set (times in ns, or with a unit):
{describe_settings(HcaConfig, ROCEV2_ELSEWHERE)}.
"""


def shared(function: F) -> F:
    """Give a command the options of both roles, in their order."""
    return with_options(function, _SHARED)


def config_values(options: dict[str, Any]) -> dict[str, object]:
    """Fields of HcaConfig that options of their own have set; takes those options out."""
    values = {there: options.pop(name) for name, there in _FIELDS.items()}
    return {name: value for name, value in values.items() if value is not None}


def peer_from(options: dict[str, Any]) -> Card | CardExchange:
    """The peer's card, or where to get it; takes the options out.  Raises :class:`UserError`."""
    listen, connect, peer = (options.pop(name) for name in ("listen", "connect", "peer"))
    reported = {there: options.pop(name) for name, there in _CARD.items()}
    reported = {name: value for name, value in reported.items() if value is not None}
    if sum(way is not None for way in (listen, connect, peer)) != 1:
        raise UserError(
            "say how the peer is met, by one of --listen, --connect HOST and --peer ADDRESS"
        )
    if peer is not None:
        return card_from({"address": ip(peer, "--peer"), **reported}, "the peer of the options")
    if reported:
        name = next(name for name, there in _CARD.items() if there in reported)
        raise UserError(
            f"--{name.replace('_', '-')} goes with --peer: with an exchange the peer's card says it"
        )
    if listen is not None:
        return meeting(listen, listens=True)
    return meeting(connect, listens=False)


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
