"""Pauses, retry and credits fitted to the cables of a fabric: buffers in octets and cells, checked.

**PFC.**  A port's buffer (the topology's ``buffer``) is its share of the chip's memory.  What came
in by the port and still waits in the switch fills it: up to XOFF the other end may send, and what
arrives before the pause takes effect needs the headroom, so both must fit.  As all that waits
anywhere in a switch is in one of those buffers, its egress queues need no limit of their own.
By default XOFF is half a bandwidth-delay product: above where marking begins (0.2), so that
congestion control acts first, and low enough for windows of one product to reach it.

**Headroom.**  Until the other end has stopped, this keeps arriving at a port that requests a pause:

* the link's rate for as long as the request travels and its effect comes back (the cable twice),
  the two interfaces that the request passes, and the other end's response to it;
* what was in this switch's pipeline, where no buffer counts it yet;
* a frame that stands in front of the request at this end, the request itself, and a frame that the
  other end had begun.

That is the sum of IEEE 802.1Q annex on buffer requirements for PFC, and the pipeline.  The two
device delays are the upper bounds that the standards allow, in bit times by link rate (IEEE 802.3
31B.3.7 and annex 31B). Vendors' design guides quote them; a rate between two rows has the *time* of
the row below it. No silicon gets slower with the port that it is built for.

**Link layer retry.**  A replay buffer has room for what leaves until the ACK of a frame is back.
That is the link's rate over the cable both ways, the frame that the ACK waits for at the other end,
and the ACK itself.  Two frames come on top: one whose ACK is due, and the next, which begins only
if it fits whole.

**Credits.**  A receive buffer has room for what leaves until the credits of a frame are back.  To
the cable both ways come the pipeline of the switch, and the time in which the frame leaves by
another port.

Neither standard nor facts give the length of the ordered sets of LLR and CBFC.  Here each is one
block of 64B/66B coding (IEEE 802.3 clause 82), 8 octets of line time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from emulator.dataplane.switch.bpf.layout import ALPHA_SHIFT
from emulator.dataplane.switch.parameters import (
    DEEPEST,
    LOSSLESS_CLASSES,
    XOFF,
    CbfcChoice,
    LlrChoice,
    in_octets,
)
from emulator.dataplane.switch.pause import WIRE_OCTETS, PauseRules
from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.dataplane.switch.switch_profile import CodePoints, Profile
from emulator.errors import Misfit
from topologies.ethernet import PACKET_OVERHEAD_OCTETS, SHORTEST_OCTETS
from topologies.model import Link, Topology
from topologies.units import format_size, format_time

_G = 10**9
#: link rate (bit/s) -> bit times
RESPONSE = (
    (10 * _G, 30_720),
    (25 * _G, 40_960),
    (40 * _G, 60_416),
    (100 * _G, 201_728),
    (400 * _G, 463_360),
)
INTERFACE = ((10 * _G, 8_192), (40 * _G, 24_576), (100 * _G, 122_880))


def device_ns(rate_bps: int) -> int:
    """The most that interfaces and the response of the other end may take: ns."""
    return round(_time_ns(RESPONSE, rate_bps) + 2 * _time_ns(INTERFACE, rate_bps))


def headroom_bytes(
    rate_bps: int,
    delay_ns: int,
    mtu: int,
    *,
    lossless_mtu: int | None = None,
    response_ns: int = 0,
    pipeline_ns: int = 0,
) -> int:
    """Octets on the wire that arrive after a pause was requested, at most.

    ``delay_ns`` is the cable's, one way; ``mtu`` the largest IP packet of any class,
    ``lossless_mtu`` of the lossless one if that is less.  Devices take what the standards allow, or
    ``response_ns`` if that is more.  ``pipeline_ns`` is the switch's latency before admission.
    """
    duration = 2 * delay_ns + max(device_ns(rate_bps), response_ns) + pipeline_ns
    travelling = -(-rate_bps * duration // (8 * 10**9))
    ahead = mtu + PACKET_OVERHEAD_OCTETS
    begun = (mtu if lossless_mtu is None else lossless_mtu) + PACKET_OVERHEAD_OCTETS
    return travelling + ahead + WIRE_OCTETS + begun


def reaction_ns(delay_ns: int, *, response_ns: int = 0) -> int:
    """Return the time from sending a pause until no frame arrives any more in the emulator (ns).

    The cable twice, and ``response_ns`` for the devices.  The request itself goes ahead of all
    frames here: the time of the one that it would have had to wait for is what the emulator may be
    late by (:func:`allowance_ns`).
    """
    return 2 * delay_ns + response_ns


def allowance_ns(rate_bps: int, mtu: int) -> int:
    """Return how late (ns) a pause may take effect here while the computed headroom suffices."""
    return (mtu + PACKET_OVERHEAD_OCTETS) * 8 * 10**9 // rate_bps


def _time_ns(bounds: tuple[tuple[int, int], ...], rate_bps: int) -> float:
    known = [row for row in bounds if row[0] <= rate_bps] or [bounds[0]]
    rate, bit_times = known[-1]
    return bit_times * 1e9 / rate


#: Between XOFF and XON, so that a port does not pause and resume for each frame.
HYSTERESIS_FRAMES = 2


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
    xoff, xon, headroom = (
        in_octets(depth, bdp_bytes) for depth in (requested.xoff, requested.xon, requested.headroom)
    )
    if headroom is None:
        headroom = needed
    frame = mtu + PACKET_OVERHEAD_OCTETS
    room = kind.buffer_bytes - headroom
    pooled = 0  # of what is free in a pool
    offset = in_octets(requested.xon_offset, bdp_bytes)
    if choice.pool is not None and xoff is None:
        pooled = round((requested.pfc_alpha or 1) * (1 << ALPHA_SHIFT))
        xoff = choice.pool.reserved_bytes
        xon = xoff - (HYSTERESIS_FRAMES * frame if offset is None else offset)
    elif xoff is None:
        xoff = min(XOFF.octets(bdp_bytes), room)
    if not pooled and (xoff < frame or (choice.pool is None and xoff > room)):
        raise Misfit(
            f"PFC needs xoff ({format_size(max(xoff, 0))}, at least a frame of {frame} octets) and "
            f"a headroom of {format_size(headroom)} in the port's buffer of "
            f"{format_size(kind.buffer_bytes)}: raise the topology's buffer, lower xoff, shorten "
            "the cables, or take pfc=off",
            *("xoff", "headroom", "buffer", "uplink_delay", "nic_delay", "pfc"),
        )
    if xon is None:
        xon = max(0, xoff - (HYSTERESIS_FRAMES * frame if offset is None else offset))
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
        alpha=pooled,
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
    if most > DEEPEST:
        raise Misfit(
            f"the lossless buffers of one switch hold {format_size(most)} together, and the kernel "
            f"queues at most {format_size(DEEPEST)}: lower xoff or cbfc_buffer",
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


#: An ordered set on the wire.
SET_OCTETS = 8
#: Frames of a replay buffer, and of a receive buffer, beside what cable and pipeline hold.
REPLAY_FRAMES, RECEIVE_FRAMES = 3, 4
_BITS_NS = 8 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class LlrRules(LlrChoice):
    """Link layer retry at both ends of a cable.  Octets are those on the wire.

    ``needed_bytes`` are those of a replay buffer that never stops a link at full rate.
    """

    buffer_bytes: int
    needed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CbfcRules(CbfcChoice):
    """Credits of the data class at both ends of a cable, in cells of the receiver's buffer."""

    buffer_bytes: int
    cells: int
    needed_cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRules:
    """The link layer at both ends of a cable; None: it has none of that.

    ``longest_bytes`` is the longest frame of the cable on the wire.
    """

    llr: LlrRules | None
    cbfc: CbfcRules | None
    longest_bytes: int


