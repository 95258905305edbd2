"""Link layer retry and credits fitted to the cables of a fabric: buffers in octets and cells.

A replay buffer has room for what leaves until the ACK of a frame is back.  That is the link's rate
over the cable both ways, the frame that the ACK waits for at the other end, and the ACK itself.
Two frames come on top: one whose ACK is due, and the next, which begins only if it fits whole.

A receive buffer has room for what leaves until the credits of a frame are back.  To the cable both
ways come the pipeline of the switch, and the time in which the frame leaves by another port.

Neither standard nor facts give the length of the ordered sets of LLR and CBFC.  Here each is one
block of 64B/66B coding (IEEE 802.3 clause 82), 8 octets of line time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from emulator.dataplane.switch.switch_choice import CbfcChoice, LlrChoice
from emulator.errors import Misfit
from topologies.ethernet import (
    FCS_OCTETS,
    FRAMING_OCTETS,
    PACKET_OVERHEAD_OCTETS,
    SHORTEST_OCTETS,
)
from topologies.model import Link
from topologies.units import format_size, format_time

#: An ordered set on the wire.
SET_OCTETS = 8
#: Frames of a replay buffer, and of a receive buffer, beside what cable and pipeline hold.
REPLAY_FRAMES, RECEIVE_FRAMES = 3, 4
_BITS_NS = 8 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class LlrRules:
    """Link layer retry at both ends of a cable.  Octets are those on the wire.

    ``needed_bytes`` are those of a replay buffer that never stops a link at full rate; ``replays``
    None: no limit.
    """

    buffer_bytes: int
    needed_bytes: int
    frames: int
    timer_ns: int
    replays: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CbfcRules:
    """Credits of the data class at both ends of a cable, in cells of the receiver's buffer."""

    cells: int
    needed_cells: int
    cell_bytes: int
    overhead_bytes: int
    timer_ns: int

    def cells_of(self, octets: int) -> int:
        """Return the cells of a frame that takes ``octets`` on the wire."""
        counted = octets - FRAMING_OCTETS + FCS_OCTETS + self.overhead_bytes
        return max(1, -(-counted // self.cell_bytes))

    @property
    def buffer_bytes(self) -> int:
        """The octets of the receiver's buffer."""
        return self.cells * self.cell_bytes


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
    return LlrRules(
        buffer_bytes=buffer,
        needed_bytes=needed,
        frames=choice.frames,
        timer_ns=choice.timer_ns,
        replays=choice.replays,
    )


def _cbfc(choice: CbfcChoice, cable: Link, pipeline_ns: int) -> CbfcRules:
    cell, overhead = choice.cell_bytes, choice.overhead_bytes
    frame = cable.mtu + PACKET_OVERHEAD_OCTETS
    travelling = _travelling(cable, 2 * cable.delay_ns + pipeline_ns) + SET_OCTETS
    unsized = CbfcRules(
        cells=0, needed_cells=0, cell_bytes=cell, overhead_bytes=overhead, timer_ns=choice.timer_ns
    )
    of_frame = unsized.cells_of(frame)
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
    return CbfcRules(
        cells=cells,
        needed_cells=needed,
        cell_bytes=cell,
        overhead_bytes=overhead,
        timer_ns=choice.timer_ns,
    )
