"""Two whole endpoints, a bad wire, and everything that one can ask of the other.

An :class:`Exchange` is the pair and its network.  The functions of
:mod:`tests.harness.uet.operations` post requests and say what must be true in the end;
:meth:`Exchange.prove` runs until that is so and looks for anything lost, done twice, or left.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.harness.uet.invariants import check, check_idle
from tests.harness.uet.network import Impairment, Network, endpoint
from uet.pds.pdc import PdcState
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE, OPTIMIZED
from uet.transport import Completion, ReceiveRequest, Request
from uet.tss.secure_domain import SecureDomain

US, MS = 1_000, 1_000_000
MTU: Final = 1_024
SDI: Final = 5
KEY = OPTIMIZED | IDEMPOTENT_SAFE | 0x123
REGION: Final = 1 << 20
TRIMMED, LASTHOP = 4, 5  # DSCP
#: What an exchange may take of fabric time.  Half of it is for messages that are given up late.
_HORIZON: Final = 120_000 * MS
#: Of messages: none, one packet, a full one, and more.
LENGTHS: Final = (0, 1, 700, MTU, MTU + 1, 9_000)
ENDS: Final = {
    "ipv4": ("10.0.1.1", "10.0.1.2"),
    "ipv6": ("fd00::1", "fd00::2"),
}


# -- wires ---------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Wire(Impairment):
    """Hold what happens to frames; ``trimming`` is the probability of a data packet to be cut."""

    trimming: float = 0.0

    @property
    def loses_nothing(self) -> bool:
        return not (self.loss or self.corrupt or self.trimming)


WIRES: Final = {
    "perfect": Wire(),
    "loss": Wire(loss=0.05),
    "duplicates": Wire(duplicate=0.1, jitter_ns=500),
    "reordering": Wire(jitter_ns=20 * US),
    "corruption": Wire(corrupt=0.05),
    "trimming": Wire(trimming=0.2),
    "all": Wire(loss=0.04, duplicate=0.05, corrupt=0.03, jitter_ns=20 * US, trimming=0.1),
    # where nothing tells that octets have changed
    "all_but_corruption": Wire(loss=0.05, duplicate=0.1, jitter_ns=20 * US, trimming=0.1),
}


def trimmed(frame: bytes, dscp: int, *, least: int = 24) -> bytes:
    """Return what a switch leaves of a frame: ``least`` octets of IP payload, UDP length as it was.

    DSCP and IP length are rewritten, the IPv4 checksum is made right again (UES 4.1).
    """
    if frame[12:14] == b"\x86\xdd":
        cut = bytearray(frame[: 14 + 40 + least])
        octet = (frame[14] << 8 | frame[15]) >> 4 & 3 | dscp << 2
        cut[14:16] = (frame[14] & 0xF0) | octet >> 4, (octet << 4 & 0xF0) | frame[15] & 0xF
        cut[18:20] = (len(cut) - 14 - 40).to_bytes(2, "big")
        return bytes(cut)
    cut = bytearray(frame[: 14 + 20 + least])
    cut[15] = dscp << 2 | frame[15] & 3
    cut[16:18] = (len(cut) - 14).to_bytes(2, "big")
    cut[24:26] = bytes(2)
    total = sum(int.from_bytes(cut[at : at + 2], "big") for at in range(14, 34, 2))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    cut[24:26] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(cut)


def dscp_of(frame: bytes) -> int:
    """The code point of a frame without tags."""
    if frame[12:14] == b"\x86\xdd":
        return (frame[14] << 8 | frame[15]) >> 6 & 0x3F
    return frame[15] >> 2


class Switch:
    """Cuts packets of the data class down, some of them at the last hop."""

    def __init__(self, rng: random.Random, probability: float, *, least: int) -> None:
        self.cut = 0
        self._rng = rng
        self._probability = probability
        self._least = least

    def __call__(self, frame: bytes, now: int) -> list[bytes]:
        if dscp_of(frame) or len(frame) <= 54 + self._least:
            return [frame]
        if self._rng.random() >= self._probability:
            return [frame]
        self.cut += 1
        return [trimmed(frame, self._rng.choice((TRIMMED, LASTHOP)), least=self._least)]


# -- what protects packets -------------------------------------------------------------------------


def secured(**fields: Any) -> dict[str, Any]:
    """Parameters of an endpoint that has one secure domain and uses it.

    However many packets do not authenticate, it goes on.
    """
    fields["failure_threshold"] = 0
    return {"domains": (SecureDomain(sdi=SDI, keys={0: bytes(range(32))}, **fields),), "sdi": SDI}


#: Parameters by name; both ends of an exchange have them.
PROTECTIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "crc": {"crc": True},
    "tss_direct": secured(mode="direct"),
    "tss_cluster": secured(mode="cluster", rekey_mask=0xFF00, rekey_shift=8),
}


def identified(ssi: int, parameters: dict[str, Any]) -> dict[str, Any]:
    """With a source identifier: in direct mode IPv6 has no other that fits."""
    domains = parameters.get("domains", ())
    return parameters | {
        "domains": tuple(replace(d, ssi=ssi) if d.mode == "direct" else d for d in domains)
    }


# -- the exchange ----------------------------------------------------------------------------------


class Side:
    """One endpoint, its registered memory, and what its application expects to be told."""

    def __init__(self, address: str, peer: str, seed: int, parameters: dict[str, Any]) -> None:
        self.address = address
        self.peer = peer
        self.fep = endpoint(address, seed=seed, **parameters)
        self.region = bytearray(REGION)
        self.fep.register(memoryview(self.region), key=KEY)
        self.expected: Counter[object] = Counter()
        #: receives that a datagram may come for
        self.hoped: set[object] = set()
        #: header data of writes that this side must be told of
        self.announced: list[tuple[int, int, int]] = []
        self.free = 0
        self.completions: list[Completion] = []

    def room(self, octets: int) -> int:
        """The offset of a part of the region that nobody else uses, aligned for atomics."""
        at = self.free
        self.free += (octets + 7) // 8 * 8 + 8
        assert self.free <= REGION
        return at

    def of(self, context: object) -> list[Completion]:
        return [c for c in self.completions if c.context == context]


def begin_at(side: Side, start_psn: Callable[[], int]) -> None:
    """Let PDCs that ``side`` initiates begin at PSNs of the test's choice, if none is expected."""
    secure, expected = side.fep.secure, side.fep.secure.next_start

    def next_start(peer_key: bytes, sdi: int | None) -> int:
        known = expected(peer_key, sdi)
        return start_psn() if known is None else known

    secure.next_start = next_start  # type: ignore[method-assign]


