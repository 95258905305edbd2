"""Two endpoints and a network that does what it likes, against a model that only counts.

Frames are held until a rule delivers, drops, doubles or replays them in any order; messages are
posted and PDCs closed at any time.  Each message is carried out once, each post ends in one
completion, and when all is over no PDC is left.
"""

import random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.harness.examples import examples
from tests.harness.uet.invariants import check, check_idle
from tests.harness.uet.network import Network, destination, endpoint, joined
from tests.harness.uet.script import HERE, KEY, START, THERE, Script, control, rod, write
from tests.harness.uet.stub import StubSemantics, guaranteed, watch
from uet.pds.pdc import PdcState
from uet.pds.semantics import LATER, NO_ROOM, Answer
from uet.transport import NoOperationRequest, ReadRequest, WriteRequest
from uet.wire.codes import ControlType, NackCode

MACHINE = examples(30, stateful_step_count=40, suppress_health_check=list(HealthCheck))
_HELD = 64


class Conversation(RuleBasedStateMachine):
    """PDCs between two endpoints: made, used, closed from either end, on a lawless network."""

    @initialize(
        seed=st.integers(0, 1 << 16),
        reorder=st.booleans(),
        mpr=st.sampled_from([1, 8]),
        resource_limit=st.sampled_from([2, 100]),
    )
    def begin(self, seed: int, reorder: bool, mpr: int, resource_limit: int) -> None:
        parameters: dict[str, Any] = {
            "payload_mtu": 1024, "mpr": mpr, "rod_reorder": reorder, "max_rto_retx_cnt": 15,
            "max_nack_retx_cnt": 31, "max_inbound_messages": resource_limit,
            "drop_network_duplicates": bool(seed & 1),
        }  # fmt: skip
        self.feps = {
            a: endpoint(a, seed=seed + k, **parameters) for k, a in enumerate((HERE, THERE))
        }
        self.memory = {a: bytearray(8_192) for a in self.feps}
        self.taken = {a: watch(fep) for a, fep in self.feps.items()}
        for address, fep in self.feps.items():
            fep.register(memoryview(self.memory[address]), key=KEY)
        self.now = 0
        self.flying: list[bytes] = []
        self.old: list[bytes] = []
        self.posted = dict.fromkeys(self.feps, 0)
        self.ended: dict[str, list[Any]] = {a: [] for a in self.feps}
        self.seen: dict[str, int] = dict.fromkeys(self.feps, 0)
        self.lawful = True

    def pump(self) -> None:
        for address, fep in self.feps.items():
            while frames := fep.transmit(self.now, 16):
                self.flying += [joined(frame) for frame in frames]
            for completion in fep.completions():
                if completion.kind == "remote_write":
                    self.seen[address] += 1
                else:
                    self.ended[address].append(completion)

    def give(self, frame: bytes) -> None:
        self.feps[destination(frame)].receive([memoryview(frame)], self.now)
        self.old = [*self.old, frame][-_HELD:]

    @staticmethod
    def other(address: str) -> str:
        return THERE if address == HERE else HERE

    # -- what applications do

    @rule(
        end=st.sampled_from([HERE, THERE]),
        kind=st.sampled_from(["write", "write", "read", "nothing"]),
        packets=st.integers(0, 4),
        ordered=st.booleans(),
    )
    def post(self, end: str, kind: str, packets: int, ordered: bool) -> None:
        fep, peer = self.feps[end], self.other(end)
        delivery = "rod" if ordered else "rud"
        octets = packets * 1_000
        if kind == "write":
            fep.post(
                WriteRequest(
                    peer=peer, key=KEY, offset=0, payload=memoryview(bytes(octets)),
                    delivery=delivery, header_data=1,
                )
            )  # fmt: skip
        elif kind == "read":
            mine = memoryview(bytearray(octets + 1))
            fep.post(ReadRequest(peer=peer, key=KEY, offset=0, memory=mine, delivery=delivery))
        else:
            fep.post(NoOperationRequest(peer=peer, delivery=delivery))
        self.posted[end] += 1
        self.pump()

    @rule(end=st.sampled_from([HERE, THERE]), ordered=st.booleans(), negotiate=st.booleans())
    def open(self, end: str, ordered: bool, negotiate: bool) -> None:
        self.feps[end].open_pdc(self.other(end), ordered=ordered, negotiate=negotiate)
        self.pump()

    @rule(end=st.sampled_from([HERE, THERE]))
    def close_all(self, end: str) -> None:
        """The initiator has enough of its PDCs, whatever is under way."""
        fep = self.feps[end]
        fep.table.quiesce()
        for pdc in list(fep.table.by_id.values()):
            if pdc.has_work():
                fep.activate(pdc)
        self.pump()

    @rule(end=st.sampled_from([HERE, THERE]))
    def ask_to_close(self, end: str) -> None:
        """A target wants its PDCs closed."""
        fep = self.feps[end]
        for pdc in list(fep.table.by_id.values()):
            if not pdc.initiator and not pdc.in_use and pdc.close_due is None:
                fep.control.append(pdc.ask_to_close(self.now))
                fep.activate(pdc)
                # If that gets lost, Close_REQ_Time may end a PDC that is being used.
                self.lawful = False
        self.pump()

    # -- what the network does

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), count=st.integers(1, 12))
    def deliver(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.flying))):
            index = data.draw(st.integers(0, min(len(self.flying), 6) - 1))
            self.give(self.flying.pop(index))
            self.pump()

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """A copy of something old turns up."""
        self.give(self.old[data.draw(st.integers(0, len(self.old) - 1))])
        self.pump()

    @precondition(lambda self: self.now < 5_000_000_000)  # timers double: leave time for the end
    @rule()
    def time_passes(self) -> None:
        deadlines = [d for f in self.feps.values() if (d := f.next_deadline()) is not None]
        if deadlines:
            self.now = max(self.now, min(deadlines))
            self.pump()

    @invariant()
    def is_consistent(self) -> None:
        if not hasattr(self, "feps"):
            return
        for address, fep in self.feps.items():
            check(fep, self.now)
            if any(pdc.close_due is not None for pdc in fep.table.by_id.values()):
                self.lawful = False  # for want of room; see ask_to_close
            taken = self.taken[address]
            assert len(set(taken)) == len(taken)
            for pdc in fep.table.by_id.values():
                if pdc.ordered and not pdc.initiator:
                    psns = [psn for number, psn in taken if number == pdc.id]
                    assert psns == sorted(psns)

    def teardown(self) -> None:
        """A good network from now on: all ends, and all is closed."""
        if not hasattr(self, "feps"):
            return
        network = Network(self.feps, random.Random(1), now=self.now)
        for frame in self.flying:
            network.carry(frame)
        horizon = self.now + 10**12  # after many timeouts the next one is far away
        network.run(lambda: False, horizon_ns=horizon)
        for fep in self.feps.values():
            fep.close()
        network.run(lambda: False, horizon_ns=horizon)
        for address in self.feps:
            for completion in network.completions[address]:
                if completion.kind == "remote_write":
                    self.seen[address] += 1
                else:
                    self.ended[address].append(completion)
        for address, fep in self.feps.items():
            assert len(self.ended[address]) == self.posted[address]
            assert fep.closed
            assert not [pdc for pdc in fep.table.by_id.values() if pdc.state is not PdcState.CLOSED]
            check_idle(fep)
            errors = [c.error for c in self.ended[address] if c.error is not None]
            if self.lawful:
                assert errors == []
            written = sum(c.kind == "write" and c.error is None for c in self.ended[address])
            failed = sum(c.kind == "write" and c.error is not None for c in self.ended[address])
            there = self.seen[self.other(address)]
            assert written <= there <= written + failed


