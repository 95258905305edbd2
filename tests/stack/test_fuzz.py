"""Hostile frames: whatever arrives is counted, and nothing else happens.

A conversation between two endpoints is recorded once.  Then one of them is played again from
the same seed, and between the recorded frames it gets mutations of them: flipped bits, edited
fields, cut and spliced frames, noise.  As identifiers and PSNs are those of the living PDCs, the
mutations get far.  Nothing may be raised, written outside the registered memory, or grow without
bound, timers must move on, and afterwards the endpoint serves its peers as before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from tests.stack.invariants import check, check_idle
from tests.stack.network import MACS, Impairment, Network, endpoint
from tests.stack.script import ELSEWHERE, HERE, KEY, MS, THERE
from uet.fep import FabricEndpoint
from uet.transport import Write
from uet.wire import headers
from uet.wire.codec import Header
from uet.wire.codes import PacketType

REGION, GUARD = 20_000, 1_000
READ_ONLY = KEY + 1
PARAMETERS = {"payload_mtu": 1024, "mpr": 1, "dscp_trimmed": 4, "dscp_trimmed_lasthop": 5}
UET = 42

_PDS: dict[int, tuple[Header, ...]] = {
    PacketType.RUD_REQ: (headers.RUD_REQ, headers.RUD_REQ_SYN),
    PacketType.ACK_CC: (headers.ACK_CC_NSCC,),
    PacketType.NACK: (headers.NACK,),
    PacketType.CP: (headers.CP, headers.CP_SYN),
}


@dataclass
class Step:
    """Something that happened to the recorded endpoint."""

    now: int
    frame: bytes | None = None
    write: Write | None = None


class Victim:
    """The endpoint that is played again, and the memory around what it has registered."""

    def __init__(self, seed: int) -> None:
        self.fep = endpoint(HERE, seed=seed, max_pdcs=20, max_inbound_messages=20, **PARAMETERS)
        self.all = bytearray(b"\xa5" * (2 * GUARD + REGION))
        self.secret = bytearray(b"\x5a" * 100)
        inside = memoryview(self.all)[GUARD : GUARD + REGION]
        self.fep.register(inside, key=KEY)
        self.fep.register(memoryview(self.secret), key=READ_ONLY, writable=False)
        self.posted = 0
        self.completed = 0

    def post(self, write: Write) -> None:
        self.fep.post(write)
        self.posted += 1

    def turn(self, frames: list[bytes], now: int) -> None:
        """What the event loop does."""
        self.fep.receive([memoryview(frame) for frame in frames], now)
        while self.fep.transmit(now, 64):
            pass
        self.completed += sum(c.kind == "write" for c in self.fep.completions())

    def verify(self, now: int) -> None:
        check(self.fep, now)
        assert self.all[:GUARD] == self.all[-GUARD:] == b"\xa5" * GUARD
        assert self.secret == b"\x5a" * 100


def record(seed: int) -> list[Step]:
    """Messages both ways over a bad network, refusals and closes among them."""
    rng = random.Random(seed)
    victim, peer = Victim(seed), endpoint(THERE, seed=seed + 1, **PARAMETERS)
    peer.register(memoryview(bytearray(REGION)), key=KEY)
    steps: list[Step] = []

    def tap(frame: bytes, now: int) -> list[bytes]:
        if rng.random() < 0.05 and len(frame) > 200:  # a trimming switch
            cut = bytearray(frame[:58])
            cut[15] = rng.choice((4, 5)) << 2
            cut[16:18] = (44).to_bytes(2, "big")
            frame = bytes(cut)
        return [frame]

    network = Network(
        {HERE: victim.fep, THERE: peer},
        random.Random(seed),
        Impairment(loss=0.1, duplicate=0.1, jitter_ns=20_000),
        tap=tap,
    )
    received = victim.fep.receive

    def note(frames: list[memoryview], now: int) -> None:
        steps.extend(Step(now, frame=bytes(frame)) for frame in frames)
        received(frames, now)

    victim.fep.receive = note  # type: ignore[method-assign,assignment]
    for _ in range(8):
        for fep, to in ((victim.fep, THERE), (peer, HERE)):
            for _ in range(rng.randrange(1, 5)):
                length = rng.choice((0, 10, 1_024, 5_000, 15_000))
                write = Write(
                    peer=to,
                    key=rng.choice((KEY, KEY, KEY, READ_ONLY, 99)),
                    offset=rng.choice((0, 5_000, REGION - length, REGION)),
                    payload=memoryview(bytes([rng.randrange(256)]) * length),
                    header_data=rng.choice((None, 1)),
                )
                fep.post(write)
                if fep is victim.fep:
                    steps.append(Step(network.now, write=write))
        # The next round begins while this one is still under way.
        end = network.now + rng.randrange(2 * MS)
        network.run(lambda end=end: network.now >= end)  # type: ignore[misc]
    network.settle()
    peer.close()
    network.settle()
    return steps


def fix_lengths(frame: bytearray) -> None:
    """Make IP and UDP lengths agree with the frame."""
    if len(frame) >= UET:
        frame[16:18] = (len(frame) - 14 & 0xFFFF).to_bytes(2, "big")
        frame[38:40] = (len(frame) - 34 & 0xFFFF).to_bytes(2, "big")


def edit_field(frame: bytearray, rng: random.Random) -> None:
    """Give a field of the PDS or SES header a value at an edge, near the old one, or any."""
    if len(frame) < UET + 1:
        return
    pds = rng.choice(_PDS.get(frame[UET] >> 3, (headers.RUD_REQ,)))
    ses = headers.SES_RESPONSE if pds is headers.ACK_CC_NSCC else headers.SES_STD_NOSOM
    header, at = (pds, UET) if rng.random() < 0.6 else (ses, UET + pds.size)
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
    kind = rng.random()
    if kind < 0.45:
        for _ in range(rng.randrange(1, 4)):
            edit_field(frame, rng)
    elif kind < 0.65:
        low = UET * 8 if rng.random() < 0.8 else 0
        for _ in range(rng.randrange(1, 9)):
            bit = rng.randrange(low, min(len(frame), UET + 60) * 8)
            frame[bit // 8] ^= 1 << bit % 8
    elif kind < 0.78:
        del frame[rng.randrange(len(frame)) :]
        if rng.random() < 0.8:
            fix_lengths(frame)
    elif kind < 0.88:
        other = rng.choice(corpus)
        cut = rng.randrange(UET, 110)
        frame[cut:] = other[cut if rng.random() < 0.5 else rng.randrange(len(other)) :]
        if rng.random() < 0.8:
            fix_lengths(frame)
    elif kind < 0.93:
        del frame[UET:]
        frame += rng.randbytes(rng.randrange(120))
        if len(frame) > UET and rng.random() < 0.8:
            frame[UET] = rng.choice((2, 7, 8, 9, 10, 11, 13)) << 3 | frame[UET] & 7
        fix_lengths(frame)
    elif kind < 0.95:
        frame = bytearray(rng.randbytes(rng.randrange(200)))
    elif kind < 0.97:
        frame += rng.randbytes(rng.randrange(50))
        fix_lengths(frame)
    if rng.random() < 0.05 and len(frame) > 16:
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
        if step.write is not None:
            victim.post(step.write)
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
    feps = {HERE: fep}
    memory = {}
    for number, peer in enumerate((THERE, ELSEWHERE)):
        feps[peer] = endpoint(peer, seed=seed + 1000 + number, **PARAMETERS)
        memory[peer] = bytearray(REGION)
        feps[peer].register(memoryview(memory[peer]), key=KEY)
    network = Network(feps, random.Random(seed), now=now + 1)
    network.settle()
    victim.completed += sum(c.kind == "write" for c in network.completions[HERE])
    assert victim.completed == victim.posted
    check_idle(fep)
    # To the victim the second peer has restarted, which may cost a message on an old PDC.
    fep.post(Write(peer=THERE, key=KEY, offset=0, payload=memoryview(b"x")))
    network.settle()
    for peer in (ELSEWHERE, THERE):
        network.completions = {address: [] for address in feps}
        data = random.Random(seed).randbytes(9_000)
        for source, target in ((HERE, peer), (peer, HERE)):
            feps[source].post(
                Write(peer=target, key=KEY, offset=50, payload=memoryview(data), header_data=5)
            )
        network.settle()
        for address in (HERE, peer):
            kinds = {c.kind: c.error for c in network.completions[address]}
            assert kinds == {"write": None, "remote_write": None}, (address, peer)
        assert memory[peer][50 : 50 + 9_000] == data
        assert victim.all[GUARD + 50 : GUARD + 50 + 9_000] == data
        check(fep, network.now)
    check_idle(fep)


def test_the_recording_is_varied() -> None:
    """All packet types, and the rarer exchanges, are in what is mutated."""
    types: set[int] = set()
    controls: set[int] = set()
    for seed in range(12):
        for step in record(seed):
            if step.frame is not None:
                types.add(step.frame[UET] >> 3)
                if step.frame[UET] >> 3 == PacketType.CP:
                    controls.add((step.frame[UET] << 8 | step.frame[UET + 1]) >> 7 & 15)
    assert types >= {PacketType.RUD_REQ, PacketType.ACK_CC, PacketType.NACK, PacketType.CP}
    assert controls >= {1, 2, 4}


@pytest.mark.parametrize("block", range(4))
def test_hostile_frames(block: int) -> None:
    """About 50 000 of them."""
    reasons: set[str] = set()
    for seed in range(block * 8, block * 8 + 8):
        victim = play(seed, 1_560, verify_every=200)
        reasons |= set(victim.fep.counts)
    assert sum(name.startswith("rx_drop") for name in reasons) >= 10


@pytest.mark.slow
def test_a_million_hostile_frames() -> None:
    for seed in range(1_000, 1_250):
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
    assert len(victim.fep.target._inbound.messages) == 20
    victim.verify(20_000)


def frame_of(uet: bytes) -> bytes:
    """A frame from THERE to HERE around a UET packet."""

    def mac(text: str) -> bytes:
        return bytes.fromhex(text.replace(":", ""))

    length = len(uet)
    return (
        headers.ETHERNET.encode(dst=mac(MACS[HERE]), src=mac(MACS[THERE]), type=0x0800)
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
    feps[HERE].post(Write(peer=THERE, key=KEY, offset=0, payload=memoryview(data)))
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
    for name in ("_active", "peers", "table", "target", "initiator", "control"):
        assert hasattr(fep, name)
