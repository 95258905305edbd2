"""The transports that a run can use, and what each needs to know about a fabric.

The factories named here are called in the agents (see :class:`~emulator.endpoint.spec.AgentSpec`);
everything else happens in the runner, before any process exists.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from emulator.asic.choice import SwitchChoice
from emulator.asic.code_points import endpoint_fields
from emulator.endpoint.frame_filter import TransportFrames
from emulator.errors import UserError
from emulator.run.ideal import WireCost
from topologies.addressing import gpu_address, next_hops
from topologies.model import End, Topology
from topologies.round_trip import base_rtt_ns
from topologies.units import UnitError, parse_time_ns
from uet.config import PAYLOAD_MTUS, FepConfig
from uet.fep import FabricEndpoint
from uet.tss.domain import KEY_SIZE, SecureDomain, domain_from_data
from uet.wire import headers
from uet.wire.codes import CRC_SIZE, ICV_SIZE

#: What a link spends on a frame beside the frame: preamble 8, FCS 4, gap 12 (IEEE 802.3).
_FRAMING = 24
_PREFERRED_PAYLOAD = 4096  # UES 3.4.1.11: every implementation has it


@dataclass(frozen=True)
class TransportChoice:
    """A transport fitted to a fabric.

    ``name`` is what the user asked for, parameters included.  ``factory``
    (``module:function``) makes an endpoint from ``configs[gpu]`` and a seed.  ``files`` are what
    the run folder must keep for readers of its captures, as JSON data by name.  ``data_packets``
    and ``retransmitted`` name its counters of first transmissions and repeats.
    """

    name: str
    factory: str
    frames: TransportFrames
    configs: Mapping[str, Mapping[str, object]]
    wire: WireCost
    data_packets: str
    retransmitted: str
    files: Mapping[str, object] = field(default_factory=dict)


def fit(
    wanted: str, topology: Topology, *, seed: int = 0, switch: SwitchChoice | None = None
) -> TransportChoice:
    """The transport ``NAME[:PARAMETER=VALUE,...]`` for ``topology`` behind switches of ``switch``.

    :class:`UserError` if there is none, it has no such parameter, or it cannot.
    """
    fitter, options = _parsed(wanted)
    return fitter(wanted, options, topology, seed, switch)


def is_secured(wanted: str) -> bool:
    """Whether the transport ``wanted`` encrypts, so that captures of headers show nothing.

    :class:`UserError` as for :func:`fit`.
    """
    _, options = _parsed(wanted)
    return options.get("tss", "off") != "off"


def _parsed(wanted: str) -> tuple[_Fitter, Mapping[str, str]]:
    name, _, text = wanted.partition(":")
    known = _TRANSPORTS.get(name)
    if known is None:
        raise UserError(f"there is no transport {name!r}{_near(name, _TRANSPORTS)}")
    fitter, choices = known
    options: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        option, equals, value = part.partition("=")
        if _TUNING.fullmatch(option) or option == "rto":
            options[option] = value
            continue
        if option not in choices:
            raise UserError(
                f"the transport {name} has no parameter {option!r}{_near(option, choices)}"
            )
        if not equals or value not in choices[option]:
            raise UserError(
                f"{part!r}: the parameter {option} of the transport {name} takes one of "
                f"{', '.join(choices[option])}"
            )
        options[option] = value
    return fitter, options


def describe_options() -> str:
    """The parameters of the transport uet and their values, the default first, a line each."""
    lines = [
        f"  {name + '=' + '|'.join(values):<46}{UET_MEANINGS[name]}"
        for name, values in UET_OPTIONS.items()
    ]
    rto = f"first retransmission timeout [default: {RTO_BASE_RTTS} base round trips]"
    lines.append(f"  {'rto=TIME':<46}{rto}")
    lines.append(
        f"  {'nscc.PARAMETER=N, rccc.PARAMETER=N':<46}of the algorithms, such as nscc.gamma"
    )
    return "\n".join(lines)


def _near(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{hint}; known are {', '.join(known)}"


#: What ``--transport uet:...`` can say, with the values of each; the first is the default.
UET_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "delivery": ("rud", "rod"),
    "reorder": ("off", "on"),
    "tss": ("off", "direct", "cluster"),
    "encapsulation": ("udp", "native"),
    "crc": ("off", "on"),
    "ack": ("ack_cc", "ack", "ack_ccx"),
    "cc": ("nscc", "rccc", "both", "none"),
    "spray": ("reps", "oblivious", "round_robin", "bitmap"),
}
#: What each of them decides, for people.
UET_MEANINGS: Mapping[str, str] = {
    "delivery": "unordered or ordered",
    "reorder": "with rod: refuse or keep what arrives early",
    "tss": "encryption, and how keys are derived",
    "encapsulation": "in UDP, or in IP itself",
    "crc": "end-to-end CRC; tss has its tag instead",
    "ack": "format of acknowledgements",
    "cc": "congestion control; none: a window of one bandwidth-delay product",
    "spray": "how unordered packets choose paths",
}
#: RTO_Init_Time of a run in base RTTs (UES leaves it to the operator; its 1 ms suits networks with
#: RTTs far above these).  Full queues of the deepest switch profile at each of three hops fit in.
RTO_BASE_RTTS = 20
#: Tail_Loss_Time likewise: what three full queues delay a packet, which trim at one
#: bandwidth-delay product or drop at five.
TAIL_TRIMMED, TAIL_DROPPED = 4, 16
_TUNING = re.compile(r"(nscc|rccc)\.(\w+)")
_SDI = 1


def uet_endpoint(
    *,
    seed: int,
    event_log: str | None = None,
    name: str = "",
    reference: str | None = None,
    **config: object,
) -> FabricEndpoint:
    """An Ultra Ethernet endpoint.

    ``config`` are the fields of :class:`~uet.config.FepConfig`, secure domains as JSON data.
    With ``event_log`` it writes what it does into that new file, under its ``name``;
    ``reference`` is the wall-clock time (RFC 3339) of fabric time zero, if the caller knows it.
    """
    domains = config.get("domains")
    if isinstance(domains, list):
        config["domains"] = tuple(map(domain_from_data, domains))
    fields = FepConfig(**config)  # type: ignore[arg-type]
    if event_log is None:
        return FabricEndpoint(fields, seed=seed)
    from uet.eventlog.endpoint import create
    from uet.eventlog.sequence import JsonSequence

    # Line by line, and kept open for the life of the agent: killed, it loses one event at most.
    file = Path(event_log).open("x", buffering=1, encoding="utf-8")  # noqa: SIM115
    log = JsonSequence(file.write, name=name, reference=reference)
    return create(fields, seed=seed, log=log)


def _secure_domain(mode: str, seed: int) -> SecureDomain:
    """The domain of all GPUs of a run.  Its key follows from the run's seed and is no secret."""
    key = hashlib.sha256(b"uetemu secure domain %d" % seed).digest()[:KEY_SIZE]
    return SecureDomain(sdi=_SDI, mode=mode, keys={0: key})  # type: ignore[arg-type]


