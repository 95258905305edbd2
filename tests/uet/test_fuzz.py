"""Hostile frames: whatever arrives is counted, and nothing else happens.

A conversation between two endpoints is recorded once.  Then one of them is played again from
the same seed, and between the recorded frames it gets mutations of them: flipped bits, edited
fields, cut and spliced frames, noise.  As identifiers and PSNs are those of the living PDCs, the
mutations get far.  Nothing may be raised, written outside the registered memory, or grow without
bound, timers must move on, and afterwards the endpoint serves its peers as before.
"""

import random
from dataclasses import dataclass
from typing import Any, cast

import pytest

from tests.harness.nightly import nightly_beyond
from tests.harness.uet.invariants import check, check_idle
from tests.harness.uet.network import MACS, Impairment, Network, endpoint
from tests.harness.uet.script import ELSEWHERE, HERE, KEY, MS, THERE
from uet.congestion.control_registry import CONTROLS
from uet.congestion.spraying.policies import SPRAYING
from uet.fep import FabricEndpoint
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE
from uet.transport import (
    AtomicRequest,
    ReadRequest,
    ReceiveRequest,
    Request,
    SendRequest,
    WriteRequest,
)
from uet.wire import headers
from uet.wire.codec import Header
from uet.wire.codes import AtomicOpcode, Datatype, NextHeader, Opcode, PacketType

REGION, GUARD = 20_000, 1_000
READ_ONLY, SAFE = KEY + 1, KEY | IDEMPOTENT_SAFE
_COMMON = {"payload_mtu": 1024, "mpr": 1, "dscp_trimmed": 4, "dscp_trimmed_lasthop": 5}


