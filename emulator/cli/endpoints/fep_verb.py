"""``uetemu fep``: one Ultra Ethernet endpoint on an interface, against any stack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
    SPAN,
    START_AT,
    TIMEOUT,
    TIMES,
    WHERE,
    F,
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
from emulator.lab.standalone.script.endpoint_parameters import (
    PRESETS,
    describe_settings,
    describe_switches,
)
from emulator.lab.standalone.script.phrases import ip
from emulator.lab.standalone.script.requested_operations import DEFAULT_KEY
from emulator.sim.endpoint.endpoint_fitting import REAL_TIME
from uet.config import ACK_TYPES, DELIVERY_MODES, FepConfig
from uet.profiles import PROFILES
from uet.tss.secure_domain import SecureDomain

#: Options that are a field of FepConfig each: parameter name -> field.
_FIELDS = {
    "job_id": "job_id",
    "pid_on_fep": "pid_on_fep",
    "resource_index": "resource_index",
    "initiator_id": "initiator_id",
    "udp_port": "udp_port",
    "ip_protocol": "ip_protocol",
    "crc": "crc",
    "dscp": "dscp_data",
    "dscp_control": "dscp_control",
    "ecn": "ecn_capable",
    "mtu": "payload_mtu",
    "mpr": "mpr",
    "delivery": "delivery",
    "rod_reorder": "rod_reorder",
    "ack_type": "ack_type",
    "rto": "rto_init_time",
    "retries": "max_rto_retx_cnt",
    "sdi": "sdi",
    "secure_start": "secure_start",
}


def _field(name: str, *flags: str, **more: Any) -> Callable[[F], F]:
    """Return an option for a field of FepConfig, with the default in its help."""
    default = REAL_TIME.get(_FIELDS[name], FepConfig.__dataclass_fields__[_FIELDS[name]].default)
    if name == "rto":
        default = f"{int(str(default)) // 10**6}ms"
    if default is not None and not isinstance(default, bool) and name != "mtu":
        more["help"] = f"{more['help']}  [default: {default}]"
    return click.option(*flags, name, default=None, **more)


_SHARED: tuple[Option, ...] = (
    *WHERE,
    GPU,
    click.option(
        "-p",
        "--peer",
        "peers",
        metavar="FA[=MAC]",
        multiple=True,
        help="A peer; may be given again.  Without a MAC the kernel is asked for its route and,"
        " by ARP or neighbour discovery, for the next hop.",
    ),
    click.option("--peer-mac", metavar="MAC", help="MAC address that reaches the first peer."),
    # who
    _field("job_id", "--job-id", type=NUMBER, help="JobID."),
    _field("pid_on_fep", "--pid-on-fep", type=NUMBER, help="Own PIDonFEP."),
    _field("resource_index", "--resource-index", type=NUMBER, help="Own resource index."),
    _field("initiator_id", "--initiator-id", type=NUMBER, help="Initiator id of requests."),
    click.option("--absolute/--relative", "absolute", default=None, help="Addressing."
                 "  [default: relative]"),
    # on the wire
    click.option("-e", "--encapsulation", type=click.Choice(["udp", "native"]),
                 help="native: straight in IP, behind an entropy header.  [default: udp]"),
    _field("udp_port", "--udp-port", type=NUMBER, help="UDP destination port."),
    _field("ip_protocol", "--ip-protocol", type=NUMBER, help="IP protocol of native packets."),
    _field("crc", "--crc/--no-crc", help="End packets with a CRC.  [default: no-crc]"),
    _field("dscp", "--dscp", type=NUMBER, help="DSCP of requests."),
    _field("dscp_control", "--dscp-control", type=NUMBER, help="DSCP of ACKs, NACKs, control."),
    click.option("--ecn/--no-ecn", "ecn", default=None, help="Mark requests ECN-capable."
                 "  [default: ecn]"),
    _field("mtu", "--mtu", type=NUMBER, help="Payload MTU: 1024, 2048, 4096 or 8192."
           "  [default: the largest that fits, to 4096]"),
    # delivery
    _field("delivery", "--delivery", type=click.Choice(DELIVERY_MODES), help="Delivery mode."),
    _field("rod_reorder", "--rod-reorder/--rod-go-back-n",
           help="What an ordered PDC does with early packets.  [default: rod-go-back-n]"),
    _field("mpr", "--mpr", type=NUMBER, help="Default_MPR, in units of 128 PSNs."),
    _field("ack_type", "--ack-type", type=click.Choice(ACK_TYPES), help="Kind of ACKs sent."),
    _field("rto", "--rto", type=SPAN, metavar="TIME",
           help="First retransmission timeout, and wait after a refusal."),
    _field("retries", "--retries", type=NUMBER, help="Retransmissions before a PDC fails."),
    # which revision
    click.option("--profile", "profiles", type=click.Choice(list(PROFILES)), multiple=True,
                 help="What the endpoint may do; may be given again."
                 "  [default: ai_full and hpc]"),
    click.option("--compat", metavar="NAME|SWITCH=VALUE", multiple=True,
                 help=f"{' or '.join(PRESETS)}, or a single switch (below); may be given again."),
    # security
    click.option("--keys", metavar="FILE", help="Secure domains (TSS) as JSON; uetemu decode"
                 " --help has the fields and an example.  With one domain, requests use it."
                 "  Beside --pcap FILE, FILE.tss_keys.json has what is really used, for decode."),
    _field("sdi", "--sdi", type=NUMBER, help="Secure domain of requests, where there are several."),
    _field("secure_start", "--secure-start", type=click.Choice(["0rtt", "1rtt"]),
           help="How a target begins secured PDCs; 0rtt, from when it knows Expected_PSN:"
           " by --set expected_psn=N, or after its first PDC."),
    SETTINGS,
    *OFFERS,
    *LEAVES,
    click.option("--event-log", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                 help="Write what the endpoint does, packet by packet, into a new file (qlog)."),
    click.option("--no-pdc-events", is_flag=True, help="Leave out the events of PDCs."),
)  # fmt: skip
_TARGET = (
    *_SHARED,
    linger("500ms", "Stay so long after the last of --count, for peers that missed an answer."),
)
_INITIATOR = (
    *_SHARED,
    SCRIPT,
    click.option("--key", type=NUMBER, default=DEFAULT_KEY,
                 help=f"Memory key of operations that name none.  [default: {DEFAULT_KEY:#x}]"),
    click.option("--peer-job-id", type=NUMBER, help="JobID at the peer.  [default: --job-id]"),
    click.option("--peer-pid-on-fep", type=NUMBER, help="PIDonFEP at the peer.  [default: own]"),
    click.option("--peer-resource-index", type=NUMBER, help="Its resource index.  [default: own]"),
    IN_FLIGHT,
    START_AT,
    click.option("--close/--no-close", default=True,
                 help="Close PDCs at the end.  [default: close]"),
    TIMEOUT,
    linger("200ms", "Stay so long at the end while PDCs are open."),
)  # fmt: skip
EPILOG = f"""{TIMES}