def _fit_uet(
    wanted: str,
    options: Mapping[str, str],
    topology: Topology,
    seed: int,
    switch: SwitchChoice | None,
) -> TransportChoice:
    chosen = {name: values[0] for name, values in UET_OPTIONS.items()} | dict(options)
    if chosen["reorder"] == "on" and chosen["delivery"] != "rod":
        raise UserError(
            f"transport {wanted!r}: reorder=on is for ordered delivery; add delivery=rod or leave "
            "reorder out"
        )
    native, secure = chosen["encapsulation"] == "native", chosen["tss"] != "off"
    around = (
        headers.ETHERNET,
        headers.IPV4,
        headers.ENTROPY if native else headers.UDP_HEADER,
        headers.RUD_REQ,
        headers.SES_STD_SOM,
    )
    header_octets = sum(header.size for header in around)
    if chosen["cc"] in ("rccc", "both"):
        header_octets += headers.REQ_CC_STATE.size
    trims = switch is not None and switch.trims
    fields: dict[str, object] = {
        "congestion_control": chosen["cc"],
        "spraying": chosen["spray"],
        "network_trims": trims,
        **_tuning(wanted, options),
        **endpoint_fields(),
        "delivery": chosen["delivery"],
        "rod_reorder": chosen["reorder"] == "on",
        "native": native,
        "ack_type": chosen["ack"],
    }
    files = {}
    if secure:
        domain = _secure_domain(chosen["tss"], seed).as_data()
        fields |= {"domains": [domain], "sdi": _SDI}
        files["tss_keys.json"] = [domain]
        header_octets += headers.TSS.size + ICV_SIZE
    elif chosen["crc"] == "on":
        fields["crc"] = True
        header_octets += CRC_SIZE
    smallest_mtu = min(link.mtu for link in topology.links)
    room = smallest_mtu + headers.ETHERNET.size - header_octets
    fitting = [mtu for mtu in PAYLOAD_MTUS if mtu <= min(room, _PREFERRED_PAYLOAD)]
    if not fitting:
        raise UserError(
            f"an MTU of {smallest_mtu} octets leaves room for {room} octets of payload and UET "
            f"needs at least {PAYLOAD_MTUS[0]}; raise mtu to "
            f"{smallest_mtu - room + PAYLOAD_MTUS[0]}"
        )
    wire = WireCost(around_bytes=header_octets + _FRAMING, payload_mtu=max(fitting))
    base_rtt = base_rtt_ns(topology, wire.payload_mtu + wire.around_bytes)
    rto = _rto(wanted, options, base_rtt)
    configs = {}
    for gpu in topology.gpus:
        configs[gpu.name] = {
            "base_rtt": base_rtt,
            "rto_init_time": rto,
            "tail_loss_time": min(rto, base_rtt * (TAIL_TRIMMED if trims else TAIL_DROPPED)),
            "link_rate": _port_rate(topology, gpu.name),
            "address": str(gpu_address(gpu).ip),
            "mac": gpu.ports[0].mac,
            "neighbours": next_hops(topology, gpu.name),
            "payload_mtu": wire.payload_mtu,
            "window_bytes": _window(topology, gpu.name, wire),
            **fields,
        }
    try:
        FepConfig(**{**next(iter(configs.values())), "domains": (), "sdi": None})  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"transport {wanted!r}: {error}") from None
    return TransportChoice(
        name=wanted,
        factory="emulator.transports:uet_endpoint",
        frames=TransportFrames(),
        configs=configs,
        wire=wire,
        data_packets="tx_data_packets",
        retransmitted="tx_retransmitted_packets",
        files=files,
    )


