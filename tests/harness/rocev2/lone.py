"""One endpoint, and a test that plays its peer packet by packet."""

from dataclasses import dataclass
from typing import Any

from emulator.rocev2.hca import HostChannelAdapter
from emulator.rocev2.wire import headers
from emulator.rocev2.wire.codes import EXTENSIONS, Extension, flow_label, source_port
from emulator.rocev2.wire.packets import ACK_REQUEST, Frames, PacketDecapsulator, encapsulation
from tests.harness.rocev2.ends import FIRST_PSN, HERE, THERE, adapter, qpn
from tests.harness.uet.network import MACS, joined
from uet.carrier_codec import PeerEnvelope
from uet.transport import Completion

PSN_MASK = 0xFF_FFFF


@dataclass
class Packet:
    """Hold what a frame holds; ``fields`` are those of all its extension headers by name."""

    opcode: int
    psn: int
    ackreq: int
    dqpn: int
    fields: dict[str, int]
    payload: bytes
    bth: dict[str, int]
    source_port: int
    tos: int
    frame: bytes

    @property
    def syndrome(self) -> int:
        return self.fields["syndrome"]


def read(frame: bytes) -> Packet:
    """An IPv4 frame that the endpoint made, its ICRC checked as a receiver would."""
    opener = PacketDecapsulator(
        encapsulation(".".join(map(str, frame[30:34])), ":".join(f"{o:02x}" for o in frame[:6]))
    )
    flow = opener.open(memoryview(frame))
    assert not isinstance(flow, str), flow
    bth = headers.BTH.values(frame, 42)
    at = 54
    fields: dict[str, int] = {}
    for extension in EXTENSIONS[bth["opcode"]]:
        fields |= headers.OF[extension].values(frame, at)
        at += headers.OF[extension].size
    return Packet(
        bth["opcode"], bth["psn"], bth["ackreq"], bth["dqpn"], fields,
        frame[flow.payload_at : flow.payload_end], bth, flow.source_port, frame[15], frame,
    )  # fmt: skip


class Lone:
    """The endpoint HERE with one queue pair; the test is THERE."""

    def __init__(self, *, service: str = "rc", **parameters: Any) -> None:
        self.hca: HostChannelAdapter = adapter(0, service=service, **parameters)
        self.now = 0
        self.psn = FIRST_PSN + 1  # the next one that the endpoint expects
        self.first = FIRST_PSN  # the first one that it sends
        envelope = PeerEnvelope(encapsulation(THERE, MACS[THERE]), HERE, MACS[HERE])
        port = source_port(flow_label(qpn(0), qpn(1)))
        self._envelope, self._port = envelope, port
        self._frames = Frames(envelope, port, qpn(0), 0xFFFF)

    def frame(
        self,
        opcode: int,
        psn: int,
        *extensions: dict[str, int],
        payload: bytes = b"",
        ask: bool = False,
        tos: int = 0,
        dqpn: int | None = None,
        pkey: int = 0xFFFF,
        **bth: int,
    ) -> bytes:
        frames = self._frames
        if dqpn is not None or pkey != 0xFFFF:
            frames = Frames(self._envelope, self._port, qpn(0) if dqpn is None else dqpn, pkey)
        octets = b"".join(
            headers.OF[name].encode(**fields)
            for name, fields in zip(EXTENSIONS.get(opcode, ()), extensions, strict=True)
        )
        word = headers.BTH.word(opcode=opcode, **bth)
        number = psn & PSN_MASK | (ACK_REQUEST if ask else 0)
        return joined(frames.frame(tos, word, number, octets, payload))

    def give(self, *frames: bytes) -> None:
        """Frames arrive together."""
        self.hca.receive([memoryview(frame) for frame in frames], self.now)

    def take(self, limit: int = 1_000) -> list[Packet]:
        """Return what the endpoint sends now."""
        return [read(joined(frame)) for frame in self.hca.transmit(self.now, limit)]

    def ask(self, *frames: bytes) -> list[Packet]:
        self.give(*frames)
        return self.take()

    def ack(self, psn: int, syndrome: int = 0x1F, msn: int = 0) -> bytes:
        return self.frame(0x11, psn, {"syndrome": syndrome, "msn": msn})

    def write(
        self, psn: int, payload: bytes, *, key: int, va: int = 0, ask: bool = True, **bth: int
    ) -> bytes:
        """A WRITE Only."""
        reth = {"va": va, "rkey": key, "dmalen": len(payload)}
        return self.frame(0x0A, psn, reth, payload=payload, ask=ask, **bth)

    def done(self) -> list[Completion]:
        assert not self.hca.counts["internal_error"]
        return self.hca.completions()

    def state(self) -> str:
        qp = self.hca.queue_pair(qpn(0))
        assert qp is not None
        return qp.state.value


__all__ = ["Extension", "Lone", "Packet", "read"]