class Exchange:
    """Two endpoints with ``both`` parameters, and those that only ``first`` or ``second`` has."""

    def __init__(
        self,
        wire: Wire,
        seed: int,
        *,
        ip: str = "ipv4",
        first: dict[str, Any] | None = None,
        second: dict[str, Any] | None = None,
        start_psn: int | None = None,
        **both: Any,
    ) -> None:
        self.rng = random.Random(seed)
        parameters: dict[str, Any] = {
            "payload_mtu": MTU,
            "eager_size": 2_500,
            "restart_time": MS,
            "max_restarts": 10,
            "max_rto_retx_cnt": 12,
            "max_nack_retx_cnt": 31,
            "dscp_trimmed": TRIMMED,
            "dscp_trimmed_lasthop": LASTHOP,
            **both,
        }
        a, b = ENDS[ip]
        self.sides = (
            Side(a, b, 2 * seed + 1, identified(1, parameters | (first or {}))),
            Side(b, a, 2 * seed + 2, identified(2, parameters | (second or {}))),
        )
        for side in self.sides:
            if start_psn is not None:
                begin_at(side, lambda: start_psn)
        self.network = Network(
            {side.address: side.fep for side in self.sides},
            random.Random(seed),
            wire,
            delay_ns=5 * US,
        )
        self.switch = Switch(
            random.Random(seed + 1), wire.trimming, least=64 if "sdi" in parameters else 24
        )
        self.network.tap = self.switch
        self.is_lossless = wire.loses_nothing
        self.checks: list[Callable[[], None]] = []
        #: what applications do once everything posted before has had some time
        self.later: list[Callable[[], object]] = []
        self._number = 0

    # -- what operations ask for

    def data(self, length: int) -> bytes:
        return self.rng.randbytes(length)

    def context(self, label: str) -> str:
        self._number += 1
        return f"{label} #{self._number}"

    @property
    def tag(self) -> int:
        """One that no message has had, with eight bits below it that may be ignored."""
        self._number += 1
        return self._number << 8

    def post(self, side: Side, make: Callable[..., Request], **fields: Any) -> str:
        """Post a request; it must complete without an error, once."""
        context = self.context(f"{side.address} {make.__name__}")
        side.expected[context] += 1
        side.fep.post(make(peer=side.peer, context=context, **fields))
        return context

    def receive(self, side: Side, octets: int, messages: int = 1, **fields: Any) -> Posted:
        """Post a receive that ``messages`` messages must come for, or (0) one may."""
        context = self.context(f"{side.address} Receive")
        memory = bytearray(octets)
        if messages:
            side.expected[context] += messages
        else:
            side.hoped.add(context)
        side.fep.post_receive(ReceiveRequest(memory=memoryview(memory), context=context, **fields))
        return Posted(side, context, memory)

    # -- the proof

    def run(self) -> None:
        """Until nothing is left to happen, the applications' later doings included."""
        network = self.network
        while self.later:
            network.run(lambda: False, horizon_ns=network.now + 3 * MS)
            for act in self.later[: len(self.later)]:
                act()
            self.later.clear()
        assert network.run(self._complete, horizon_ns=network.now + _HORIZON), self.story()
        network.run(lambda: False, horizon_ns=network.now + _HORIZON)
        for side in self.sides:
            check(side.fep, network.now)

    def _complete(self) -> bool:
        done = self.network.completions
        return all(
            len(done[side.address]) >= side.expected.total() + len(side.announced)
            for side in self.sides
        )

    def prove(self, *, close: bool = True) -> None:
        """Run, then look at what has come of it."""
        self.run()
        for side in self.sides:
            side.completions = self.network.completions[side.address]
            failed = [c for c in side.completions if c.error is not None]
            assert not failed, (failed, self.story())
            seen = Counter(
                c.context
                for c in side.completions
                if c.kind != "remote_write" and c.context not in side.hoped
            )
            assert seen == side.expected, (seen - side.expected, side.expected - seen, self.story())
            reported = [
                (c.header_data, c.offset, c.length)
                for c in side.completions
                if c.kind == "remote_write"
            ]
            assert sorted(map(str, reported)) == sorted(map(str, side.announced))
        for holds in self.checks:
            holds()
        for side in self.sides:
            check_nothing_is_left(side)
            if self.is_lossless:  # a CLEAR that is lost comes with the next request
                assert not any(p.destination.stored for p in side.fep.table.by_id.values())
        if close:
            self.close()

    def close(self) -> None:
        """Both ends close in order, and no PDC is left on either."""
        network = self.network
        pdcs = [pdc for side in self.sides for pdc in side.fep.table.by_id.values()]
        for side in self.sides:
            side.fep.close()
        assert network.run(
            lambda: all(side.fep.closed and not side.fep.table.by_id for side in self.sides),
            horizon_ns=network.now + _HORIZON,
        ), self.story()
        assert {pdc.state for pdc in pdcs} <= {PdcState.CLOSED}
        for side in self.sides:
            assert not side.fep.counters()["pdcs_open"]
            assert not side.fep.counters().get("pdc_errors"), self.story()
        network.run(lambda: False, horizon_ns=network.now + _HORIZON)
        for side in self.sides:
            assert not side.fep.table.by_id, "a late packet has made a PDC"
            assert side.fep.next_deadline() is None

    def story(self) -> list[object]:
        """For the message of a failed assertion."""
        return [
            (
                side.address,
                {name: count for name, count in side.fep.counters().items() if count},
                self._missing(side),
            )
            for side in self.sides
        ]

    def _missing(self, side: Side) -> object:
        seen = Counter(c.context for c in self.network.completions[side.address])
        return {"missing": dict(side.expected - seen), "too many": dict(seen - side.expected)}


