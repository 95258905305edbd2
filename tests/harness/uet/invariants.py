"""Define what must hold of an endpoint at any time, and when nothing is left to do."""

from uet.fep import FabricEndpoint
from uet.pds.open_requests import RING
from uet.pds.pdc import PdcState
from uet.pds.window import MASK
from uet.wire.codes import BYTE_COUNT_UNIT


def check(fep: FabricEndpoint, now: int) -> None:
    """State is bounded and consistent; no timer lies in the past after :meth:`transmit`."""
    table, config = fep.table, fep.config
    assert len(table.by_id) <= config.max_pdcs
    for pdc in table.by_id.values():
        assert pdc.initiator or table.find_target(pdc.peer.key, pdc.peer_id) is pdc
    assert len(fep.target.inbound.messages) <= config.max_inbound_messages
    assert not fep.control
    flying: dict[bytes, int] = {peer.key: 0 for peer in fep.peers.values()}
    messages = 0
    for number, pdc in table.by_id.items():
        source, destination = pdc.source, pdc.destination
        assert pdc.id == number != 0
        assert pdc.state is not PdcState.CLOSED
        assert 0 <= source.window.outstanding <= RING
        assert source.window.done.bit_length() <= source.window.outstanding
        assert source.window.delivered.bit_length() <= source.window.outstanding
        assert len(source.retransmit.members) <= RING
        assert min(source.requests.size, default=0) >= 0
        assert destination.window.received.bit_length() <= destination.window.size
        assert destination.window.guaranteed & ~destination.window.received == 0
        assert len(destination.stored) + len(destination.busy) == (
            destination.window.guaranteed.bit_count()
        )
        assert destination.received_octets >= 0
        flow = source.flow
        assert flow.unsettled == sum(source.requests.size)
        # what the peer says it has received lies between what it has answered, and all of it
        assert -BYTE_COUNT_UNIT < flow.inflight <= flow.unsettled
        flying[pdc.peer.key] += flow.inflight
        if pdc.initiator:
            messages += len(source.open) + len(source.queue)
        if pdc.has_work():
            deadline = pdc.next_deadline()
            if pdc.source.credited and deadline is not None:
                # where others of its context have asked for credit meanwhile, it looks too early
                assert pdc.due is not None
                assert pdc.due <= deadline
            elif not pdc.source.credited:
                assert pdc.due == deadline
            if deadline is not None:
                assert deadline > now
                earliest = fep.scheduler.next_deadline()
                assert earliest is not None
                assert earliest <= deadline
    check_turns(fep)
    check_deadline(fep)
    for peer in fep.peers.values():
        if peer.congestion.window is not None:
            assert peer.congestion.inflight == flying[peer.key]
    assert len(fep.initiator.ids) >= messages
    assert len(fep.counts) < 100
    assert not fep.counts["internal_error"]


def check_turns(fep: FabricEndpoint) -> None:
    """Check that all in line have something to send, and that all that may send have done so."""
    turns, pdcs = fep.scheduler, list(fep.table.by_id.values())
    assert not turns.woken
    assert not turns.contexts
    live = {(at, pdc) for at, _, pdc in turns.timers if pdc.wakes_at == at}
    assert len(live) == sum(pdc.wakes_at is not None for pdc in pdcs)
    assert len(turns.timers) <= max(256, 3 * len(pdcs))
    for peer in fep.peers.values():
        line = peer.congestion.line
        assert not peer.congestion.offered
        assert [p for p in pdcs if p.queued and p.peer is peer] == sorted(line, key=pdcs.index)
        assert not line or peer.congestion.room() <= 0
    for pdc in pdcs:
        if pdc.source.has_unsent and not pdc.queued and pdc.condemned is None:
            assert not pdc.source.may_send, pdc.id


def check_deadline(fep: FabricEndpoint) -> None:
    """The endpoint names the earliest timer of all its parts, none of which it has asked."""
    named = fep.next_deadline()
    parts = (
        fep.scheduler,
        fep.initiator,
        fep.target,
        fep.connectionless,
        fep.secure,
        fep.credits,
    )
    due = [part.next_deadline() for part in parts]
    assert named == min((at for at in (*due, fep.retry_at) if at is not None), default=None)


def check_alive(fep: FabricEndpoint, now: int) -> None:
    """Every PDC with work has something to look forward to, once :meth:`transmit` is done.

    That is a deadline of its own, or an answer to another PDC of its congestion control context,
    whose window it waits for: then that one has octets in flight, or asks for credit, and has a
    deadline.
    """
    for pdc in fep.table.by_id.values():
        source = pdc.source
        if source.idle:
            continue
        window = source.window
        due = pdc.next_deadline()
        if pdc.condemned is not None:
            assert due is not None
            continue
        flying = [
            other
            for other in fep.table.by_id.values()
            if other.peer is pdc.peer and other.source.flow.unsettled > 0
        ]
        for other in flying:
            assert other.next_deadline() is not None, other.id
        if due is None:
            assert pdc.peer.congestion.room() <= 0, pdc.id
            others = [other for other in pdc.peer.congestion.line if other is not pdc]
            asks = [other.id for other in others if other.source.credited and other.due is not None]
            assert flying or asks, pdc.id
            assert pdc not in flying
        # Whatever was sent is in flight, waits to be sent again, is known to have arrived, or
        # came before its turn and follows the oldest.
        for ahead in range(window.outstanding):
            psn = (window.base + ahead) & MASK
            if not window.is_open(psn) or psn in source.retransmit or window.is_delivered(psn):
                continue
            if psn in source.recovery.behind:
                assert psn != window.base
                assert not source.requests.size[psn & source.requests.slot_mask]
            else:
                assert (
                    source.requests.size[psn & source.requests.slot_mask]
                    or psn in source.requests.controls
                ), psn
        if source.retransmit.head(now) == window.base and not source.credited:
            # Its time has come: only what else of it is in flight, or the peer's range, keeps it.
            assert source.flow.unsettled > 0 or source.requests.is_beyond_range(window.base)


def check_idle(fep: FabricEndpoint) -> None:
    """Nothing is in flight, open, waiting or timed."""
    for peer in fep.peers.values():
        assert peer.congestion.inflight == peer.congestion.backlog == 0
    assert not fep.initiator.open_messages
    assert not len(fep.initiator.ids)
    assert fep.next_deadline() is None
    for pdc in fep.table.by_id.values():
        assert not any(pdc.source.requests.size)