Conversation.TestCase.settings = MACHINE
TestConversation = Conversation.TestCase


class OrderedWindow(RuleBasedStateMachine):
    """The destination of an ordered PDC with a buffer, against sets of integers.

    SES refuses, answers later, or wants its response kept, as it likes.
    """

    @initialize(start=st.sampled_from([START, 0xFFFF_FFF0, 0x7FFF_FFF8]), size=st.just(128))
    def begin(self, start: int, size: int) -> None:
        self.start, self.size = start, size
        self.script = Script(mpr=1, rod_reorder=True)
        self.semantics = StubSemantics(self.script)
        self.arrived: set[int] = set()  # held, or taken
        self.taken = 0  # how many SES has, in order
        self.kept: set[int] = set()  # guaranteed, not cleared
        self.busy: set[int] = set()
        self.refuse: set[int] = set()
        self.modes: dict[int, Answer] = {}
        self.send(0)

    def psn(self, n: int) -> int:
        return (self.start + n) & 0xFFFF_FFFF

    @property
    def cack(self) -> int:
        """How many from the first on are received and need no keeping."""
        n = 0
        while n < self.taken and n not in self.kept and n not in self.busy:
            n += 1
        return n

    def send(self, n: int, *, retx: int = 0) -> None:
        cleared = self.psn(-1)
        packet = rod(self.psn(n), syn=n, clear=cleared, ar=1, retx=retx) / write(b"x", message_id=1)
        packet.clear_psn_offset = -1 - min(n, 0x7FFE)
        seen = self.script.give(packet)
        fresh = n not in self.arrived
        before = self.taken
        if fresh and n < self.cack_before + self.size:
            self.arrived.add(n)
            while self.taken in self.arrived:
                if self.taken in self.refuse:
                    self.refuse.discard(self.taken)
                    self.arrived.discard(self.taken)
                    assert NackCode.NO_SES_MSG_AVAIL in [s.nack for s in seen]
                    break
                answer = self.modes.pop(self.taken, 0)
                if answer is LATER:
                    self.busy.add(self.taken)
                elif answer:
                    self.kept.add(self.taken)
                self.taken += 1
        answered = [s.ack_psn for s in seen if s.is_ack]
        if fresh:
            expected = [self.psn(k) for k in range(before, self.taken) if k not in self.busy]
            assert answered == expected
        self.compare()

    @property
    def cack_before(self) -> int:
        return self.cack

    @rule(ahead=st.integers(0, 5), mode=st.sampled_from(["plain", "plain", "keep", "later", "no"]))
    def new(self, ahead: int, mode: str) -> None:
        n = self.taken + ahead
        if n >= self.cack + self.size:
            return
        if n not in self.arrived and n not in self.modes:
            if mode == "no":
                self.refuse.add(n)
                self.semantics.answers[self.psn(n)] = NO_ROOM
            elif mode != "plain" and n not in self.refuse:
                answer = LATER if mode == "later" else guaranteed()
                self.modes[n] = answer
                self.semantics.answers[self.psn(n)] = answer
        self.send(n)

    @rule(back=st.integers(0, 10))
    def again(self, back: int) -> None:
        n = self.taken - 1 - back
        if n < 0 or n not in self.arrived:
            return
        packet = rod(self.psn(n), syn=n, ar=1, retx=1) / write(b"x", message_id=1)
        packet.clear_psn_offset = -1 - n
        (seen,) = self.script.give(packet)
        if n in self.busy:
            assert seen.nack is NackCode.RCVD_SES_PROCG
        else:
            assert seen.is_ack
            assert seen.req == int(n in self.kept)
        self.compare()

    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        """Up to something that has arrived, or beyond it, which nobody can know."""
        n = data.draw(st.integers(-1, self.taken + 3))
        own = self.script.pdc.id
        self.script.give(control(ControlType.CLEAR_CMD, 0, dpdcid=own, payload_word=self.psn(n)))
        if n < self.taken:
            end = min([n, *(k - 1 for k in self.busy)])
            self.kept = {k for k in self.kept if k > end}
        else:
            self.lenient(n)
        self.compare()

    def lenient(self, n: int) -> None:
        """Held ones count as received: a CLEAR that names one has no meaning before its turn."""
        window = self.script.pdc.destination.window
        stored = {(p - self.start) & 0xFFFF_FFFF for p in self.script.pdc.destination.stored}
        assert stored <= self.kept
        if self.busy:
            end = min(self.busy) - 1
            assert {k for k in self.kept if k > end} <= stored
        self.kept = stored
        assert window.first_missing == self.psn(self.taken)

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), keep=st.booleans())
    def respond(self, data: st.DataObject, keep: bool) -> None:
        n = data.draw(st.sampled_from(sorted(self.busy)))
        self.script.pdc.respond(self.psn(n), guaranteed() if keep else 0)
        self.busy.discard(n)
        if keep:
            self.kept.add(n)
        (seen,) = self.script.take()
        assert (seen.ack_psn, seen.req) == (self.psn(n), int(keep))
        self.compare()

    def compare(self) -> None:
        assert self.semantics.psns == [self.psn(n) for n in range(self.taken)]
        destination = self.script.pdc.destination
        assert destination.window.base == self.psn(self.cack)
        assert destination.window.first_missing == self.psn(self.taken)
        assert set(destination.stored) == {self.psn(n) for n in self.kept}
        assert set(destination.busy) == {self.psn(n) for n in self.busy}
        held = {n for n in self.arrived if n >= self.taken}
        assert set(destination.early) == {self.psn(n) for n in held}
        check(self.script.fep, self.script.now)


OrderedWindow.TestCase.settings = settings(MACHINE, max_examples=examples(40).max_examples)
TestOrderedWindow = OrderedWindow.TestCase
