"""RoCEv2 in a run: ``--transport rocev2:...``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.switch.code_points import rocev2_fields
from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.errors import UserError
from emulator.rocev2.config import HcaConfig
from emulator.rocev2.congestion.dcqcn_parameters import NAMED, PERIODIC
from emulator.rocev2.congestion.rate_registry import RATE_CONTROLS
from emulator.rocev2.connections import MeshAddresses, full_mesh
from emulator.rocev2.wire.codes import (
    ICRC_SIZE,
    MAX_TIMEOUT_EXPONENT,
    PATH_MTUS,
    UDP_PORT,
    timeout_ns,
)
from emulator.transports.rocev2_switch import customary, marks
from emulator.transports.shared_neighbours import shared_neighbours
from emulator.transports.transport_choice import (
    RTO_BASE_RTTS,
    TRANSPORTS,
    Options,
    Preset,
    RunTransport,
    TransportChoice,
    Words,
    number,
    path_window,
    rto_ns,
)
from emulator.transports.wire_cost import WireCost
from topologies.addressing import gpu_address
from topologies.analysis.round_trip import base_rtt_ns
from topologies.ethernet import FRAMING_OCTETS
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps
from topologies.registry import describe_parameters
from uet.config_checks import ConfigurationError
from uet.congestion.congestion_parameters import Parameters

if TYPE_CHECKING:
    from emulator.rocev2.hca import HostChannelAdapter

#: The parameters of ``--transport rocev2:...``, with the values of each; the first is the default.
_WORDS: Mapping[str, Words] = {
    "cc": Words(RATE_CONTROLS, "congestion control", default="dcqcn"),
    "dcqcn": Words(
        ("mlx", *(name for name in NAMED if name != "mlx")),
        "parameters of its algorithm, by who uses them",
    ),
    "recovery": Words(
        ("go_back_n", "selective_repeat"), "from loss: as most NICs, or as newer ones"
    ),
    "placement": Words(
        ("in_order", "direct"),
        "of what comes early: kept, or put where each packet says (selective_repeat)",
    ),
    "window": Words(
        ("none", "bdp"),
        "octets in flight: as congestion control lets, or one bandwidth-delay product",
    ),
    "acks": Words(
        ("control", "data"),
        "wait in the queue of control packets, as those of UET do, or behind data",
    ),
    "pfc": Words(("on", "off"), "unless --switch says: on a lossless fabric, or on one that drops"),
}
FREE: Mapping[str, str] = {
    "qps=N": "queue pairs to each peer, which messages take in turn [default: 1]",
    "mtu=N": f"path MTU, one of {', '.join(map(str, PATH_MTUS))} [default: what fits]",
    "timeout=N": "retry timer of 4.096 us * 2^N in fabric time, 0..31 (NCCL: 20)",
    "": f"[default: {HcaConfig.timeout}; where switches do not pause, the least N of at least "
    f"{RTO_BASE_RTTS} base round trips]",
    "rto=TIME": "timeout= by its time: the least N that is at least so long",
    "reorder=N": "packets that may overtake one before it is lost [default: 0, or with "
    "placement=direct a fully marked queue and a BDP]",
    "dcqcn.PARAMETER=N": "of DCQCN, such as dcqcn.additive_rate (bit/s)",
    "dcqcn.byte_unit=1|64": "octets in a unit of the byte counter (mlx: 32767 units)",
    "retry_cnt=N": "timeouts in a row before an error, 0..7 [default: 7]",
}
#: RoCEv2 as its own advocates would have it.  "nccl": connections of a collective library's
#: channels between two NICs, of which each message takes the next; "adaptive": adaptive routing.
PRESETS: Mapping[str, Preset] = {
    "classic": Preset({}, "one queue pair to each peer, hashed, lossless: the default"),
    "nccl": Preset(
        {"qps": "4"}, "four queue pairs to each peer, as collective libraries open them"
    ),
    "adaptive": Preset(
        {"recovery": "selective_repeat", "placement": "direct"},
        "selective repeat, direct placement; switches take the least loaded path by packet",
        {"balance": "least-loaded"},
    ),
}
_TUNING = re.compile(r"([\w-]+)\.(\w+)")
_MOST_QPS = 64


def rocev2_endpoint(
    *, seed: int, life: int = 0, lives_before: int = 0, **config: object
) -> HostChannelAdapter:
    """A RoCEv2 endpoint.

    ``config`` are the fields of :class:`~emulator.rocev2.config.HcaConfig`; in place of its
    connections, ``mesh`` are the arguments of :func:`~emulator.rocev2.connections.full_mesh`. Each
    ``life`` of the endpoints in a row has other queue pairs, whatever came before the row.
    """
    from emulator.rocev2.hca import HostChannelAdapter

    return HostChannelAdapter(_hca_config(config, life), seed=seed)


def _hca_config(config: Mapping[str, object], life: int = 0) -> HcaConfig:
    fields: dict[str, Any] = dict(config)
    mesh = fields.pop("mesh", None)
    if mesh is not None:
        fields["connections"] = full_mesh(**mesh, life=life)
    return HcaConfig(**fields)


def _fit(
    requested: str,
    options: Options,
    topology: Topology,
    seed: int,
    switch: SwitchChoice | None,
) -> TransportChoice:
    from emulator.rocev2.wire import headers

    chosen = ROCEV2.chosen(options)
    if "pfc" in options and switch is not None:
        paused = switch.pausing is not None
        if paused != (chosen["pfc"] == "on"):
            raise UserError(
                f"transport {requested!r}: pfc={chosen['pfc']}, but the switches "
                f"{'pause' if paused else 'do not pause'}; leave one of --switch and pfc out"
            )
    if any(gpu.feps for gpu in topology.gpus):
        raise UserError(
            f"transport {requested!r}: the NICs of {topology.name} have an endpoint in each plane "
            "(homing=planes), which is Ultra Ethernet's; take homing=paths, where queue pairs hash "
            "over its ports, or transport uet"
        )
    # By pauses or by credits; plain queues of Linux drop.
    pauses = switch is not None and (switch.pausing or switch.cbfc) is not None
    qps = _whole(requested, options, "qps", 1, _MOST_QPS, 1)
    mtu = _mtu(requested, options, topology)
    each = headers.RETH.size if chosen["placement"] == "direct" else 0
    wire = WireCost(
        around_bytes=_around() + each + FRAMING_OCTETS,
        payload_mtu=mtu,
        packets_per_ack=HcaConfig.ack_interval,
    )
    packet = mtu + wire.around_bytes
    base_rtt = base_rtt_ns(topology, packet)
    fields: dict[str, object] = {
        "mtu": mtu,
        "timeout": _timeout(requested, options, base_rtt, pauses),
        "retry_cnt": _whole(requested, options, "retry_cnt", 0, 7, HcaConfig.retry_cnt),
        "recovery": chosen["recovery"],
        "placement": chosen["placement"],
        "reorder_tolerance": _reorder(requested, chosen, topology, packet),
        "cc": chosen["cc"],
        "dcqcn_set": chosen["dcqcn"],
        **_tuning(requested, options, chosen),
        # One operation is a write with immediate, which takes a receive that the other side has
        # not posted, from a queue that a library keeps filled.
        "endless_receives": True,
        **rocev2_fields(),
    }
    if chosen["acks"] == "control":
        fields["dscp_ack"] = fields["dscp_cnp"]
    addresses = MeshAddresses([str(gpu_address(gpu).ip) for gpu in topology.gpus])
    configs = {}
    for place, gpu in enumerate(topology.gpus):
        configs[gpu.name] = {
            "address": addresses.addresses[place],
            "mac": gpu.ports[0].mac,
            "neighbours": shared_neighbours(topology, gpu),
            "mesh": {"addresses": addresses, "own": place, "qps": qps, "seed": seed},
            "line_rate": nic_rate_bps(topology, gpu.name),
            **fields,
        }
        if chosen["window"] == "bdp":
            unacknowledged = HcaConfig.ack_interval * packet
            window = path_window(topology, gpu.name, packet, unacknowledged)
            configs[gpu.name]["window_packets"] = max(1, window // packet)
    _check(requested, next(iter(configs.values())))
    return TransportChoice(
        name=requested,
        factory="emulator.transports.rocev2_transport:rocev2_endpoint",
        frames=TransportFrames(udp_ports=(UDP_PORT,), ip_protocols=()),
        configs=configs,
        code_points=dict.fromkeys(rocev2_fields().values(), HcaConfig.ecn_capable),
        wire=wire,
        data_packets="tx_data_packets",
        retransmitted="tx_retransmitted_packets",
        event_logs=False,
        out_of_order="rx_out_of_order",
        header_bits=32,
        queue_pairs=qps,
        traits=_traits(chosen, qps, int(str(fields["timeout"]))),
    )


def _traits(chosen: Options, qps: int, timeout: int) -> dict[str, str]:
    """Return how it works where another transport may work otherwise, by subject."""
    paths = "as switches choose by packet" if chosen["placement"] == "direct" else "hashed"
    pairs = "one queue pair" if qps == 1 else f"{qps} queue pairs"
    control = chosen["cc"]
    if control == "dcqcn":
        control += f", the set {chosen['dcqcn']}, the same on every fabric"
    return {
        "paths": f"{paths}, {pairs} to a peer",
        "congestion control": control,
        "retransmission timer": f"{timeout_ns(timeout) / 1000:.1f} us" if timeout else "none",
        "ACKs": "in the queue of control packets" if chosen["acks"] == "control" else "behind data",
    }


def _around() -> int:
    """Return the octets of headers around the payload of every packet, Ethernet's included."""
    from emulator.rocev2.wire import headers
    from uet.wire import headers as below

    carrier = below.ETHERNET.size + below.IPV4.size + below.UDP_HEADER.size
    return carrier + headers.BTH.size + ICRC_SIZE