def fit_link(
    llr: LlrChoice | None, cbfc: CbfcChoice | None, cable: Link, pipeline_ns: int
) -> LinkRules:
    """Return the rules of ``cable``.  Raises UserError for what it cannot do."""
    return LinkRules(
        llr=None if llr is None else _llr(llr, cable),
        cbfc=None if cbfc is None else _cbfc(cbfc, cable, pipeline_ns),
        longest_bytes=cable.mtu + PACKET_OVERHEAD_OCTETS,
    )


def link_warnings(rules: Iterable[LinkRules]) -> tuple[str, ...]:
    """Return sentences about buffers that stop their link at full rate."""
    found: dict[str, None] = {}
    for one in rules:
        llr, cbfc = one.llr, one.cbfc
        if llr is not None and llr.buffer_bytes < llr.needed_bytes:
            found[
                f"the replay buffer of {format_size(llr.buffer_bytes)} is less than the "
                f"{format_size(llr.needed_bytes)} that leave until an ACK is back: the link stops "
                "for ACKs"
            ] = None
        if cbfc is not None and cbfc.cells < cbfc.needed_cells:
            found[
                f"the receive buffer of {format_size(cbfc.buffer_bytes)} is less than the "
                f"{format_size(cbfc.needed_cells * cbfc.cell_bytes)} that leave until credits are "
                "back: the link stops for credits"
            ] = None
    return tuple(found)


