"""An endpoint and, across the wire, a peer that the test plays packet by packet.

Packets of the peer are built with the scapy layers, those of the endpoint are decoded with
:func:`uet.wire.frame.decode_frame`, so that a test reads like the exchange it is about::

    script = Script()
    (ack,) = script.give(rud(START, syn=0, ar=1) / write(b"hello"))
    assert ack.cack_psn == START

Every frame of the endpoint must decode without a complaint.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from tests.harness.uet.network import MACS, endpoint, joined
from uet.pds.pdc import Pdc
from uet.pds.window import distance
from uet.transport import Completion, Frame, WriteRequest
from uet.wire.codes import ControlType, NackCode, Opcode, ReturnCode
from uet.wire.frame import DecodedPacket, decode_frame
from uet.wire.layers import (
    UET_ACK_CC,
    UET_CP,
    UET_NACK,
    UET_ROD_REQ,
    UET_RUD_REQ,
    UET_SES_RESPONSE,
    UET_SES_STD,
)

HERE, THERE, ELSEWHERE = "10.0.1.1", "10.0.1.2", "10.0.1.3"
KEY = 0x1234
#: First PSN and PDC identifier that the peer uses when it is the initiator, and its identifier
#: when it is the target.
START, INITIATOR, TARGET = 100_000, 7, 9
MTU = 1024
US, MS = 1_000, 1_000_000
REGION = 65_536
MASK = 0xFFFF_FFFF


@dataclass
class Seen:
    """A frame that the endpoint sent.  Fields of the PDS header are attributes."""

    decoded: DecodedPacket
    octets: bytes
    name: str = ""
    ses: Any = None
    payload: bytes = b""
    fields: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.decoded.errors == []
        for layer in self.decoded.layers:
            kind, _, name = layer.name.partition(".")
            if kind == "pds" and layer.header is not None:
                self.name = name
                self.fields |= dict(zip(layer.header.names, layer.values, strict=True))
            elif kind == "ses" and layer.header is not None:
                self.ses = SimpleNamespace(
                    **dict(zip(layer.header.names, layer.values, strict=True)), name=name
                )
            elif layer.name == "payload":
                self.payload = self.octets[layer.offset : layer.offset + layer.length]
        self.fields |= self.decoded.derived

    def __getattr__(self, name: str) -> int:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self) -> str:
        return f"<{self.name} {self.fields} ses={self.ses}>"

    @property
    def ev(self) -> int:
        return self.decoded.envelope.entropy

    @property
    def dscp(self) -> int:
        return self.decoded.envelope.dscp

    @property
    def ecn(self) -> int:
        return self.decoded.envelope.ecn

    @property
    def is_request(self) -> bool:
        return self.name in ("rud_req", "rod_req")

    @property
    def is_ack(self) -> bool:
        return self.name == "ack_cc"

    @property
    def nack(self) -> NackCode | None:
        return NackCode(self.nack_code) if self.name == "nack" else None

    @property
    def control(self) -> ControlType | None:
        return ControlType(self.ctl_type) if self.name == "cp" else None

    @property
    def answer(self) -> ReturnCode | None:
        """The return code of the SES response carried."""
        return None if self.ses is None else ReturnCode(self.ses.return_code)


class Script:
    """The endpoint under test, time, and what it has in memory."""

    def __init__(self, *, seed: int = 1, writable: bool = True, **parameters: Any) -> None:
        parameters.setdefault("payload_mtu", MTU)
        parameters.setdefault("dscp_trimmed", 4)
        parameters.setdefault("dscp_trimmed_lasthop", 5)
        self.fep = endpoint(HERE, seed=seed, **parameters)
        self.memory = bytearray(REGION)
        self.fep.register(memoryview(self.memory), key=KEY, writable=writable)
        self.now = 0

    # -- the endpoint's side

    def post(self, data: bytes, *, peer: str = THERE, context: object = None, **more: Any) -> None:
        """Post a write to ``peer``."""
        more.setdefault("key", KEY)
        more.setdefault("offset", 0)
        self.fep.post(WriteRequest(peer=peer, payload=memoryview(data), context=context, **more))

    def take(self, limit: int = 64) -> list[Seen]:
        """All that may leave now."""
        seen: list[Seen] = []
        while frames := self._transmit(limit):
            for frame in frames:
                octets = joined(frame)
                seen.append(Seen(decode_frame(octets, crc="off"), octets))
        return seen

    def _transmit(self, limit: int) -> list[Frame]:
        """Every answer that is due, and then ``limit`` frames at most."""
        answers = len(self.fep.control)
        frames = self.fep.transmit(self.now, limit)
        assert len(frames) <= limit + answers
        return frames

    def wait(self, ns: int) -> list[Seen]:
        """Return what leaves until ``ns`` later, at the endpoint's own deadlines."""
        end = self.now + ns
        seen = self.take()
        while (deadline := self.fep.next_deadline()) is not None and deadline <= end:
            assert deadline >= self.now, "a deadline in the past is a busy loop"
            self.now = deadline
            seen += self.take()
            left = self.fep.next_deadline()
            assert left is None or left > self.now, "a deadline that does not move on"
        self.now = end
        return seen

    @property
    def completions(self) -> list[Completion]:
        return self.fep.completions()

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.fep.counters())

    # -- the peer's side

    def frame(
        self,
        packet: Packet,
        *,
        ev: int = 50_000,
        dscp: int = 0,
        ecn: int = 2,
        source: str = THERE,
        checksum: int = 0,
    ) -> bytes:
        """The frame of a UET packet, as it arrives."""
        ether = Ether(src=MACS[source], dst=MACS[HERE])
        ip = IP(src=source, dst=HERE, tos=dscp << 2 | ecn, flags="DF")
        return bytes(ether / ip / UDP(sport=ev, dport=4793, chksum=checksum) / packet)

    def give(self, packet: Packet, **envelope: Any) -> list[Seen]:
        """Deliver a packet of the peer, and take what leaves at once."""
        return self.give_frame(self.frame(packet, **envelope))

    def give_frame(self, frame: bytes) -> list[Seen]:
        self.fep.receive([memoryview(frame)], self.now)
        return self.take()

    # -- openings

    def establish_target(self, *, source: str = THERE) -> int:
        """The peer opens a PDC with a write of one octet at PSN START; the endpoint's PDC id."""
        (ack,) = self.give(rud(START, syn=0, ar=1) / write(b"\0", message_id=999), source=source)
        assert ack.is_ack
        assert ack.cack_psn == START
        return ack.spdcid

    def establish_initiator(self, *, mpr: int = 8) -> int:
        """The endpoint opens a PDC with a write of one octet; its id."""
        self.post(b"\0")
        (request,) = self.take()
        assert request.syn == 1
        assert self.give(ack(request, mpr=mpr)) == []
        assert [c.error for c in self.completions] == [None]
        return request.spdcid

    @property
    def pdcs(self) -> list[Pdc]:
        return list(self.fep.table.by_id.values())

    @property
    def pdc(self) -> Pdc:
        (pdc,) = self.pdcs
        return pdc

    @property
    def next_psn(self) -> int:
        return self.pdc.source.window.next