def _check(requested: str, config: Mapping[str, object]) -> None:
    try:
        _hca_config(config)
    except ConfigurationError as error:
        raise UserError(f"transport {requested!r}: {error}") from None


def _mtu(requested: str, options: Options, topology: Topology) -> int:
    """Return the path MTU: the user's, or the largest that fits."""
    from emulator.rocev2.wire import headers
    from uet.wire import headers as below

    smallest = min(link.mtu for link in topology.links)
    largest = _around() + headers.RETH.size + headers.IMM_DT.size
    room = smallest + below.ETHERNET.size - largest
    fitting = [mtu for mtu in PATH_MTUS if mtu <= room]
    if "mtu" in options:
        mtu = number(requested, "mtu", options["mtu"])
        if mtu not in PATH_MTUS:
            raise UserError(
                f"transport {requested!r}: mtu is {mtu}; InfiniBand knows {_listed(PATH_MTUS)}"
            )
        if mtu not in fitting:
            raise UserError(
                f"transport {requested!r}: links of MTU {smallest} leave room for {room} octets of "
                f"payload; choose mtu={fitting[-1]}, or raise the MTU of the links"
                if fitting
                else f"an MTU of {smallest} octets leaves room for {room} octets of payload and"
                f" RoCEv2 needs at least {PATH_MTUS[0]}; raise mtu to "
                f"{smallest - room + PATH_MTUS[0]}"
            )
        return int(mtu)
    if not fitting:
        raise UserError(
            f"an MTU of {smallest} octets leaves room for {room} octets of payload and RoCEv2 "
            f"needs at least {PATH_MTUS[0]}; raise mtu to {smallest - room + PATH_MTUS[0]}"
        )
    return fitting[-1]


