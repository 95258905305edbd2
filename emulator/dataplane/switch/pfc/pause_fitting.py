"""Priority flow control fitted to a fabric: thresholds of every kind of cable, checked.

A port's buffer (the topology's ``buffer``) is its share of the chip's memory.  What came in by the
port and still waits in the switch fills it: up to XOFF the other end may send, and what arrives
before the pause takes effect needs the headroom, so both must fit.  As all that waits anywhere in a
switch is in one of those buffers, its egress queues need no limit of their own.

By default XOFF is half a bandwidth-delay product: above where marking begins (0.2), so that
congestion control acts first, and low enough for windows of one product to reach it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from emulator.dataplane.switch.pfc.headroom import headroom_bytes, reaction_ns
from emulator.dataplane.switch.pfc.pause_state import PauseRules
from emulator.dataplane.switch.switch_choice import OfBdp, SwitchChoice
from emulator.dataplane.switch.switch_profile import CodePoints, Profile
from emulator.errors import Misfit
from topologies.ethernet import PACKET_OVERHEAD_OCTETS
from topologies.model import Link, Topology
from topologies.units import format_size

#: What shares the queue that a pause stops.
LOSSLESS_CLASSES = ("data", "retransmission", "untrimmed")
DEFAULT_XOFF = Fraction(1, 2)
#: Between XOFF and XON, so that a port does not pause and resume for each frame.
HYSTERESIS_FRAMES = 2
#: The kernel counts octets of a queue in 32 bits, and its queue is twice the model's.
MOST_OCTETS = 2**31 - 1


class CableKind(NamedTuple):
    """All cables that are alike in this have the same thresholds."""

    rate_bps: int
    delay_ns: int
    mtu: int
    buffer_bytes: int


def kind_of(cable: Link) -> CableKind:
    return CableKind(cable.rate_bps, cable.delay_ns, cable.mtu, cable.buffer_bytes)


def priority_of(dscp: int) -> int:
    """Return what switches take for the priority of a code point.

    Its class selector (RFC 2474 4.2.2).
    """
    return dscp >> 3


def fit_pauses(
    choice: SwitchChoice,
    topology: Topology,
    cables: Iterable[Link],
    bdp_bytes: int,
    code_points: CodePoints,
) -> dict[CableKind, PauseRules]:
    """The rules by kind of cable; empty if ``choice`` has no PFC.  UserError if they cannot be."""
    if choice.pausing is None:
        return {}
    largest_mtu = max(link.mtu for link in topology.links)
    priority = choice.pausing.pfc_priority
    if priority is None:
        priority = priority_of(code_points.data)
    return {
        kind: _rules(choice, kind, bdp_bytes, priority, largest_mtu)
        for kind in sorted({kind_of(cable) for cable in cables})
    }


def _rules(
    choice: SwitchChoice, kind: CableKind, bdp_bytes: int, priority: int, mtu: int
) -> PauseRules:
    requested = choice.pausing
    assert requested is not None
    response = requested.pfc_response_ns
    needed = headroom_bytes(
        kind.rate_bps, kind.delay_ns, mtu, response_ns=response, pipeline_ns=choice.latency_ns
    )
    headroom = needed if requested.headroom is None else _octets(requested.headroom, bdp_bytes)
    frame = mtu + PACKET_OVERHEAD_OCTETS
    room = kind.buffer_bytes - headroom
    if requested.xoff is None:
        xoff = min(round(DEFAULT_XOFF * bdp_bytes), room)
    else:
        xoff = _octets(requested.xoff, bdp_bytes)
    if xoff < frame or xoff > room:
        raise Misfit(
            f"PFC needs xoff ({format_size(max(xoff, 0))}, at least a frame of {frame} octets) and "
            f"a headroom of {format_size(headroom)} in the port's buffer of "
            f"{format_size(kind.buffer_bytes)}: raise the topology's buffer, lower xoff, shorten "
            "the cables, or take pfc=off",
            *("xoff", "headroom", "buffer", "uplink_delay", "nic_delay", "pfc"),
        )
    if requested.xon is None:
        xon = max(0, xoff - HYSTERESIS_FRAMES * frame)
    else:
        xon = _octets(requested.xon, bdp_bytes)
    if xon > xoff:
        raise Misfit(
            f"xon of the switch is {format_size(xon)}, above xoff of {format_size(xoff)}: "
            "a port would let go on before it has asked to wait; lower it",
            *("xon", "xoff"),
        )
    return PauseRules(
        priority=priority,
        rate_bps=kind.rate_bps,
        xoff_bytes=xoff,
        xon_bytes=xon,
        headroom_bytes=headroom,
        needed_bytes=needed,
        reaction_ns=reaction_ns(kind.delay_ns, response_ns=response),
        watchdog_ns=requested.pfc_watchdog_ns,
        drops=requested.pfc_watchdog_action == "drop",
    )


def unlimited(
    rules: Profile, choice: SwitchChoice, topology: Topology, held: Mapping[CableKind, int]
) -> Profile:
    """Return ``rules`` with queues as deep as a switch's buffers, where the user sets no other.

    ``held`` are the octets that a port holds at most, by its kind of cable.

    Raises UserError if that is more than the kernel queues.
    """
    if not held:
        return rules
    most = 0
    for switch in topology.switches:
        cables = [link for link, _, _ in topology.neighbours(switch.name)]
        most = max(most, sum(held[kind_of(cable)] for cable in cables))
    if most > MOST_OCTETS:
        raise Misfit(
            f"the lossless buffers of one switch hold {format_size(most)} together, and the kernel "
            f"queues at most {format_size(MOST_OCTETS)}: lower xoff or cbfc_buffer",
            *("xoff", "headroom", "buffer", "pfc", "cbfc"),
        )
    limits = {
        name: replace(getattr(rules, name), limit_bytes=most)
        for name in LOSSLESS_CLASSES
        if choice.changes.get(f"{name}.limit_bytes") is None
    }
    return replace(rules, **limits)


def warnings(pauses: Mapping[CableKind, PauseRules]) -> tuple[str, ...]:
    """Sentences about headroom that is less than what may still arrive."""
    return tuple(
        f"the headroom of {format_size(pause.headroom_bytes)} is less than the "
        f"{format_size(pause.needed_bytes)} that may arrive on a cable of "
        f"{kind.rate_bps / 1e9:g} Gb/s and {kind.delay_ns} ns after a pause was asked for: "
        "lossless packets may be dropped"
        for kind, pause in pauses.items()
        if pause.headroom_bytes < pause.needed_bytes
    )


def _octets(depth: int | OfBdp, bdp_bytes: int) -> int:
    return depth if isinstance(depth, int) else depth.octets(bdp_bytes)