\b
Regions:  KEY[:SIZE][,fill=PATTERN][,index=I][,access=rw|r|w][,expect=PATTERN]
          [,idempotent]
          KEY may be "default"; expect is judged at the end; idempotent sets
          bit 63 of the key, which RUDI asks for
Receives: SIZE[xN][,tag=T][,ignore=BITS][,initiator=ID][,peer=FA][,multi=LEAST]
          [,after=TIME][,repost][,expect=PATTERN][,index=I]
{PATTERNS}
Operands, fill and results are in the order of memory, little-endian; on the
wire the operands of atomics have network order.

--compat reference-provider sets switches and parameters to what the UEC
reference provider does (payload_mtu=1024, mpr=1, ack_type=ack,
deferrable_threshold=8192, rod_reorder, no ECN); with --keys it also sets
accept_clear and address_in_ipv6_kdf in every domain.  What --set and options
say goes before it.

Switches of --compat: {describe_switches()}.

Parameters of --set (times in ns, or with a unit): {describe_settings()}.
"""


def peers_from(words: tuple[str, ...], first_mac: str | None) -> dict[str, str | None]:
    """Peer addresses and, where they were given, MAC addresses."""
    peers: dict[str, str | None] = {}
    for word in words:
        text, _, mac = word.partition("=")
        address = ip(text, "--peer")
        if address in peers:
            raise UserError(f"--peer {address} is given twice; leave one out")
        peers[address] = mac or None
    if first_mac is not None:
        if not peers:
            raise UserError("--peer-mac says how to reach the peer: name it with --peer")
        peers[next(iter(peers))] = first_mac
    return peers


def config_values(options: dict[str, Any]) -> dict[str, object]:
    """Fields of FepConfig that options of their own have set; takes those options out."""
    values = taken(options, _FIELDS)
    if (absolute := options.pop("absolute")) is not None:
        values["relative"] = not absolute
    if (encapsulation := options.pop("encapsulation")) is not None:
        values["native"] = encapsulation == "native"
    if profiles := options.pop("profiles"):
        values["profiles"] = tuple(profiles)
    return values


def domains_from(path: str | None) -> list[SecureDomain]:
    """Return the secure domains of the key file ``path``; none without a file."""
    if path is None:
        return []
    # This loads all transports: 47 ms, after which the endpoint takes 3 ms.  --help needs neither.
    from emulator.cli.decode.decode_source import read_domains

    return read_domains(Path(path))


@click.group("fep", cls=Group, short_help="one UET endpoint on an interface, against any UET stack")
def command() -> None:
    """Be one fabric endpoint (FEP) on an interface of this machine.

    \b
    uetemu fep target -i eth0 --region default:1M --receive 4096x8
    uetemu fep initiator -i eth0 -p 10.0.0.2 write:3000 read:3000 send:100

    The other end may be any Ultra Ethernet stack.  The interface may have the address in the
    kernel too: its answers to UET packets are suppressed while the endpoint lives.
    """


@role(command, "target", EPILOG, _TARGET)
def target(**options: Any) -> int:
    """Serve memory and receives to initiators, until --count, --duration or a signal.

    \b
    uetemu fep target -i eth0 --region default:64k --receive 3000x3
    uetemu fep target -n dut -i eth0 -e native --crc --compat reference-provider \\
        --region default:4k,fill=uint64:1000 --pcap target.pcapng
    uetemu fep target -i eth0 --receive 10000 --receive-after 250ms --count 1

    \b
    uetemu fep target -i eth0 --region default:64k --region default:64k,idempotent

    The last one serves RUDI too: such a region has another key, that with bit 63 set.

    Events are JSON objects, one a line: start, peer (one that was learnt from what it sent),
    pdc, completion, refused (the first of a kind that was refused or dropped: what is its
    counter), error, end.  A write without header data completes nothing at its target: it
    shows in the regions and counters at the end.  Exit status 0: all that came was as expected.
    """
    return _run("target", options)


@role(command, "initiator", EPILOG, _INITIATOR)
def initiator(**options: Any) -> int:
    """Carry out OPERATIONs at a peer, in their order.

    \b
    OPERATION         FIELDS (those of all: count, peer, delivery, job_id,
                      pid_on_fep, resource_index, absolute, after, error)
    write:SIZE        key, offset, step, pattern, index, header_data, dc,
                      synchronise, idempotent
    read:SIZE         key, offset, step, expect, index, idempotent
    send:SIZE         pattern, index, header_data, dc, protocol
    tsend:SIZE        the same, tag, tag_step
    datagram:SIZE     pattern, index, header_data
    atomic:NAME       key or tag, offset, step, type, operand, compare,
                      synchronise
    fetch:NAME        the same but synchronise, expect
    cswap ... mswap   as fetch:cswap
    noop
    open              count, peer, delivery, negotiate, after, error
    probe             count, peer, wait, after, error

    \b
    uetemu fep initiator -i eth0 -p 10.0.0.2 write:5000,offset=4k,header_data=0xa1
    uetemu fep initiator -i eth0 -p 10.0.0.2 read:2500,expect=reference
    uetemu fep initiator -i eth0 -p fd99::2 --delivery rod tsend:2500,tag=0x11,count=2
    uetemu fep initiator -i eth0 -p 10.0.0.2 fetch:sum,operand=5,count=2,expect=1000/1005
    uetemu fep initiator -i eth0 -p 10.0.0.2 write:300,key=0x99,error=BAD_MKEY
    uetemu fep initiator -i eth0 -p 10.0.0.2 write:100,delivery=rudi
    uetemu fep initiator -i eth0 -p 10.0.0.2 atomic:sum,operand=5,tag=0x11
    uetemu fep initiator -i eth0 -p 10.0.0.2 open,negotiate probe,count=3
    uetemu fep initiator -i eth0 -p 10.0.0.2 --compat sync_operations \\
        write:3000,synchronise=7/0 write:3000,offset=4k,synchronise=7/2
    uetemu fep initiator -i eth0 -p 10.0.0.2 --in-flight 0 --script operations.json

    An atomic with a tag is for the memory of the receive that it matches.  open makes a PDC by a
    NOOP, or by a NEGOTIATION; probe sends a PROBE on one that is open, and waits so long for its
    answer.  synchronise=GROUP/COUNT is the UEC reference provider's extension: the target tells of
    the group once all COUNT members (0: another one says how many) have come.

    \b
    protocol   eager, rendezvous or deferrable [the endpoint's thresholds decide]
    NAME       min, max, sum, diff, prod, lor, land, bor, band, lxor, bxor,
               read, write, cswap, cswap_ne, cswap_le, cswap_lt, cswap_ge,
               cswap_gt, mswap, inval
    type       int8, uint8, int16, uint16, int32, uint32, int64, uint64,
               int128, uint128, float, double, float_complex, double_complex,
               long_double, long_double_complex, bf16, fp16 [uint64]
    step       octets from one message's place to the next [write, read: SIZE;
               atomics: 0]
    tag_step   from one message's tag to the next [1]
    error      an SES return code, a NACK code, or one of TIMEOUT,
               RTO_RETRIES_EXHAUSTED, NACK_RETRIES_EXHAUSTED, PDC_CLOSED, ...

    cswap... and mswap need compare and operand, as in cswap,operand=5,compare=7.  idempotent sets
    bit 63 of the key; with delivery=rudi the default key has it unless idempotent=no.

    Messages of one write or read lie one after the other (step).  Several operands, and the
    results expected of several messages, have slashes between them.  error= expects that one.  A
    script is a list of such phrases, or of objects: {"op": "write", "size": 3000, "count": 2}.

    Exit status 0: every operation succeeded, with the result it was to have.
    """
    require_operations(options)
    if not options["peers"]:
        raise UserError("whom are the operations for? name the target with --peer FA")
    names = ("job_id", "pid_on_fep", "resource_index")
    options["remote"] = taken(options, {f"peer_{name}": name for name in names})
    return _run("initiator", options)


def _run(role: str, options: dict[str, Any]) -> int:
    limits = limits_from(options)
    place(options, "uet")
    values = config_values(options)
    domains = domains_from(options["keys"])
    peers = peers_from(options.pop("peers"), options.pop("peer_mac"))
    require_root("run an endpoint")
    # This loads all transports: 49 ms beside the 418 ms of imports that --help takes.
    from emulator.lab.standalone.uet_endpoint import StandAloneFep

    return StandAloneFep(
        role=role,
        limits=limits,
        values=values,
        domains=domains,
        peers=peers,
        table=options.pop("style") == "table",
        with_pdcs=not options.pop("no_pdc_events"),
        **options,
    ).run()