def _timeout(requested: str, options: Options, base_rtt: int, pauses: bool) -> int:
    """The exponent of the retry timer.

    Where switches pause, a packet may wait for as long as its whole path does, and is not lost:
    only a timer that outlasts that, as NICs have it, sends nothing again in vain.
    """
    if "timeout" in options:
        if "rto" in options:
            raise UserError(
                f"transport {requested!r}: timeout and rto say the same; keep one of them"
            )
        return _whole(requested, options, "timeout", 0, MAX_TIMEOUT_EXPONENT, 0)
    if pauses and "rto" not in options:
        return HcaConfig.timeout
    least = rto_ns(requested, options, base_rtt)
    exponents = range(1, MAX_TIMEOUT_EXPONENT + 1)
    return next((x for x in exponents if timeout_ns(x) >= least), MAX_TIMEOUT_EXPONENT)


def _reorder(requested: str, options: Options, topology: Topology, packet: int) -> int:
    """Return how far packets may be out of order without being taken for lost.

    Under direct placement paths are taken by packet: one may meet a queue that is marked whole, as
    deep as a fabric without loss has them, while others go on at full rate.
    """
    if "reorder" in options and options["recovery"] != "selective_repeat":
        raise UserError(
            f"transport {requested!r}: reorder is for receivers that keep what comes early; add "
            "recovery=selective_repeat or leave reorder out"
        )
    most, default = HcaConfig.reorder_window // 2, 0
    if options["placement"] == "direct":
        _, queue = marks(topology)
        bdp = max(path_window(topology, gpu.name, packet, 0) for gpu in topology.gpus)
        default = min(most, (queue + bdp) // packet)
    return _whole(requested, options, "reorder", 0, most, default)


def _tuning(requested: str, options: Options, chosen: Options) -> dict[str, dict[str, float]]:
    """Return the control's parameters that the user gave; UserError for those without effect."""
    named = {option: _TUNING.fullmatch(option) for option in options}
    tunable = ["dcqcn", *_tuned_controls()]
    paper = NAMED[chosen["dcqcn"]][1].variant == "paper"
    for option, match in named.items():
        control = "dcqcn" if option == "dcqcn" else match and match[1]
        if control and control not in tunable:
            raise UserError(
                f"the transport rocev2 has no parameter {option!r}: {', '.join(tunable)} have any"
            )
        if control not in (None, chosen["cc"]):
            raise UserError(
                f"transport {requested!r}: {option} has no effect with cc={chosen['cc']}; leave "
                "one of them out"
            )
        if match is not None and control == "dcqcn" and paper and match[2] in PERIODIC:
            raise UserError(
                f"transport {requested!r}: {option} has no effect with dcqcn={chosen['dcqcn']}, "
                "which does as the paper does; leave it out, or take another set"
            )
    tuned = {
        match[2]: number(requested, option, options[option])
        for option, match in named.items()
        if match is not None
    }
    if chosen["cc"] in ("dcqcn", "none"):
        return {"dcqcn": tuned}
    return {"cc_parameters": tuned}


def _whole(requested: str, options: Options, name: str, low: int, high: int, default: int) -> int:
    """A whole number among the options."""
    if name not in options:
        return default
    value = number(requested, name, options[name])
    if not isinstance(value, int) or not low <= value <= high:
        raise UserError(
            f"transport {requested!r}: {name} is {value}; give a whole number in {low}..{high}"
        )
    return value


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _default_switch(options: Options, topology: Topology) -> str:
    """Return the default switch: one with priority flow control, as go-back-N requires.

    The user may choose another.
    """
    return customary(topology, pfc=options.get("pfc") != "off")


def _tuned_controls() -> dict[str, type[Parameters]]:
    """Return the classes of parameters of controls that have one, by name."""
    return {
        name: one.parameters for name, one in RATE_CONTROLS.items() if one.parameters is not None
    }


def _described() -> dict[str, str]:
    lines = dict(FREE)
    for name, kind in _tuned_controls().items():
        lines |= describe_parameters(kind, f"{name}.")
    return lines


ROCEV2 = TRANSPORTS.register(
    RunTransport(
        name="rocev2",
        meaning="RDMA over UDP: reliable connections on one path each, DCQCN, PFC below",
        fit=_fit,
        default_switch=_default_switch,
        words=_WORDS,
        free=re.compile(rf"qps|mtu|timeout|reorder|rto|retry_cnt|{_TUNING.pattern}"),
        described=_described,
        presets=PRESETS,
    )
)