def most_octets_of_cell(rules: CbfcRules) -> int:
    """Return the most octets on the wire that come with a cell: those of the shortest frames."""
    return SHORTEST_OCTETS + rules.cell_bytes


def _travelling(cable: Link, duration_ns: float) -> int:
    """Octets that leave by ``cable`` within ``duration_ns``, rounded up."""
    return -(-round(cable.rate_bps * duration_ns) // _BITS_NS)


def _llr(choice: LlrChoice, cable: Link) -> LlrRules:
    frame = cable.mtu + PACKET_OVERHEAD_OCTETS
    needed = _travelling(cable, 2 * cable.delay_ns) + SET_OCTETS + REPLAY_FRAMES * frame
    buffer = needed if choice.buffer_bytes is None else choice.buffer_bytes
    if buffer < frame:
        raise Misfit(
            f"llr_buffer of the switch is {format_size(buffer)}, and a frame of the MTU takes "
            f"{frame} octets: nothing could ever be sent; raise it",
            *("llr_buffer", "mtu"),
        )
    loop_ns = -(-needed * _BITS_NS // cable.rate_bps)
    if choice.timer_ns < loop_ns:
        raise Misfit(
            f"llr_timer of the switch is {format_time(choice.timer_ns)}, and an ACK can take "
            f"{format_time(loop_ns)} on a cable of {format_time(round(cable.delay_ns))}: frames "
            "would be replayed that are on their way; raise it",
            *("llr_timer", "uplink_delay", "nic_delay"),
        )
    return LlrRules(**asdict(choice) | {"buffer_bytes": buffer, "needed_bytes": needed})


def _cbfc(choice: CbfcChoice, cable: Link, pipeline_ns: int) -> CbfcRules:
    cell = choice.cell_bytes
    frame = cable.mtu + PACKET_OVERHEAD_OCTETS
    travelling = _travelling(cable, 2 * cable.delay_ns + pipeline_ns) + SET_OCTETS
    of_frame = choice.cells_of(frame)
    needed = -(-travelling * of_frame // frame) + RECEIVE_FRAMES * of_frame
    cells = needed if choice.buffer_bytes is None else choice.buffer_bytes // cell
    if cells < of_frame:
        raise Misfit(
            f"cbfc_buffer of the switch is {format_size(cells * cell)}, and a frame of the MTU "
            f"takes {of_frame} cells of {cell} octets: nothing could ever be sent; raise it",
            *("cbfc_buffer", "mtu"),
        )
    if cells * cell > cable.buffer_bytes:
        raise Misfit(
            f"the credits of a port stand for {format_size(cells * cell)}, and its buffer has "
            f"{format_size(cable.buffer_bytes)}: raise the topology's buffer, shorten the cables, "
            "or lower cbfc_buffer",
            *("cbfc_buffer", "buffer", "uplink_delay", "nic_delay"),
        )
    sized = {"buffer_bytes": cells * cell, "cells": cells, "needed_cells": needed}
    return CbfcRules(**asdict(choice) | sized)
