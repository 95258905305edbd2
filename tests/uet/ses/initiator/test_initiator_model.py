"""Random requests, random answers: every request ends once, and nothing is left over."""

import random
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.harness.examples import examples
from tests.harness.uet.carriage import (
    ELSEWHERE,
    MTU,
    OPTIMIZED_KEY,
    THERE,
    Bench,
    FakePdc,
    data_in_ack,
    response,
    small_data,
)
from uet.pds.semantics import Response
from uet.ses.initiator.outbound import OutboundMessage
from uet.transport import (
    AtomicRequest,
    NoOperationRequest,
    ReadRequest,
    Request,
    SendRequest,
    WriteRequest,
)
from uet.wire import headers
from uet.wire.codes import AtomicOpcode, Datatype, NextHeader, ResponseList, ReturnCode

PEERS = (THERE, ELSEWHERE)
RELIABLE = ("rud", "rod")
REFUSALS = (
    ReturnCode.NO_MATCH,
    ReturnCode.DISABLED_GEN,
    ReturnCode.BAD_GENERATION,
    ReturnCode.BAD_ADDR,
)
octets = st.integers(0, 5 * MTU)
which = st.integers(0, 1 << 30)


class Initiator(RuleBasedStateMachine):
    """Plays PDS by its contract and the peer by none."""

    @initialize(optimized=st.booleans(), seed=st.integers(0, 1_000))
    def begin(self, optimized: bool, seed: int) -> None:
        self.bench = Bench(
            optimized_headers=optimized,
            seed=seed,
            eager_size=2_000,
            restart_time=1_000,
            max_restarts=2,
            deferred_time=50_000,
            inbound_message_idle_time=50_000,
        )
        self.posted = 0
        self.answered: dict[OutboundMessage, set[int]] = {}
        self.owed: list[tuple[FakePdc, int, bytes]] = []  # return data that may still come
        self.tokens: list[tuple[str, int]] = []
        self.keys: list[tuple[int, int, int]] = []

    # -- requests

    def _post(self, make: type[Request], **fields: Any) -> None:
        self.bench.post(make(context=self.posted, **fields))
        self.posted += 1

    @rule(peer=st.sampled_from(PEERS), delivery=st.sampled_from(RELIABLE), size=octets)
    def write(self, peer: str, delivery: str, size: int) -> None:
        self._post(
            WriteRequest, peer=peer, delivery=delivery, key=OPTIMIZED_KEY, offset=0,
            payload=memoryview(bytes(size)),
        )  # fmt: skip

    @rule(
        peer=st.sampled_from(PEERS),
        delivery=st.sampled_from((*RELIABLE, "rudi")),
        size=octets,
        key=st.sampled_from((5, OPTIMIZED_KEY)),
    )
    def read(self, peer: str, delivery: str, size: int, key: int) -> None:
        memory = memoryview(bytearray(size))
        self._post(ReadRequest, peer=peer, delivery=delivery, key=key, offset=0, memory=memory)

    @rule(
        peer=st.sampled_from(PEERS),
        delivery=st.sampled_from((*RELIABLE, "uud")),
        size=octets,
        protocol=st.sampled_from((None, "deferrable", "rendezvous")),
    )
    def send(self, peer: str, delivery: str, size: int, protocol: str | None) -> None:
        if delivery == "uud":
            size, protocol = min(size, MTU), None
        elif delivery == "rod" and protocol == "deferrable":
            delivery = "rud"
        self._post(
            SendRequest,
            peer=peer,
            delivery=delivery,
            payload=memoryview(bytes(size)),
            protocol=protocol,
        )

    @rule(peer=st.sampled_from(PEERS), delivery=st.sampled_from(RELIABLE))
    def fetch(self, peer: str, delivery: str) -> None:
        self._post(
            AtomicRequest, peer=peer, delivery=delivery, key=OPTIMIZED_KEY, offset=0,
            operation=AtomicOpcode.SUM, datatype=Datatype.UINT64, operand=bytes(8),
            result=memoryview(bytearray(8)),
        )  # fmt: skip

    @rule(peer=st.sampled_from(PEERS))
    def no_operation(self, peer: str) -> None:
        self._post(NoOperationRequest, peer=peer)

    # -- what PDS does

    @rule(count=st.integers(1, 8))
    def leave(self, count: int) -> None:
        """Packets of a message leave, one message after the other."""
        self._leave(count)

    def _leave(self, count: int) -> None:
        bench = self.bench
        if not bench.waiting:
            return
        message = bench.waiting[0]
        if not message.sent:
            message.psn = bench.psn
            bench.psn += message.packets
            self.answered[message] = set()
        message.sent = min(message.packets, message.sent + count)
        if message.sent == message.packets:
            bench.waiting.pop(0)
            if message.plan.delivery == "uud":
                del self.answered[message]
                bench.end(message)

    @rule(peer=st.sampled_from(PEERS), free=st.booleans())
    def pdcs_come_and_go(self, peer: str, free: bool) -> None:
        self.bench.free[peer] = free
        self.bench.initiator.start_waiting()

    @rule(pick=which)
    def pdc_dies(self, pick: int) -> None:
        bench = self.bench
        pdcs = [pdc for pdc in bench.pdcs.values() if pdc.delivery in RELIABLE]
        if not pdcs:
            return
        pdc = pdcs[pick % len(pdcs)]
        del bench.pdcs[pdc.address, pdc.delivery]
        for message in [m for m, carrier in bench.out.items() if carrier is pdc]:
            if message in bench.waiting:
                bench.waiting.remove(message)
            if message.sent:
                del self.answered[message]
                bench.end(message, error="PDC_DIED")
            else:
                del bench.out[message]
                bench.initiator.message_unsent(message)
        bench.initiator.pdc_closed(pdc)
        assert pdc.locks == 0

    # -- what the peer does

    def _pick(self, pick: int) -> tuple[OutboundMessage, int] | None:
        """A packet that was sent and has no answer yet."""
        open_packets = [
            (message, index)
            for message, done in self.answered.items()
            for index in range(message.sent)
            if index not in done
        ]
        return open_packets[pick % len(open_packets)] if open_packets else None

    def _done(self, message: OutboundMessage, index: int) -> None:
        done = self.answered[message]
        done.add(index)
        if len(done) == message.packets:
            del self.answered[message]
            if message in self.bench.waiting:  # cancelled before its last packet was due
                self.bench.waiting.remove(message)
            self._note(message)
            self.bench.end(message)

    def _note(self, message: OutboundMessage) -> None:
        operation: Any = message.operation
        if operation.token:
            self.tokens.append((message.plan.peer, operation.token))
        if operation.key is not None:
            self.keys.append((operation.key, message.plan.span, message.plan.length))

    @rule(pick=which)
    def default(self, pick: int) -> None:
        if chosen := self._pick(pick):
            self._serve(*chosen, in_ack=False)
            self._done(*chosen)

    def _serve(self, message: OutboundMessage, index: int, *, in_ack: bool) -> None:
        made = message.plan
        if made.memory is None or index >= message.requested:
            return
        offset = index * MTU
        data = bytes(min(MTU, made.memory.nbytes - offset))
        if not data:
            return
        if in_ack or made.delivery == "rudi":
            if made.has_id:
                answer = data_in_ack(message.id, data, offset)
            else:
                answer = Response(small_data(data), next_header=NextHeader.RESPONSE_DATA_SMALL)
            self.bench.answer(message, index, answer)
            return
        if made.has_id:
            packet = headers.SES_RESPONSE_DATA.encode(
                read_request_message_id=message.id, payload_length=len(data), message_offset=offset
            )
            kind = NextHeader.RESPONSE_DATA
        else:
            packet, kind = (
                small_data(b"", message.psn, payload_length=len(data)),
                (NextHeader.RESPONSE_DATA_SMALL),
            )
        self.owed.append((self.bench.out[message], kind, packet + data))

    @rule(pick=which)
    def data_within_ack(self, pick: int) -> None:
        if chosen := self._pick(pick):
            self._serve(*chosen, in_ack=True)
            self._done(*chosen)

    @rule(pick=which, code=st.sampled_from(REFUSALS), generation=st.integers(0, 255))
    def refuse(self, pick: int, code: int, generation: int) -> None:
        if chosen := self._pick(pick):
            self.bench.answer(*chosen, response(code, ri_generation=generation))
            self._done(*chosen)

    @rule(pick=which, size=octets, overflow=st.booleans())
    def accept_some(self, pick: int, size: int, overflow: bool) -> None:
        if chosen := self._pick(pick):
            where = ResponseList.OVERFLOW if overflow else ResponseList.EXPECTED
            self.bench.answer(*chosen, response(list=where, modified_length=size))
            self._done(*chosen)

    @rule(pick=which)
    def defer(self, pick: int) -> None:
        """Defer what can be deferred; the initiator may get a restart at any time."""
        sent = [m for m in self.answered if m.operation.token and len(self.answered[m]) < m.sent]  # type: ignore[attr-defined]
        if sent:
            message = sent[pick % len(sent)]
            index = min(set(range(message.sent)) - self.answered[message])
            self.bench.answer(message, index, response(list=ResponseList.OVERFLOW))
            self._note(message)
            self._done(message, index)

    @rule(pick=which, kind=st.sampled_from((4, 5, 6, 9)), noise=st.binary(max_size=40))
    def nonsense(self, pick: int, kind: int, noise: bytes) -> None:
        if chosen := self._pick(pick):
            chosen[0].answered(chosen[1], kind, memoryview(noise))
            self._done(*chosen)

    @rule(pick=which, keep=st.booleans())
    def data(self, pick: int, keep: bool) -> None:
        if self.owed:
            at = pick % len(self.owed)
            pdc, kind, packet = self.owed[at] if keep else self.owed.pop(at)
            self.bench.initiator.deliver_data(pdc, 1, kind, memoryview(packet), 0)

    @rule(pick=which, kind=st.sampled_from((5, 6)), noise=st.binary(max_size=40))
    def data_from_nowhere(self, pick: int, kind: int, noise: bytes) -> None:
        if pdcs := list(self.bench.pdcs.values()):
            pdc = pdcs[pick % len(pdcs)]
            self.bench.initiator.deliver_data(pdc, 1, kind, memoryview(noise), 0)

    @rule(pick=which, permission=st.integers(0, 3))
    def permit(self, pick: int, permission: int) -> None:
        if self.tokens:
            peer, token = self.tokens[pick % len(self.tokens)]
            self.bench.initiator.on_restart(peer, token, permission)

    @rule(pick=which, low=st.integers(0, 100), high=st.integers(0, 100))
    def read_rest(self, pick: int, low: int, high: int) -> None:
        if self.keys:
            key, start, end = self.keys[pick % len(self.keys)]
            first = start + (end - start) * low // 100
            self.bench.initiator.on_served(key, first, (end - first) * high // 100)

    @rule(ns=st.integers(0, 60_000))
    def time_passes(self, ns: int) -> None:
        self.bench.wait(self.bench.time.now + ns)

    # -- what must hold

    @invariant()
    def every_request_ends_once(self) -> None:
        bench = self.bench
        contexts = [completion.context for completion in bench.completions]
        assert len(set(contexts)) == len(contexts)
        assert len(contexts) + bench.initiator.open_messages == self.posted

    @invariant()
    def nothing_is_held_for_nobody(self) -> None:
        initiator = self.bench.initiator
        operations = list(initiator.operations.values())
        holders = [(o.plan, o.message) for o in operations if o.message is not None]
        assert len(initiator.ids) == sum(plan.has_id for plan, _ in holders)
        ids = [message.id for plan, message in holders if plan.has_id]
        assert len(set(ids)) == len(ids)
        for pdc in self.bench.pdcs.values():
            assert pdc.locks == sum(o.locked is pdc for o in operations)
        out = set(self.bench.out)
        assert out == {o.message for o in operations if o.is_out}

    def teardown(self) -> None:
        """The network is well again: all comes to an end."""
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        rng = random.Random(self.posted)
        for peer in PEERS:
            bench.free[peer] = True
        for _ in range(10_000):
            bench.initiator.start_waiting()
            if not bench.initiator.open_messages:
                break
            while bench.waiting:
                self._leave(5)
            while chosen := self._pick(rng.getrandbits(30)):
                self._serve(*chosen, in_ack=False)
                self._done(*chosen)
            while self.owed:
                pdc, kind, packet = self.owed.pop()
                bench.initiator.deliver_data(pdc, 1, kind, memoryview(packet), 0)
            due = bench.initiator.next_deadline()
            if due is not None and not bench.waiting:
                bench.wait(due)
        bench.assert_nothing_left()
        self.every_request_ends_once()
        assert len(bench.completions) == self.posted


TestInitiator = Initiator.TestCase
TestInitiator.settings = examples(
    60,
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
