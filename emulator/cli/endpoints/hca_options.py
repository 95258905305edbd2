"""The options that both roles of ``uetemu hca`` have, and what they become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from emulator.cli.endpoints.endpoint_options import LEAVES, NUMBER, OFFERS, WHERE, F, with_options
from emulator.cli.endpoints.gpu_choice import GPU
from emulator.errors import UserError
from emulator.lab.standalone.cards import DEFAULT_PORT, Card, CardExchange, card_from, meeting
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
