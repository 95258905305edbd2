"""Ultra Ethernet in a run: ``--transport uet:...``."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.switch.code_points import LAB, endpoint_fields
from emulator.dataplane.switch.switch_choice import DEFAULT, SwitchChoice
from emulator.errors import UserError
from emulator.sim.endpoint.endpoint_fitting import PREFERRED_PAYLOAD
from emulator.transports.one_time_keys import OneTimeKeys
from emulator.transports.shared_neighbours import shared_neighbours
from emulator.transports.transport_choice import (
    RTO_BASE_RTTS,
    TRANSPORTS,
    Options,
    RunTransport,
    TransportChoice,
    Words,
    number,
    path_window,
    rto_ns,
)
from emulator.transports.wire_cost import WireCost
from topologies.addressing import gpu_address
from topologies.advice import meant
from topologies.analysis.round_trip import base_rtt_ns
from topologies.designs.planes import fep_addresses, fep_number
from topologies.ethernet import FRAMING_OCTETS
from topologies.model import CableEnd, Node, Topology
from topologies.parts.attachment import nic_rate_bps, port_rate_bps
from topologies.registry import describe_parameters, parameter_fields
from uet.config import FepConfig
from uet.congestion.congestion_parameters import Parameters, PathParameters
from uet.congestion.control_registry import CONTROLS, tuned_controls
from uet.congestion.spraying.policies import SPRAYING
from uet.tss.secure_domain import Mode, domain_from_data
from uet.wire.codes import CRC_SIZE, ICV_SIZE, MIN_TRIM_SIZE, PAYLOAD_MTUS

if TYPE_CHECKING:  # what only a run needs is imported where it begins
    from uet.fep import FabricEndpoint
    from uet.planes.fabric_interface import FabricInterface
    from uet.transport import Transport

#: The parameters of ``--transport uet:...``, with the values of each; the first is the default.
_WORDS: Mapping[str, Words] = {
    "delivery": Words(
        ("rud", "rod", "rudi", "uud"),
        "unordered or ordered; idempotent or datagrams, without a PDC",
    ),
    "reorder": Words(("off", "on"), "with rod: refuse or keep what arrives early"),
    "tss": Words(("off", "direct", "cluster"), "encryption, and how keys are derived"),
    "encapsulation": Words(("udp", "native"), "in UDP, or in IP itself"),
    "crc": Words(("off", "on"), "end-to-end CRC; tss has its tag instead"),
    "ack": Words(("ack_cc", "ack", "ack_ccx"), "format of acknowledgements"),
    "cc": Words(CONTROLS, "congestion control", default="nscc"),
    "spray": Words(SPRAYING, "how unordered packets choose paths", default="reps"),
}
#: Deliveries without a PDC, whose writes :mod:`emulator.transports.connectionless_writes` makes.
WITHOUT_PDC = ("rudi", "uud")
#: Tail_Loss_Time of a run in base RTTs: the slowest round trips of late show what queues hold from
#: what is lost.  A NIC that GPUs share holds the windows of all of them, whose ends nobody marks.
TAIL_BASE_RTTS, TAIL_SHARED_NIC = 3, 16
#: How long REPS takes only paths that were good after a loss, in base RTTs.  UES leaves it open;
#: public models take from 100 us to 10 ms.  Far longer than it takes to learn the paths anew, the
#: few that it then has load a fabric unevenly, after a loss that broke nothing for a whole run.
REPS_FROZEN_BASE_RTTS = 20
#: More packets than one life of an endpoint sends in one secure domain.
COUNTERS_PER_LIFE = 1 << 32
#: How long a plane is silent until its work goes to another one: as long as its endpoint asks that
#: often for the state of the tail, or, where delivery is ordered, so many RTOs.
SILENT_TAILS, SILENT_RTOS = 3, 2
_TUNING = re.compile(r"([\w-]+)\.(\w+)")


def uet_endpoint(
    *,
    seed: int,
    event_log: str | None = None,
    name: str = "",
    reference: str | None = None,
    life: int = 0,
    lives_before: int = 0,
    **config: object,
) -> FabricEndpoint:
    """An Ultra Ethernet endpoint.

    ``config`` are the fields of :class:`~uet.config.FepConfig`. Secure domains are JSON data with
    keys of its own, under which only earlier lives of it sent: packet counters of each ``life`` are
    others, those ``lives_before`` this row included. With ``event_log`` it writes what it does into
    that new file, under its ``name``; ``reference`` is the wall-clock time (RFC 3339) of fabric
    time zero, if the caller has it. A later ``life`` of the endpoint has a log of its own, with
    that number in its name.
    """
    from uet.fep import FabricEndpoint

    life += lives_before
    domains = config.get("domains")
    if isinstance(domains, list):
        config["domains"] = tuple(map(domain_from_data, domains))
    fields = FepConfig(**config)  # type: ignore[arg-type]
    if event_log is None:
        return FabricEndpoint(fields, seed=seed, first_counter=life * COUNTERS_PER_LIFE)
    from uet.eventlog.logging_endpoint import create
    from uet.eventlog.sequence import JsonSequence

    # Line by line, and kept open for the life of the endpoint: killed, it loses one event at most.
    path = Path(event_log)
    if life:
        path = path.with_stem(f"{path.stem}.{life}")
    file = path.open("x", buffering=1, encoding="utf-8")
    log = JsonSequence(file.write, name=name, reference=reference)
    return create(fields, seed=seed, first_counter=life * COUNTERS_PER_LIFE, log=log)


def connectionless_endpoint(**config: Any) -> Transport:
    """An Ultra Ethernet endpoint whose writes go by RUDI or UUD."""
    from emulator.transports.connectionless_writes import ConnectionlessWrites

    return ConnectionlessWrites(uet_endpoint(**config))


def fabric_interface(  # noqa: PLR0913  each is a field of what it makes
    *,
    seed: int,
    feps: Sequence[Mapping[str, object]],
    names: Sequence[str],
    peers: Sequence[tuple[str, ...]],
    quarantine: int,
    silence: int,
    time_limit: int,
    event_log: str | None = None,
    name: str = "",
    reference: str | None = None,
    life: int = 0,
    lives_before: int = 0,
    **common: object,
) -> FabricInterface:
    """Return the endpoints of one NIC, one a plane, as one fabric interface.

    :func:`uet_endpoint` makes them from ``feps`` and what they have in ``common``.

    ``names`` are theirs; see :class:`~uet.planes.fabric_interface.InterfaceConfig` for the others.
    Each writes an event log of its own, its name appended to that of the file.
    """
    from uet.planes.fabric_interface import FabricInterface
    from uet.planes.plane import InterfaceConfig

    rng = random.Random(seed)
    made = []
    for fep, config in zip(names, feps, strict=True):
        log = None
        if event_log is not None:
            whole = Path(event_log)
            log = str(whole.with_stem(f"{whole.stem}-fep{fep}"))
        endpoint = uet_endpoint(
            seed=rng.getrandbits(63),
            event_log=log,
            name=f"{name} FEP {fep}",
            reference=reference,
            life=life,
            lives_before=lives_before,
            **{**config, **common},
        )
        made.append((fep, endpoint))
    shared = InterfaceConfig(
        peers=peers, quarantine=quarantine, silence=silence, time_limit=time_limit
    )
    return FabricInterface(made, shared, seed=rng.getrandbits(63))


def _fit_uet(
    requested: str,
    options: Options,
    topology: Topology,
    seed: int,
    switch: SwitchChoice | None,
) -> TransportChoice:
    from uet.wire import headers

    chosen = UET.chosen(options)
    if chosen["reorder"] == "on" and chosen["delivery"] != "rod":
        raise UserError(
            f"transport {requested!r}: reorder=on is for ordered delivery; add delivery=rod or "
            "leave reorder out"
        )
    _refuse_idle(requested, options, chosen)
    native, secure = chosen["encapsulation"] == "native", chosen["tss"] != "off"
    around = (
        headers.ETHERNET,
        headers.IPV4,
        headers.ENTROPY if native else headers.UDP_HEADER,
        {"rudi": headers.RUDI_REQ, "uud": headers.UUD_REQ}.get(chosen["delivery"], headers.RUD_REQ),
        headers.SES_STD_SOM,
    )
    header_octets = sum(header.size for header in around)
    if _is_credited(chosen):
        header_octets += headers.REQ_CC_STATE.size
    trims = switch is not None and switch.trims
    fields: dict[str, object] = {
        "cc": chosen["cc"],
        "network_trims": trims,
        "cc_parameters": _tuning(requested, options),
        **_spraying(requested, options, chosen),
        **endpoint_fields(),
        "delivery": chosen["delivery"],
        "rod_reorder": chosen["reorder"] == "on",
        "native": native,
        "ack_type": chosen["ack"],
    }
    if "short" in options:
        fields["short_message_packets"] = number(requested, "short", options["short"])
    if secure:
        header_octets += headers.TSS.size + ICV_SIZE
    elif chosen["crc"] == "on":
        fields["crc"] = True
        header_octets += CRC_SIZE
    smallest_mtu = min(link.mtu for link in topology.links)
    room = smallest_mtu + headers.ETHERNET.size - header_octets
    fitting = [mtu for mtu in PAYLOAD_MTUS if mtu <= min(room, PREFERRED_PAYLOAD)]
    if not fitting:
        raise UserError(
            f"an MTU of {smallest_mtu} octets leaves room for {room} octets of payload and UET "
            f"needs at least {PAYLOAD_MTUS[0]}; raise mtu to "
            f"{smallest_mtu - room + PAYLOAD_MTUS[0]}"
        )
    mtu, around_bytes = max(fitting), header_octets + FRAMING_OCTETS
    base_rtt = base_rtt_ns(topology, mtu + around_bytes)
    rate_bps = max(nic_rate_bps(topology, gpu.name) for gpu in topology.gpus)
    wire = WireCost(
        around_bytes=around_bytes,
        payload_mtu=mtu,
        packets_per_ack=max(1, FepConfig.ack_gen_trigger // mtu),
        first=base_rtt
        * rate_bps
        // (8 * 10**9 * (mtu + around_bytes)),  # until the PDC is established
    )
    rto = rto_ns(requested, options, base_rtt)
    shared = any(node.transparent for node in topology.nodes)
    tail_loss_time = min(rto, base_rtt * (TAIL_SHARED_NIC if shared else TAIL_BASE_RTTS))
    fields |= {
        "base_rtt": base_rtt,
        "rto_init_time": rto,
        "tail_loss_time": tail_loss_time,
        "reps_freeze_time": REPS_FROZEN_BASE_RTTS * base_rtt,
        "payload_mtu": wire.payload_mtu,
    }
    packet = wire.payload_mtu + wire.around_bytes
    endpoints = {gpu.name: _endpoints(topology, gpu, packet, fields) for gpu in topology.gpus}
    try:
        FepConfig(**next(iter(endpoints.values()))[0])  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"transport {requested!r}: {error}") from None
    configs: dict[str, Mapping[str, object]] = {}
    for gpu in topology.gpus:
        configs[gpu.name] = endpoints[gpu.name][0]
        if gpu.feps:
            configs[gpu.name] = {
                "feps": endpoints[gpu.name],
                "names": [fep_number(topology, gpu, fep.name) for fep in gpu.feps],
                "peers": [fep_addresses(peer) for peer in topology.gpus if peer is not gpu],
                "quarantine": tail_loss_time,
                "silence": SILENT_TAILS * tail_loss_time
                if chosen["delivery"] == "rud"
                else SILENT_RTOS * rto,
                "time_limit": rto,
            }
    several = any(gpu.feps for gpu in topology.gpus)
    factory = "fabric_interface" if several else "uet_endpoint"
    if chosen["delivery"] in WITHOUT_PDC:
        factory = "connectionless_endpoint"
        if several:
            raise UserError(
                f"transport {requested!r}: delivery={chosen['delivery']} has one endpoint for a "
                "NIC, and here each port has its own; take delivery=rud"
            )
    return TransportChoice(
        name=requested,
        factory=f"{__name__}:{factory}",
        frames=TransportFrames(),
        configs=configs,
        code_points={LAB.data: True, LAB.control: False},
        wire=wire,
        data_packets="tx_data_packets",
        retransmitted="tx_retransmitted_packets",
        trimmed_octets=_trimmed_octets(chosen),
        keys=OneTimeKeys(cast(Mode, chosen["tss"])) if secure else None,
        out_of_order="rx_reordered" if chosen["delivery"] == "rod" else None,
        traits=_traits(chosen, rto, base_rtt),
    )


def _trimmed_octets(chosen: Mapping[str, str]) -> int:
    """Octets of IP payload through the PDS header of a request (UES 4.1)."""
    from uet.wire import headers

    kept = [headers.ENTROPY if chosen["encapsulation"] == "native" else headers.UDP_HEADER]
    if chosen["tss"] != "off":
        kept.append(headers.TSS)
    kept.append(headers.RUD_REQ)
    if _is_credited(chosen):
        kept.append(headers.REQ_CC_STATE)
    return max(MIN_TRIM_SIZE, sum(header.size for header in kept))


def _traits(chosen: Options, rto: int, base_rtt: int) -> dict[str, str]:
    """Return how it works where another transport may work otherwise, by subject."""
    if chosen["delivery"] in WITHOUT_PDC:
        reliable = chosen["delivery"] == "rudi"
        return {
            "paths": "by packet",
            "congestion control": "none",
            "retransmission timer": f"{rto / 1000:.1f} us" if reliable else "none",
            "ACKs": "a response to each request" if reliable else "none",
        }
    ordered = chosen["delivery"] == "rod"
    return {
        "paths": "one to a peer" if ordered else f"by packet, {chosen['spray']}",
        "congestion control": f"{chosen['cc']}, fitted to this fabric's base RTT of "
        f"{base_rtt / 1000:.2f} us, rate and trimming",
        "retransmission timer": f"{rto / 1000:.1f} us",
        "ACKs": "in the queue of control packets",
    }


def _endpoints(
    topology: Topology, gpu: Node, packet_octets: int, fields: Mapping[str, object]
) -> list[dict[str, object]]:
    """Return the configuration of each fabric endpoint of ``gpu``."""
    from uet.planes.numbered_writes import REGION_BITS

    found = []
    ports: list[str | None] = [fep.name for fep in gpu.feps]
    for port in ports or [None]:
        found.append(
            {
                "address": str(gpu_address(gpu, port).ip),
                "mac": gpu.ports[0].mac,
                "neighbours": shared_neighbours(topology, gpu, port),
                "ports": 1 if port else len(gpu.ports),
                "link_rate": port_rate_bps(topology, CableEnd(gpu.name, port))
                if port
                else nic_rate_bps(topology, gpu.name),
                "window_bytes": path_window(
                    topology, gpu.name, packet_octets, FepConfig.ack_gen_trigger, port
                ),
                **({"region_bits": REGION_BITS} if port else {}),
                **fields,
            }
        )
    return found


def _tuning(requested: str, options: Options) -> dict[str, dict[str, float]]:
    """Return the parameters of each control: what runs set, and what the user has set.

    A run lets the average delay stand in for a missing RTT sample, as UEC's own simulator does.  By
    the letter of UES 3.6.13 such an ACK changes nothing. A window that the first flight of an
    incast has cut then stays small for as long as packets are sent three times.
    """
    found: dict[str, dict[str, float]] = {"nscc": {"average_stands_in": 1.0}, "rccc": {}}
    for option, value in options.items():
        named = _TUNING.fullmatch(option)
        if named is not None and named[1] in tuned_controls():
            found.setdefault(named[1], {})[named[2]] = number(requested, option, value)
    return found


def _spraying(requested: str, options: Options, chosen: Options) -> dict[str, object]:
    """Return the way of spraying, with the parameters that the user has set of it."""
    named = {option: _TUNING.fullmatch(option) for option in options}
    tuned = {
        match[2]: number(requested, option, options[option])
        for option, match in named.items()
        if match is not None and match[1] == chosen["spray"] and match[1] not in tuned_controls()
    }
    return {"spraying": chosen["spray"], **({"spray_parameters": tuned} if tuned else {})}


def _refuse_idle(requested: str, options: Options, chosen: Options) -> None:
    """Raise UserError for a parameter that the others leave without effect."""
    idle: dict[str, str] = {}
    if chosen["delivery"] == "rod":
        idle |= dict.fromkeys(("spray", "short"), "delivery=rod, which keeps a PDC to one path")
    if chosen["delivery"] in WITHOUT_PDC:
        reason = f"delivery={chosen['delivery']}, whose data have no PDC and no congestion control"
        idle |= dict.fromkeys(("spray", "short", "ack", "cc"), reason)
    if chosen["tss"] != "off" and chosen["crc"] == "on":
        idle["crc"] = f"tss={chosen['tss']}, whose tag takes its place"
    for option in options:
        tuned = _TUNING.fullmatch(option)
        if tuned is None:
            continue
        if tuned[1] in tuned_controls():
            if not CONTROLS[chosen["cc"]].takes(tuned[1]):
                idle[option] = f"cc={chosen['cc']}"
        elif tuned[1] in _tuned_sprays():
            if tuned[1] != chosen["spray"]:
                idle[option] = f"spray={chosen['spray']}"
        else:
            tunable = [*tuned_controls(), *_tuned_sprays()]
            raise UserError(
                f"the transport uet has no parameter {option!r}: "
                f"{', '.join(tunable)} have any{meant(tuned[1], tunable)}"
            )
    for option, beside in idle.items():
        if option in options:
            raise UserError(
                f"transport {requested!r}: {option} has no effect with {beside}; leave one of "
                "them out"
            )


def _tuned_sprays() -> dict[str, type[Parameters]]:
    """Return the classes of parameters that ways of spraying have, by name."""
    return {name: one.parameters for name, one in SPRAYING.items() if one.parameters is not None}


def _default_switch(options: Options, topology: Topology) -> str:
    """Return the default switch; with RCCC one without marking on the last hop (UES 3.6.14).

    The receiver's credit governs that hop.
    """
    return f"{DEFAULT}:last_hop_ecn=off" if _is_credited(options) else DEFAULT


def _is_credited(options: Options) -> bool:
    """Return whether sources need the receiver's credit."""
    return "cc" in options and CONTROLS[options["cc"]].credit is not None


def _described() -> dict[str, str]:
    path = {field.name for field in parameter_fields(PathParameters)}
    lines = {
        "rto=TIME": f"first retransmission timeout [default: {RTO_BASE_RTTS} base RTTs]",
        "short=PACKETS": "unordered messages of at most so many have a second PDC while a "
        f"longer one waits on the first; 0: never [default: {FepConfig.short_message_packets}]",
    }
    for name, kind in [*tuned_controls().items(), *_tuned_sprays().items()]:
        lines |= describe_parameters(kind, f"{name}.", without=path)
    return lines


UET = TRANSPORTS.register(
    RunTransport(
        name="uet",
        meaning="Ultra Ethernet: sprayed packets, NSCC or RCCC, selective retransmission, trimming",
        default_switch=_default_switch,
        fit=_fit_uet,
        words=_WORDS,
        free=re.compile(f"{_TUNING.pattern}|rto|short"),
        described=_described,
    )
)
