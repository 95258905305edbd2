"""An initiator without a PDS: the test takes its messages and plays what PDS and the peer would.

::

    bench = Bench()
    bench.post(Write(...))
    message = bench.take()
    bench.answer(message, 0, response(code=ReturnCode.NO_MATCH))
    bench.end(message)
"""

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from uet.config import FepConfig
from uet.pds.semantics import Answer, Outbound, Response
from uet.ses.facilities import Facilities
from uet.ses.initiator.initiator import Initiator
from uet.ses.initiator.outbound import OutboundMessage
from uet.ses.memory.registered_memory import MemoryTable
from uet.timekeeper import Timekeeper
from uet.transport import Completion, Request
from uet.wire import headers
from uet.wire.codes import NextHeader, ResponseOpcode, ReturnCode
from uet.wire.frame import decode_frame
from uet.wire.layers import UET_RUD_REQ

HERE, THERE, ELSEWHERE = "10.0.1.1", "10.0.1.2", "10.0.1.3"
MTU = 1024
MS = 1_000_000
OPTIMIZED_KEY = 1 << 62 | 0x123


class FakePdc:
    """A PDC that keeps what is posted on it."""

    backlog = 0
    failure: str | None = None

    def __init__(self, number: int, address: str, delivery: str) -> None:
        self.id = number
        self.locks = 0
        self.address = address
        self.ordered = delivery == "rod"
        self.delivery = delivery
        self.posted: list[OutboundMessage] = []

    def post(self, message: Outbound) -> None:
        assert isinstance(message, OutboundMessage)
        self.posted.append(message)

    def respond(self, psn: int, response: Answer) -> None:
        raise AssertionError("an initiator answers at once")


class Bench:
    """An initiator, the fake carrier below it, and time."""

    def __init__(self, *, seed: int = 1, **parameters: Any) -> None:
        parameters.setdefault("payload_mtu", MTU)
        parameters.setdefault("neighbours", {THERE: "02:00:00:00:00:02", ELSEWHERE: "02::3"})
        self.config = FepConfig(address=HERE, mac="02:00:00:00:00:01", **parameters)
        self.memory = MemoryTable()
        self.counters: Counter[str] = Counter()
        self.completions: list[Completion] = []
        self.free = {THERE: True, ELSEWHERE: True}
        self.pdcs: dict[tuple[str, str], FakePdc] = {}
        self.waiting: list[OutboundMessage] = []  # with PDS, not taken by the test yet
        self.out: dict[OutboundMessage, FakePdc] = {}  # with PDS
        self.psn = 5_000
        self.time = Timekeeper()
        facilities = Facilities(
            config=self.config,
            memory=self.memory,
            complete=self.completions.append,
            counters=self.counters,
            rng=random.Random(seed),
            time=self.time,
        )
        self.initiator = Initiator(facilities, self)

    # -- the carrier

    def carry(self, message: Outbound, peer: str, delivery: str) -> FakePdc | None:
        assert isinstance(message, OutboundMessage)
        if not self.free[peer]:
            return None
        pdc = self.pdcs.get((peer, delivery))
        if pdc is None:
            pdc = FakePdc(len(self.pdcs) + 1, peer, delivery)
            self.pdcs[peer, delivery] = pdc
        self.waiting.append(message)
        self.out[message] = pdc
        return pdc

    # -- the test's side

    def post(self, *requests: Request) -> None:
        for request in requests:
            self.initiator.post(request)

    def take(self, sent: int | None = None) -> OutboundMessage:
        """The next message, with its first ``sent`` packets (all of them) on the wire."""
        message = self.waiting.pop(0)
        message.psn = self.psn
        message.sent = message.packets if sent is None else sent
        self.psn += message.packets
        return message

    def answer(self, message: OutboundMessage, index: int, response: Response) -> None:
        message.answered(index, response.next_header, memoryview(response.octets))

    def end(self, message: OutboundMessage, error: str | None = None) -> None:
        """Every other packet of it gets the default response; or PDS gives up."""
        message.error = error
        message.sent = message.acknowledged = message.packets
        self.initiator.message_end(self.out.pop(message), message, self.time.now)

    def data(
        self,
        message: OutboundMessage,
        offset: int,
        data: bytes,
        *,
        pdc: FakePdc | None = None,
        **fields: int,
    ) -> Answer:
        """Return data for a read, by the return direction."""
        fields.setdefault("read_request_message_id", message.id)
        fields.setdefault("payload_length", len(data))
        packet = headers.SES_RESPONSE_DATA.encode(message_offset=offset, **fields) + data
        if pdc is None:
            pdc = self.pdcs[message.plan.peer, message.plan.delivery]
        return self.initiator.deliver_data(
            pdc, 77, NextHeader.RESPONSE_DATA, memoryview(b"~~" + packet), 2
        )

    def wait(self, until: int) -> None:
        """Let time pass, with every timer on the way."""
        while (due := self.initiator.next_deadline()) is not None and due <= until:
            assert due >= self.time.now
            self.initiator.on_timer(due)
        self.time.now = until

    def assert_nothing_left(self) -> None:
        """No operation, id, token, key, lock or timer is left over."""
        initiator = self.initiator
        assert initiator.open_messages == 0
        assert len(initiator.ids) == len(initiator.peer_handles) == len(initiator.replies) == 0
        assert initiator.next_deadline() is None
        assert not initiator.waiting
        assert [pdc.locks for pdc in self.pdcs.values() if pdc.locks] == []
        assert not self.memory.regions
        for stream in initiator.streams.values():
            assert (len(stream), stream.flying, stream.probe) == (0, 0, None)


def response(code: int = ReturnCode.OK, **fields: int) -> Response:
    """A RESPONSE that is not the default one."""
    fields.setdefault("opcode", ResponseOpcode.RESPONSE)
    return Response(headers.SES_RESPONSE.encode(return_code=code, **fields))


def data_in_ack(message_id: int, data: bytes, offset: int = 0, **fields: int) -> Response:
    """Read data or a fetched value within an ACK."""
    fields.setdefault("payload_length", len(data))
    header = headers.SES_RESPONSE_DATA.encode(
        response_message_id=message_id,
        read_request_message_id=message_id,
        message_offset=offset,
        **fields,
    )
    return Response(header + data, next_header=NextHeader.RESPONSE_DATA)


def small_data(data: bytes, psn: int = 0, **fields: int) -> bytes:
    """Optimized response with data (UES Table 3-13)."""
    fields.setdefault("payload_length", len(data))
    return headers.SES_RESPONSE_DATA_SMALL.encode(original_request_psn=psn, **fields) + data


def seen(message: OutboundMessage, index: int) -> SimpleNamespace:
    """Packet ``index`` in a frame, decoded: fields of all SES headers, and ``payload``."""
    header, payload = message.packet(index)
    assert message.packet(index) == (header, payload)
    carrier = Ether() / IP(src=HERE, dst=THERE) / UDP(sport=1, dport=4793)
    frame = bytes(carrier / UET_RUD_REQ(next_hdr=message.next_header, syn=0) / header / payload)
    decoded = decode_frame(frame, crc="off")
    assert decoded.errors == []
    fields: dict[str, Any] = {"payload": b""}
    for layer in decoded.layers:
        if layer.name.startswith("ses.") and layer.header is not None:
            fields |= dict(zip(layer.header.names, layer.values, strict=True))
        elif layer.name == "payload":
            fields["payload"] = frame[layer.offset : layer.offset + layer.length]
    return SimpleNamespace(**fields)


def packets(message: OutboundMessage) -> list[SimpleNamespace]:
    return [seen(message, index) for index in range(message.packets)]