def _window(topology: Topology, gpu: str, wire: WireCost) -> int:
    """Octets in flight that keep the NIC busy on its longest path, and no more.

    Rate times round trip; and as much as the receiver may leave unacknowledged (UES 3.5.12), and
    one packet that is being serialised at each hop.
    """
    rate = _port_rate(topology, gpu)
    reached = topology.paths(gpu)
    paths = [reached.get(peer.name, ()) for peer in topology.gpus]
    round_trip = 2 * max(sum(link.delay_ns for link in path) for path in paths)
    hops = max(len(path) for path in paths)
    trigger = FepConfig.ack_gen_trigger
    packet = wire.payload_mtu + wire.around_bytes
    return rate * round_trip // (8 * 10**9) + trigger + (hops + 1) * packet


def _port_rate(topology: Topology, gpu: str) -> int:
    return topology.link_at(End(gpu, topology.node(gpu).ports[0].name)).rate_bps


def _rto(wanted: str, options: Mapping[str, str], base_rtt: int) -> int:
    """RTO_Init_Time in ns."""
    if "rto" not in options:
        return RTO_BASE_RTTS * base_rtt
    try:
        return parse_time_ns(options["rto"])
    except UnitError as error:
        raise UserError(f"transport {wanted!r}: rto: {error}") from None


def _tuning(wanted: str, options: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """What was said of the parameters of NSCC and RCCC."""
    found: dict[str, dict[str, float]] = {"nscc": {}, "rccc": {}}
    for option, value in options.items():
        named = _TUNING.fullmatch(option)
        if named is None:
            continue
        try:
            number = float(value)
        except ValueError:
            raise UserError(f"transport {wanted!r}: {option} is {value!r}; give a number") from None
        found[named[1]][named[2]] = int(number) if number.is_integer() else number
    return found


_Fitter = Callable[[str, Mapping[str, str], Topology, int, SwitchChoice | None], TransportChoice]
_TRANSPORTS: Mapping[str, tuple[_Fitter, Mapping[str, tuple[str, ...]]]] = {
    "uet": (_fit_uet, UET_OPTIONS),
}