def parameters(seed: int) -> dict[str, Any]:
    """Return parameters of all endpoints of a conversation; each control has its turn."""
    return {
        **_COMMON,
        "cc": list(CONTROLS)[seed % len(CONTROLS)],
        "spraying": SPRAYING.names()[seed // 4 % len(SPRAYING)],
    }


UET, UET6 = 42, 62
PEERS, PEERS6 = (HERE, THERE, ELSEWHERE), ("fd00::1", "fd00::2", "fd00::3")
_OWN = frozenset({"write", "read", "send", "atomic", "datagram"})

_PDS: dict[int, tuple[Header, ...]] = {
    PacketType.RUD_REQ: (headers.RUD_REQ, headers.RUD_REQ_SYN),
    PacketType.ROD_REQ: (headers.ROD_REQ, headers.ROD_REQ_SYN),
    PacketType.RUD_CC_REQ: (headers.RUD_REQ, headers.RUD_REQ_SYN),
    PacketType.ROD_CC_REQ: (headers.ROD_REQ, headers.ROD_REQ_SYN),
    PacketType.RUDI_REQ: (headers.RUDI_REQ,),
    PacketType.RUDI_RESP: (headers.RUDI_RESP,),
    PacketType.UUD_REQ: (headers.UUD_REQ,),
    PacketType.ACK_CC: (headers.ACK_CC_NSCC,),
    PacketType.NACK: (headers.NACK,),
    PacketType.CP: (headers.CP, headers.CP_SYN),
}
_SES: dict[int, tuple[Header, ...]] = {
    NextHeader.REQUEST_STD: (headers.SES_STD_SOM, headers.SES_STD_NOSOM),
    NextHeader.RESPONSE: (headers.SES_RESPONSE,),
    NextHeader.RESPONSE_DATA: (headers.SES_RESPONSE_DATA,),
}


def peers(seed: int) -> tuple[str, str, str]:
    """Addresses of the endpoint under test and of two others: one conversation in four is IPv6."""
    return PEERS6 if seed % 4 == 3 else PEERS


def uet_at(frame: bytes | bytearray) -> int:
    """Return where the UET part of a recorded frame begins."""
    return UET6 if frame[12:14] == b"\x86\xdd" else UET


@dataclass
class Step:
    """Something that happened to the recorded endpoint."""

    now: int
    frame: bytes | None = None
    request: Request | None = None


class Noting:
    """An endpoint that notes in ``steps`` what it receives (a compiled one takes no method)."""

    def __init__(self, fep: FabricEndpoint, steps: list[Step]) -> None:
        self._fep, self._steps = fep, steps

    def receive(self, frames: list[memoryview], now: int) -> None:
        self._steps.extend(Step(now, frame=bytes(frame)) for frame in frames)
        self._fep.receive(frames, now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fep, name)


class Victim:
    """The endpoint that is played again, and the memory around what it has registered."""

    def __init__(self, seed: int) -> None:
        self.fep = endpoint(
            peers(seed)[0],
            seed=seed,
            max_pdcs=20,
            max_inbound_messages=20,
            rod_reorder=seed % 2 == 1,
            **parameters(seed),
        )
        self.all = bytearray(b"\xa5" * (2 * GUARD + REGION))
        self.secret = bytearray(b"\x5a" * 100)
        inside = memoryview(self.all)[GUARD : GUARD + REGION]
        self.fep.register(inside, key=KEY)
        self.fep.register(inside, key=SAFE)
        self.fep.register(memoryview(self.secret), key=READ_ONLY, writable=False)
        # Receives for the sends, apart from each other.
        self.inbox = bytearray(b"\xa5" * 40 * 2_000)
        for k in range(40):
            self.fep.post_receive(
                ReceiveRequest(memory=memoryview(self.inbox)[k * 2_000 :][:1_500])
            )
        self.posted = 0
        self.completed = 0

    def post(self, request: Request) -> None:
        self.fep.post(request)
        self.posted += 1

    def turn(self, frames: list[bytes], now: int) -> None:
        """Do one turn as the event loop does."""
        self.fep.receive([memoryview(frame) for frame in frames], now)
        while self.fep.transmit(now, 64):
            pass
        self.completed += sum(c.kind in _OWN for c in self.fep.completions())

    def verify(self, now: int) -> None:
        check(self.fep, now)
        assert self.all[:GUARD] == self.all[-GUARD:] == b"\xa5" * GUARD
        assert self.secret == b"\x5a" * 100
        for k in range(40):
            assert self.inbox[k * 2_000 + 1_500 : (k + 1) * 2_000] == b"\xa5" * 500


def request(to: str, rng: random.Random) -> Request:
    """A write most of the time, else something else; some of them must be refused."""
    kind = rng.random()
    length = rng.choice((0, 10, 1_024, 5_000, 15_000))
    offset = rng.choice((0, 5_000, REGION - length, REGION))
    data = memoryview(bytes([rng.randrange(256)]) * length)
    key = rng.choice((KEY, KEY, KEY, READ_ONLY, 99))
    mode = rng.choice(("rud", "rud", "rod"))
    if kind < 0.4:
        return WriteRequest(
            peer=to, key=key, offset=offset, payload=data, header_data=rng.choice((None, 1)),
            delivery=mode,
        )  # fmt: skip
    if kind < 0.5:
        return WriteRequest(peer=to, key=SAFE, offset=offset, payload=data, delivery="rudi")
    if kind < 0.7:
        mine = memoryview(bytearray(max(1, length)))
        if rng.random() < 0.3:
            return ReadRequest(peer=to, key=SAFE, offset=offset, memory=mine, delivery="rudi")
        return ReadRequest(peer=to, key=key, offset=offset, memory=mine, delivery=mode)
    if kind < 0.8:
        return SendRequest(peer=to, payload=data[:1_024], delivery="uud")
    if kind < 0.9:
        return SendRequest(peer=to, payload=data[: rng.choice((10, 1_400, 3_000))], delivery=mode)
    return AtomicRequest(
        peer=to, key=key, offset=offset & ~7, operation=AtomicOpcode.SUM,
        datatype=Datatype.UINT64, operand=bytes(7) + b"\1", delivery=mode,
        result=memoryview(bytearray(8)) if rng.random() < 0.5 else None,
    )  # fmt: skip


def trim(frame: bytes, dscp: int) -> bytes:
    """Trim it as a switch does: 24 octets of IP payload, and the UDP length it had."""
    cut = bytearray(frame[: uet_at(frame) + 16])
    if uet_at(cut) == UET:
        cut[15] = dscp << 2
        cut[16:18] = (44).to_bytes(2, "big")
    else:
        cut[14:16] = (6 << 12 | dscp << 6).to_bytes(2, "big")
        cut[18:20] = (24).to_bytes(2, "big")
    return bytes(cut)


def record(seed: int) -> list[Step]:
    """Messages both ways over a bad network, refusals and closes among them."""
    rng = random.Random(seed)
    here, there, _ = peers(seed)
    victim, peer = Victim(seed), endpoint(there, seed=seed + 1, **parameters(seed))
    region = memoryview(bytearray(REGION))
    peer.register(region, key=KEY)
    peer.register(region, key=SAFE)
    for _ in range(20):
        peer.post_receive(ReceiveRequest(memory=memoryview(bytearray(1_500))))
    steps: list[Step] = []

    def tap(frame: bytes, now: int) -> list[bytes]:
        if rng.random() < 0.05 and len(frame) > 200:
            frame = trim(frame, rng.choice((4, 5)))
        return [frame]

    network = Network(
        {here: cast(FabricEndpoint, Noting(victim.fep, steps)), there: peer},
        random.Random(seed),
        Impairment(loss=0.1, duplicate=0.1, jitter_ns=20_000),
        tap=tap,
    )
    for _ in range(8):
        for fep, to in ((victim.fep, there), (peer, here)):
            for _ in range(rng.randrange(1, 5)):
                posted = request(to, rng)
                fep.post(posted)
                if fep is victim.fep:
                    steps.append(Step(network.now, request=posted))
        # The next round begins while this one is still under way.
        end = network.now + rng.randrange(2 * MS)
        network.run(lambda end=end: network.now >= end)  # type: ignore[misc]
    network.settle()
    peer.close()
    network.settle()
    return steps


def fix_lengths(frame: bytearray) -> None:
    """Make IP and UDP lengths agree with the frame."""
    if frame[12:14] == b"\x86\xdd":
        if len(frame) >= UET6:
            frame[18:20] = frame[58:60] = (len(frame) - 54 & 0xFFFF).to_bytes(2, "big")
    elif len(frame) >= UET:
        frame[16:18] = (len(frame) - 14 & 0xFFFF).to_bytes(2, "big")
        frame[38:40] = (len(frame) - 34 & 0xFFFF).to_bytes(2, "big")


def edit_field(frame: bytearray, rng: random.Random) -> None:
    """Give a field of the PDS or SES header a value at an edge, near the old one, or any."""
    uet = uet_at(frame)
    if len(frame) < uet + 2:
        return
    pds = rng.choice(_PDS.get(frame[uet] >> 3, (headers.RUD_REQ,)))
    next_header = (frame[uet] << 8 | frame[uet + 1]) >> 7 & 15
    ses = rng.choice(_SES.get(next_header, (headers.SES_STD_NOSOM,)))
    header, at = (pds, uet) if rng.random() < 0.6 else (ses, uet + pds.size)
    if rng.random() < 0.05:
        header, at = headers.SES_ATOMIC, uet + pds.size + ses.size
    field = header.fields[rng.randrange(len(header.fields))]
    begin = at * 8 + field.offset
    end = begin + field.width
    if end > len(frame) * 8 or field.octets:
        return
    first, last = begin // 8, -(-end // 8)
    word = int.from_bytes(frame[first:last], "big")
    shift = last * 8 - end
    mask = (1 << field.width) - 1
    old = word >> shift & mask
    kind = rng.randrange(6)
    if kind == 0:
        value = 0
    elif kind == 1:
        value = mask
    elif kind == 2:
        value = 1 << field.width - 1
    elif kind == 3:
        value = old + rng.choice((-2, -1, 1, 2, 63, 64, 127, 128, 129, -127, -128, -129, 1024))
    else:
        value = rng.getrandbits(field.width)
    word = word & ~(mask << shift) | (value & mask) << shift
    frame[first:last] = word.to_bytes(last - first, "big")


def mutate(corpus: list[bytes], rng: random.Random) -> bytes:
    """A hostile frame made of recorded ones."""
    frame = bytearray(rng.choice(corpus))
    uet = uet_at(frame)
    kind = rng.random()
    if kind < 0.45:
        for _ in range(rng.randrange(1, 4)):
            edit_field(frame, rng)
    elif kind < 0.65:
        low = uet * 8 if rng.random() < 0.8 else 0
        for _ in range(rng.randrange(1, 9)):
            bit = rng.randrange(low, min(len(frame), uet + 60) * 8)
            frame[bit // 8] ^= 1 << bit % 8
    elif kind < 0.78:
        del frame[rng.randrange(len(frame)) :]
        if rng.random() < 0.8:
            fix_lengths(frame)
    elif kind < 0.88:
        other = rng.choice(corpus)
        cut = rng.randrange(uet, uet + 68)
        frame[cut:] = other[cut if rng.random() < 0.5 else rng.randrange(len(other)) :]
        if rng.random() < 0.8:
            fix_lengths(frame)
    elif kind < 0.93:
        del frame[uet:]
        frame += rng.randbytes(rng.randrange(120))
        if len(frame) > uet and rng.random() < 0.8:
            frame[uet] = rng.randrange(2, 16) << 3 | frame[uet] & 7
        fix_lengths(frame)
    elif kind < 0.95:
        frame = bytearray(rng.randbytes(rng.randrange(200)))
    elif kind < 0.97:
        frame += rng.randbytes(rng.randrange(50))
        fix_lengths(frame)
    if rng.random() < 0.05 and len(frame) > 16 and uet == UET:
        frame[15] = rng.choice((4, 5)) << 2  # a switch that trims
    return bytes(frame)


def play(seed: int, frames: int, verify_every: int) -> Victim:
    """Replay a conversation with ``frames`` hostile frames strewn in."""
    steps = record(seed)
    rng = random.Random(~seed)
    victim = Victim(seed)
    corpus = [step.frame for step in steps if step.frame is not None]
    # Some conversations are left alone until their PDCs stand: who lies at once is soon ignored.
    calm = rng.choice((0, 5, 20, 50))
    share = frames // max(1, len(steps) - calm)
    done = 0
    now = 0
    for number, step in enumerate(steps):
        now = max(now, step.now)
        count = 0 if number < calm else share
        if number + 1 == len(steps):
            count = frames - done
        # Mostly of what arrives around now, so that PSNs are those of the window.
        near = corpus[max(0, number - 15) : number + 15] or corpus
        for _ in range(0, count, 8):
            batch = [
                mutate(near if rng.random() < 0.7 else corpus, rng) for _ in range(min(8, count))
            ]
            victim.turn(batch, now)
            done += len(batch)
            if done % verify_every < 8:
                victim.verify(now)
        if step.request is not None:
            victim.post(step.request)
            victim.turn([], now)
        else:
            assert step.frame is not None
            victim.turn([step.frame], now)
    victim.verify(now)
    serve(victim, now, seed)
    return victim


def serve(victim: Victim, now: int, seed: int) -> None:
    """After all that: its own messages end, and fresh peers are served both ways."""
    fep = victim.fep
    here, *others = peers(seed)
    feps = {here: fep}
    memory = {}
    for number, peer in enumerate(others):
        feps[peer] = endpoint(peer, seed=seed + 1000 + number, **parameters(seed))
        memory[peer] = bytearray(REGION)
        feps[peer].register(memoryview(memory[peer]), key=KEY)
    network = Network(feps, random.Random(seed), now=now + 1)
    network.settle()
    victim.completed += sum(c.kind in _OWN for c in network.completions[here])
    assert victim.completed == victim.posted
    check_idle(fep)
    # An ordered send that found no receive has disabled the resource until there is one.
    for each in feps.values():
        each.post_receive(ReceiveRequest(memory=memoryview(bytearray(10))))
    # To the victim its peer has restarted, which may cost a message on each old PDC.
    there, elsewhere = others
    for delivery in ("rud", "rod"):
        fep.post(
            WriteRequest(peer=there, key=KEY, offset=0, payload=memoryview(b"x"), delivery=delivery)
        )
    network.settle()
    for peer in (elsewhere, there):
        for delivery in ("rud", "rod"):
            network.completions = {address: [] for address in feps}
            data = random.Random(seed).randbytes(9_000)
            for source, target in ((here, peer), (peer, here)):
                feps[source].post(
                    WriteRequest(
                        peer=target, key=KEY, offset=50, payload=memoryview(data), header_data=5,
                        delivery=delivery,
                    )
                )  # fmt: skip
            network.settle()
            for address in (here, peer):
                kinds = {c.kind: c.error for c in network.completions[address]}
                assert kinds == {"write": None, "remote_write": None}, (address, peer)
            assert memory[peer][50 : 50 + 9_000] == data
            assert victim.all[GUARD + 50 : GUARD + 50 + 9_000] == data
            check(fep, network.now)
    check_idle(fep)


def test_the_recording_is_varied() -> None:
    """All packet types, operations and the rarer exchanges are in what is mutated."""
    types: set[int] = set()
    controls: set[int] = set()
    opcodes: set[int] = set()
    returned: set[int] = set()
    versions: set[int] = set()
    for seed in range(12):
        for step in record(seed):
            if step.frame is None:
                continue
            at = uet_at(step.frame)
            versions.add(at)
            kind, number = step.frame[at] >> 3, (step.frame[at] << 8 | step.frame[at + 1]) >> 7 & 15
            types.add(kind)
            if kind == PacketType.CP:
                controls.add(number)
            elif number == NextHeader.REQUEST_STD and len(step.frame) > at + 12:
                opcodes.add(step.frame[at + _PDS[kind][0].size] & 0x3F)
            elif number == NextHeader.RESPONSE_DATA:
                returned.add(kind)
    assert types >= set(_PDS)
    assert controls >= {1, 2, 4}
    assert opcodes >= {
        Opcode.WRITE, Opcode.READ, Opcode.SEND, Opcode.DATAGRAM_SEND, Opcode.ATOMIC,
        Opcode.FETCHING_ATOMIC,
    }  # fmt: skip
    assert returned >= {
        PacketType.RUD_REQ, PacketType.ROD_REQ, PacketType.ACK_CC, PacketType.RUDI_RESP
    }  # fmt: skip
    assert versions == {UET, UET6}


@pytest.mark.parametrize("block", nightly_beyond(2, range(4)))
def test_hostile_frames(block: int) -> None:
    """About 50 000 of them."""
    reasons: set[str] = set()
    for seed in range(block * 8, block * 8 + 8):
        victim = play(seed, 1_560, verify_every=200)
        reasons |= set(victim.fep.counts)
    assert sum(name.startswith("rx_drop") for name in reasons) >= 10


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(10))
def test_a_million_hostile_frames(block: int) -> None:
    for seed in range(1_000 + 25 * block, 1_025 + 25 * block):
        play(seed, 4_000, verify_every=500)


def test_a_flood_of_syn_packets() -> None:
    """The pool is taken, and no more; then it is taken back from those that do not talk."""
    victim = Victim(1)
    fep = victim.fep
    for k in range(5_000):
        packet = headers.RUD_REQ_SYN.encode(
            type=2, next_hdr=3, syn=1, clear_psn_offset=-1, psn=70_000 + k, spdcid=k + 1
        )
        ses = headers.SES_STD_SOM.encode(opcode=1, rel=1, som=1, eom=0, request_length=500)
        victim.turn([frame_of(packet + ses + bytes(100))], k * 10)
        if k % 100 == 0:
            victim.verify(k * 10)
    assert len(fep.table.by_id) == 20
    serve(victim, 5_000 * 10, 1)


def test_a_flood_of_tiny_parts() -> None:
    """Messages are never finished: their number is limited, as are the gaps in each."""
    victim = Victim(1)
    opening = headers.RUD_REQ_SYN.encode(
        type=2, next_hdr=3, syn=1, ar=1, clear_psn_offset=-1, psn=70_000, spdcid=1
    )
    for k in range(20_000):
        ses = headers.SES_STD_NOSOM.encode(
            opcode=1, rel=1, som=0, eom=0, message_id=1 + k % 30, job_id=1, resource_index=15,
            match_bits=KEY, request_length=REGION, message_offset=2 * (k // 30), payload_length=1,
        )  # fmt: skip
        if not k:
            victim.turn([frame_of(opening + ses + b"x")], 0)
            (pdc,) = victim.fep.table.by_id.values()
            continue
        clear = pdc.destination.window.cack
        packet = headers.RUD_REQ.encode(
            type=2, next_hdr=3, clear_psn_offset=-1, psn=clear + 1, spdcid=1, dpdcid=pdc.id
        )
        victim.turn([frame_of(packet + ses + b"x")], k)
    assert len(victim.fep.target.inbound.messages) == 20
    victim.verify(20_000)


def frame_of(uet: bytes) -> bytes:
    """A frame from THERE to HERE around a UET packet."""

    dst, src = (bytes.fromhex(MACS[end].replace(":", "")) for end in (HERE, THERE))
    length = len(uet)
    return (
        headers.ETHERNET.encode(dst=dst, src=src, type=0x0800)
        + headers.IPV4.encode(
            len=length + 28, proto=17, ttl=64, src=bytes([10, 0, 1, 2]), dst=bytes([10, 0, 1, 1])
        )
        + headers.UDP_HEADER.encode(sport=50_000, dport=4793, len=length + 8, chksum=0)
        + uet
    )


def test_hostile_frames_with_a_crc() -> None:
    """With the CRC in use a mutation that got through would be a collision."""
    rng = random.Random(3)
    feps = {a: endpoint(a, seed=k, crc=True, payload_mtu=1024) for k, a in enumerate((HERE, THERE))}
    network = Network(feps, random.Random(1), keep=True)
    memory = bytearray(REGION)
    feps[THERE].register(memoryview(memory), key=KEY)
    data = rng.randbytes(9_000)
    feps[HERE].post(WriteRequest(peer=THERE, key=KEY, offset=0, payload=memoryview(data)))
    network.settle()
    corpus = [frame for frame in network.sent if frame[30:34] == bytes([10, 0, 1, 2])]
    before = dict(feps[THERE].counters())
    for _ in range(5_000):
        frame = mutate(corpus, rng)
        if frame[26:] != b"" and frame not in corpus:
            feps[THERE].receive([memoryview(frame)], 5 * MS)
    feps[THERE].transmit(5 * MS, 64)
    assert memory[:9_000] == data
    assert feps[THERE].counters()["rx_messages"] == before["rx_messages"]
    assert feps[THERE].counters()["rx_drop_bad_crc"] > 1_000


def test_fabric_endpoint_has_no_other_attributes() -> None:
    """The checks above look into these; a rename must not turn them off."""
    fep = Victim(0).fep
    assert isinstance(fep, FabricEndpoint)
    for name in ("scheduler", "peers", "table", "target", "initiator", "control"):
        assert hasattr(fep, name)
