"""The options that both roles of ``uetemu fep`` have, and what they become."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from emulator.cli.endpoints.endpoint_options import (
    LEAVES,
    NUMBER,
    OFFERS,
    SPAN,
    WHERE,
    F,
    with_options,
)
from emulator.cli.endpoints.gpu_choice import GPU
from emulator.errors import UserError
from emulator.lab.standalone.script.endpoint_parameters import (
    PRESETS,
    describe_settings,
    describe_switches,
)
from emulator.lab.standalone.script.phrases import ip
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


_SHARED: tuple[Callable[[Any], Any], ...] = (
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
    click.option("--set", "settings", metavar="NAME=VALUE", multiple=True,
                 help="Any parameter of the endpoint (below); may be given again."),
    *OFFERS,
    *LEAVES,
    click.option("--event-log", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                 help="Write what the endpoint does, packet by packet, into a new file (qlog)."),
    click.option("--no-pdc-events", is_flag=True, help="Leave out the events of PDCs."),
)  # fmt: skip

EPILOG = f"""\b
TIME is in seconds, or has a unit: 5ms, 250us, 7ns, 1.5s.

\b
Regions:  KEY[:SIZE][,fill=PATTERN][,index=I][,access=rw|r|w][,expect=PATTERN]
          [,idempotent]
          KEY may be "default"; expect is judged at the end; idempotent sets
          bit 63 of the key, which RUDI asks for
Receives: SIZE[xN][,tag=T][,ignore=BITS][,initiator=ID][,peer=FA][,multi=LEAST]
          [,after=TIME][,repost][,expect=PATTERN][,index=I]
Patterns: reference (octet j of message i is (7*i + 13*j + j//256) mod 256),
          counter, zero, random, byte:0xNN, hex:..., text:..., file:PATH,
          or one element: uint64:1000
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


def shared(function: F) -> F:
    """Give a command the options of both roles, in their order."""
    return with_options(function, _SHARED)


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
    values: dict[str, object] = {}
    for name, there in _FIELDS.items():
        value = options.pop(name)
        if value is not None:
            values[there] = value
    absolute = options.pop("absolute")
    if absolute is not None:
        values["relative"] = not absolute
    encapsulation = options.pop("encapsulation")
    if encapsulation is not None:
        values["native"] = encapsulation == "native"
    ecn = options.pop("ecn")
    if ecn is not None:
        values["ecn_capable"] = ecn
    profiles = options.pop("profiles")
    if profiles:
        values["profiles"] = tuple(profiles)
    return values


def domains_from(path: str | None) -> list[SecureDomain]:
    """Return the secure domains of the key file ``path``; none without a file."""
    if path is None:
        return []
    # This loads all transports: 47 ms, after which the endpoint takes 3 ms.  --help needs neither.
    from emulator.cli.decode.decode_source import read_domains

    return read_domains(Path(path))
