"""``uetemu hca``: one RoCEv2 endpoint on an interface, against any RDMA stack."""

from __future__ import annotations

from typing import Any

import click

from emulator.cli.endpoints.endpoint_options import (
    GPU,
    IN_FLIGHT,
    LEAVES,
    NUMBER,
    OFFERS,
    PATTERNS,
    SCRIPT,
    SETTINGS,
    START_AT,
    TIMEOUT,
    TIMES,
    WHERE,
    limits_from,
    linger,
    place,
    require_operations,
    role,
    taken,
)
from emulator.cli.options import Group, Option
from emulator.dataplane.cleanup import require_root
from emulator.errors import UserError
from emulator.lab.standalone.cards import DEFAULT_PORT, Card, CardExchange, card_from, meeting
from emulator.lab.standalone.rocev2_endpoint import StandAloneHca
from emulator.lab.standalone.script.endpoint_parameters import ROCEV2_ELSEWHERE, describe_settings
from emulator.lab.standalone.script.phrases import ip
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
_SHARED: tuple[Option, ...] = (
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
    SETTINGS,
    *OFFERS,
    *LEAVES,
)  # fmt: skip
_TARGET = (
    *_SHARED,
    linger("500ms", "Stay so long after the last of --count, for a peer that missed an answer."),
)
_INITIATOR = (
    *(*_SHARED, SCRIPT, IN_FLIGHT, START_AT, TIMEOUT),
    linger("200ms", "Stay so long at the end."),
)
EPILOG = f"""{TIMES}

\b
Regions:  KEY[:SIZE][,address=N][,fill=PATTERN][,index=I][,access=rw|r|w]
          [,expect=PATTERN]
          KEY is the R_Key and may be "default"; address is where the region
          begins for peers [0]; expect is judged at the end
Receives: SIZE[xN][,after=TIME][,repost][,expect=PATTERN][,index=I]
          they are taken in this order, as from a shared receive queue
{PATTERNS}

The card of an end is one JSON object in one line: address, or gid; qpn; psn;
mtu; and rkey, vaddr, length of its first region.  The end that connects
sends its own first, the other one answers.  The event "card" tells it too.

Parameters of --set (times in ns, or with a unit):
{describe_settings(HcaConfig, ROCEV2_ELSEWHERE)}.
"""


def peer_from(options: dict[str, Any]) -> Card | CardExchange:
    """The peer's card, or where to get it; takes the options out.  Raises :class:`UserError`."""
    listen, connect, peer = (options.pop(name) for name in ("listen", "connect", "peer"))
    reported = taken(options, _CARD)
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
    "hca", cls=Group, short_help="one RoCEv2 endpoint on an interface, against any RDMA stack"
)
def command() -> None:
    """Be one end of a reliable connection (RC) of RoCEv2 on an interface of this machine.

    \b
    uetemu hca target -i eth0 --listen --region default:1M --receive 4096x8
    uetemu hca initiator -i eth0 --connect 10.0.0.2 write:3000 read:3000 send:100

    The other end may be any RDMA stack.  The interface may have the address in the kernel too: its
    answers to RoCEv2 packets are suppressed while the endpoint lives.
    """


@role(command, "target", EPILOG, _TARGET)
def target(**options: Any) -> int:
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
    return _run("target", options)


@role(command, "initiator", EPILOG, _INITIATOR)
def initiator(**options: Any) -> int:
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
    require_operations(options)
    return _run("initiator", options)


def _run(role: str, options: dict[str, Any]) -> int:
    limits = limits_from(options)
    place(options, "rocev2")
    values = taken(options, _FIELDS)
    peer = peer_from(options)
    require_root("run an endpoint")
    return StandAloneHca(
        role=role,
        limits=limits,
        values=values,
        peer=peer,
        table=options.pop("style") == "table",
        **options,
    ).run()