# -- packets of a peer that initiates


def rud(
    psn: int, *, syn: int | None = None, dpdcid: int = 0, clear: int = START - 1, **fields: Any
) -> Packet:
    """A RUD request header; ``syn`` is the psn_offset of a SYN packet."""
    return _request(UET_RUD_REQ, psn, syn, dpdcid, clear, fields)


def rod(
    psn: int, *, syn: int | None = None, dpdcid: int = 0, clear: int = START - 1, **fields: Any
) -> Packet:
    """Return the same script over ROD."""
    return _request(UET_ROD_REQ, psn, syn, dpdcid, clear, fields)


def _request(
    layer: type[Packet],
    psn: int,
    syn: int | None,
    dpdcid: int,
    clear: int,
    fields: dict[str, Any],
) -> Packet:
    fields.setdefault("spdcid", INITIATOR)
    fields["clear_psn_offset"] = max(-0x8000, min(clear - psn, 0x7FFF))
    if syn is None:
        return layer(psn=psn & MASK, dpdcid=dpdcid, **fields)
    return layer(psn=psn & MASK, syn=1, psn_offset=syn, **fields)


def write(data: bytes, *, at: int | None = None, total: int | None = None, **fields: Any) -> Packet:
    """A write of one packet, or with ``at`` and ``total`` the part of one."""
    message = {
        "opcode": Opcode.WRITE,
        "rel": 1,
        "message_id": 1,
        "job_id": 1,
        "resource_index": 15,
        "initiator": 16,
        "match_bits": KEY,
        "request_length": len(data) if total is None else total,
    }
    if at is None:
        return UET_SES_STD(**message | fields) / data
    assert total is not None
    message |= {"som": int(not at), "eom": int(at + len(data) == total)}
    if at:
        message |= {"message_offset": at, "payload_length": len(data)}
    return UET_SES_STD(**message | fields) / data


def control(kind: ControlType, psn: int, *, dpdcid: int, **fields: Any) -> Packet:
    fields.setdefault("spdcid", INITIATOR)
    return UET_CP(ctl_type=kind, psn=psn & MASK, dpdcid=dpdcid, **fields)


# -- packets of a peer that is the target


def ack(
    request: Seen | None = None,
    *,
    psn: int | None = None,
    cack: int | None = None,
    sack: tuple[int, int] = (0, 0),
    code: ReturnCode | None = ReturnCode.OK,
    dpdcid: int | None = None,
    spdcid: int = TARGET,
    mpr: int = 8,
    **fields: Any,
) -> Packet:
    """ACK_CC of ``request`` or ``psn``; CACK is that PSN too unless given otherwise.

    ``sack`` is the base as a PSN, and the bitmap; ``code=None`` leaves the SES response out.
    """
    if request is not None:
        psn, dpdcid = request.psn, request.spdcid
    assert psn is not None
    cack = psn if cack is None else cack
    base, bitmap = sack
    header = UET_ACK_CC(
        cack_psn=cack & MASK,
        ack_psn_offset=distance(psn, cack),
        sack_psn_offset=distance(base, cack) if bitmap else 0,
        sack_bitmap=bitmap,
        spdcid=spdcid,
        dpdcid=dpdcid,
        mpr=mpr,
        **fields,
    )
    if code is None:
        return header
    # A refusal is RESPONSE, success DEFAULT_RESPONSE.
    return header / UET_SES_RESPONSE(opcode=int(code != ReturnCode.OK), return_code=code)


def refusal(
    request: Seen | None = None,
    *,
    code: NackCode,
    psn: int | None = None,
    dpdcid: int = 0,
    spdcid: int = TARGET,
    **fields: Any,
) -> Packet:
    if request is not None:
        psn, dpdcid = request.psn, request.spdcid
    return UET_NACK(nack_code=code, nack_psn=psn, spdcid=spdcid, dpdcid=dpdcid, **fields)
