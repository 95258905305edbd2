"""Our endpoint in the place of a captured initiator: it hears the captured target.

The capture does not tell when the initiator had read an answer, but its requests do: they carry
SYN until the first was read, and CLEAR_PSN says how far.  So an answer is given to ours as late
as the captured requests allow.
"""

from collections import deque
from dataclasses import dataclass, field

from tests.harness.replay.capture import INITIATOR, TARGET, Packet, decode, domain, packets
from tests.harness.replay.cases import CASES, Case
from tests.harness.replay.conversation import Canonical, Conversation
from tests.harness.replay.endpoints import endpoint, is_secured, requests
from tests.harness.replay.translation import Translator
from uet.pds.window import MASK, distance
from uet.transport import Completion
from uet.tss.record import SecureRecords
from uet.wire.codes import ControlType

REQUEST, CONTROL = "request", "control"


@dataclass
class Replay:
    """Hold what a replay brought about, beside what the capture has, by kind of packet."""

    expected: dict[str, list[Canonical]]
    sent: dict[str, list[Canonical]]
    returned: list[bytearray]
    completions: list[Completion] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    open_messages: int = 0
    is_closed: bool = False
    #: where the next secured PDC to the target must begin, from the first PSN of this one
    next_start: int | None = None


def stream(packet: Packet) -> str:
    """Requests and what takes their place keep an order, answers and CLEAR keep theirs."""
    if packet.is_request or packet.control in (ControlType.ACK_REQ, ControlType.CLOSE_CMD):
        return REQUEST
    return CONTROL


def as_sent(name: str) -> list[Packet]:
    """A capture before the network duplicated and reordered what the initiator had sent."""
    result: list[Packet] = []
    for packet in packets(name):
        if packet.side == INITIATOR and packet.is_request and "pds.psn" in packet.fields:
            if packet.octets in [there.octets for there in result]:
                continue
            if result and not packet.is_resend and result[-1].side == INITIATOR:
                before = result[-1].fields.get("pds.psn")
                if before is not None and distance(before, packet.fields["pds.psn"]) == 1:
                    result.insert(-1, packet)
                    continue
        result.append(packet)
    return result


class Player:
    """Plays the captured target, and compares."""

    def __init__(self, name: str) -> None:
        self.case: Case = CASES[name]
        self.fep = endpoint(name, INITIATOR)
        self.now = 0
        secure = domain(name)
        self.records = SecureRecords(secure) if secure is not None else None
        self.captured = Conversation(INITIATOR)
        self.live = Conversation(INITIATOR)
        sealing = self.records if is_secured(name, INITIATOR) else None
        self.translator = Translator(self.captured, self.live, sealing)
        self.waiting: deque[Packet] = deque()
        self.lost = set(self.case.lost)
        posted, returned = requests(name)
        self.result = Replay({REQUEST: [], CONTROL: []}, {REQUEST: [], CONTROL: []}, returned)
        for request in posted:
            self.fep.post(request)

    # -- our endpoint

    def take(self, limit: int) -> int:
        """Return what leaves now; how many frames it was."""
        count = 0
        for header, payload in self.fep.transmit(self.now, limit):
            packet = decode(bytes(header) + bytes(payload), self.records)
            form = self.live.canonical(packet)
            count += 1
            if packet.fields.get("ses.som") and "ses.initiator_restart_token" in packet.fields:
                token = packet.fields["ses.initiator_restart_token"]
                self.translator.tokens["initiator_restart_token"] = token
            if packet.is_request and not packet.is_resend and form.get("psn") in self.lost:
                self.lost.discard(form["psn"])
                continue
            self.result.sent[stream(packet)].append(form)
        self.result.completions.extend(self.fep.completions())
        return count

    def give(self) -> bool:
        """Give the oldest answer of the captured target to ours; whether there was one."""
        if not self.waiting:
            return False
        packet = self.waiting.popleft()
        frame = self.translator.translate(packet)
        self.live.canonical(decode(frame, self.records))
        self.fep.receive([memoryview(frame)], self.now)
        self.result.completions.extend(self.fep.completions())
        return True

    def advance(self) -> bool:
        """Let time pass until something is due."""
        deadline = self.fep.next_deadline()
        if deadline is None:
            return False
        self.now = max(self.now, deadline)
        return True

    # -- the captured conversation

    def has_read_enough(self, packet: Packet) -> bool:
        """Whether ours knows as much as the captured initiator did when ``packet`` left."""
        if packet.control == ControlType.CLOSE_CMD:
            return not self.waiting
        if "pds.clear_psn_offset" not in packet.fields:
            return True
        assert packet.pdc is not None
        if packet.pdc >= len(self.live.pdcs) or packet.is_resend:
            return True
        there = self.live.pdcs[packet.pdc]
        pdc = self.fep.table.by_id[there.ids[INITIATOR]]
        if packet.is_syn:
            renumbered = packet.start == self.captured.pdcs[packet.pdc].demanded
            if renumbered and pdc.start_psn != there.demanded:
                return False
        elif not pdc.peer_id:
            return False
        clear = distance(packet.decoded.derived["clear_psn"], packet.start)
        ours = distance((pdc.source.window.base - 1) & MASK, pdc.start_psn)
        return ours >= clear

    def expect(self, packet: Packet) -> None:
        """The captured initiator sent ``packet``: bring ours to where it sends as much."""
        kind = stream(packet)
        form = self.captured.canonical(packet)
        self.result.expected[kind].append(form)
        requested = len(self.result.expected[kind])
        if kind == REQUEST:
            while not self.has_read_enough(packet) and self.give():
                pass
            if packet.control == ControlType.CLOSE_CMD:
                self.fep.close()
        for _ in range(400):
            if len(self.result.sent[kind]) >= requested:
                return
            if kind == REQUEST and self.take(1):
                continue
            if kind == CONTROL and self.take(0):
                continue
            if not self.give() and not self.advance():
                return

    def play(self, name: str) -> Replay:
        for packet in as_sent(name):
            if packet.side == TARGET:
                self.captured.canonical(packet)
                self.waiting.append(packet)
            else:
                self.expect(packet)
        while self.give():
            self.take(0)
        self.take(64)
        self.result.counters = dict(self.fep.counters())
        self.result.open_messages = self.fep.initiator.open_messages
        (peer,) = self.fep.peers.values()
        reported = self.fep.secure.next_start(peer.key, self.fep.config.sdi)
        if reported is not None:
            self.result.next_start = distance(reported, self.live.pdcs[0].start)
        self.result.is_closed = self.fep.closed
        assert not self.lost
        return self.result


def replay(name: str) -> Replay:
    """Let our endpoint do what a captured initiator did."""
    return Player(name).play(name)