@dataclass(frozen=True)
class Posted:
    """A posted receive."""

    side: Side
    context: str
    memory: bytearray

    @property
    def completion(self) -> Completion:
        (completion,) = self.side.of(self.context)
        return completion

    @property
    def message(self) -> bytes:
        """Return what it has received."""
        completion = self.completion
        at = completion.offset or 0
        return bytes(self.memory[at : at + completion.length])


def check_nothing_is_left(side: Side) -> None:
    """Ids, locks, keys, tokens, messages half received: all given back."""
    fep = side.fep
    check_idle(fep)
    assert not fep.initiator.waiting
    assert not len(fep.initiator.peer_handles)
    assert not len(fep.initiator.replies)
    assert set(fep.memory.regions) == {KEY}
    assert not fep.target.inbound.messages
    left = fep.target.inbound.refused
    # Where the limit has pushed some out, others lack what was known of them, until their PDC ends.
    assert not left or len(left) == fep.config.max_inbound_messages, {
        key: (r.code, r.expected, r.seen, r.begun, r.identity) for key, r in left.items()
    }
    assert not fep.target.sends.kept
    assert not fep.target.sends.kept_octets
    assert not len(fep.target.sends.deferrals)
    assert fep.connectionless.idle
    for pdc in fep.table.by_id.values():
        assert not pdc.locks
        assert not pdc.in_use
        assert not pdc.destination.busy
        assert not pdc.source.open
        assert not pdc.source.queue
