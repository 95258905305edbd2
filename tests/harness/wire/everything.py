"""Collect what the stack sends: every operation, delivery mode and header format, both ways.

Exchanges of two endpoints over wires that lose, copy, reorder and trim give the frames; control
packets and NACKs that no such exchange needs come from the functions that make them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from emulator.cli.decode.decode_source import opener
from tests.harness.uet.exchange import (
    KEY,
    LASTHOP,
    MS,
    PROTECTIONS,
    TRIMMED,
    WIRES,
    Exchange,
    Side,
    Wire,
)
from tests.harness.uet.operations import (
    TOGETHER,
    datagram,
    octets,
    other,
    send,
)
from uet.compatibility import REFERENCE_PROVIDER
from uet.pds.packets import control_packet, nack_packet
from uet.transport import AtomicRequest, SendRequest, WriteRequest
from uet.wire.codes import AtomicOpcode, ControlType, Datatype, NackCode
from uet.wire.frame import DecodedPacket, OpenSecure, decode_frame

TRIMMED_DSCP: Final = frozenset({TRIMMED, LASTHOP})
#: Frames kept of each shape.
_KEPT: Final = 2


@dataclass(frozen=True)
class Setting:
    """How both endpoints of an exchange are set, and over which wire they talk."""

    name: str
    wire: Wire
    ip: str = "ipv4"
    native: bool = False
    protection: str = "plain"
    optimized_headers: bool = False
    cc: str = "none"
    ack_type: str = "ack_cc"
    unexpected: str = "refuse"
    reference_provider: bool = False

    def exchange(self, seed: int) -> Exchange:
        more: dict[str, Any] = dict(PROTECTIONS[self.protection])
        if self.reference_provider:
            more["compatibility"] = REFERENCE_PROVIDER
        return Exchange(
            self.wire,
            seed,
            ip=self.ip,
            native=self.native,
            optimized_headers=self.optimized_headers,
            cc=self.cc,
            ack_type=self.ack_type,
            unexpected=self.unexpected,
            rod_reorder=True,
            **more,
        )


_BAD: Final = WIRES["all_but_corruption"]
SETTINGS: Final = (
    Setting("plain", _BAD),
    Setting("optimized", _BAD, ip="ipv6", optimized_headers=True, cc="nscc"),
    Setting("native", _BAD, native=True, protection="crc", unexpected="keep"),
    Setting(
        "credit", _BAD, ip="ipv6", native=True, protection="crc", optimized_headers=True,
        cc="rccc", ack_type="ack",
    ),
    Setting("ccx", _BAD, cc="both", ack_type="ack_ccx", unexpected="keep"),
    Setting("cluster", _BAD, protection="tss_cluster", optimized_headers=True),
    Setting("direct", _BAD, ip="ipv6", protection="tss_direct"),
    Setting("provider", WIRES["loss"], native=True, protection="crc", reference_provider=True),
    Setting("provider-secured", WIRES["perfect"], native=True, protection="tss_cluster",
            reference_provider=True),
)  # fmt: skip


def _untagged(exchange: Exchange, side: Side, delivery: str) -> None:
    """Sends without tag by each protocol."""
    there = other(exchange, side)
    for protocol in ("rendezvous", "deferrable") if delivery == "rud" else ("rendezvous",):
        data = exchange.data(9_000)
        exchange.receive(there, len(data))
        exchange.post(
            side, SendRequest, delivery=delivery, payload=memoryview(data), protocol=protocol,
            header_data=7,
        )  # fmt: skip


def _tagged_atomics(exchange: Exchange, side: Side, delivery: str) -> None:
    there = other(exchange, side)
    for fetched in (False, True):
        tag = exchange.tag
        exchange.receive(there, 8, tag=tag)
        exchange.post(
            side, AtomicRequest, delivery=delivery, tag=tag, offset=0, operation=AtomicOpcode.SUM,
            datatype=Datatype.UINT64, operand=octets(5),
            result=memoryview(bytearray(8)) if fetched else None,
        )  # fmt: skip


def _synchronised(exchange: Exchange, side: Side, delivery: str) -> None:
    """Groups of the reference provider: a write of several packets, two atomics."""
    there = other(exchange, side)
    members: list[tuple[type[WriteRequest | AtomicRequest], dict[str, Any]]] = [
        (WriteRequest, {"payload": memoryview(exchange.data(3_000))}),
        (AtomicRequest, {"operation": AtomicOpcode.SUM, "operand": octets(5)}),
        (
            AtomicRequest,
            {"operation": AtomicOpcode.CSWAP, "operand": octets(5), "compare": octets(0)},
        ),
    ]
    for make, fields in members:
        typed = {"datatype": Datatype.UINT64} if make is AtomicRequest else {}
        exchange.post(
            side, make, delivery=delivery, key=KEY, offset=there.room(3_000), synchronise=(7, 0),
            **fields, **typed,
        )  # fmt: skip


def _ask(exchange: Exchange, setting: Setting) -> None:
    asked = [*TOGETHER, (_untagged, "rud"), (_untagged, "rod"), (_tagged_atomics, "rud")]
    if setting.reference_provider:  # which has no more
        asked = [(_synchronised, "rud"), (_synchronised, "rod"), (send, "rod")]
    for side in exchange.sides:
        for operation, delivery in asked:
            operation(exchange, side, delivery)
        if not setting.reference_provider:
            side.fep.open_pdc(side.peer, ordered=True)
            side.fep.open_pdc(side.peer, negotiate=True)
            exchange.later.append(partial(side.fep.probe, side.peer))


def _carried(setting: Setting, seed: int, ask: Callable[[Exchange], object]) -> list[bytes]:
    """The frames of an exchange as they arrive: some of them trimmed."""
    exchange = setting.exchange(seed)
    frames: list[bytes] = []
    switch = exchange.network.tap
    assert switch is not None

    def tap(frame: bytes, now: int) -> Sequence[bytes]:
        arriving = switch(frame, now)
        frames.extend(arriving)
        return arriving

    exchange.network.tap = tap
    ask(exchange)
    network = exchange.network
    # Whether all of it succeeds is the business of other tests.
    while exchange.later:
        network.run(lambda: False, horizon_ns=network.now + 3 * MS)
        acts, exchange.later[:] = exchange.later[:], []
        for act in acts:
            act()
    network.run(lambda: False, horizon_ns=network.now + 100 * MS)
    for side in exchange.sides:
        side.fep.close()
    network.run(lambda: False, horizon_ns=network.now + 100 * MS)
    return frames


def _made() -> list[bytes]:
    """Every control packet and every NACK, from the functions with which the stack makes them."""
    packets = [
        control_packet(
            kind, psn=9, spdcid=5, peer_id=peer, start_psn=7, ordered=bool(peer),
            retx=kind % 2 == 0, ar=bool(peer), payload=77,
        )
        for kind in ControlType
        for peer in (0, 6)
    ]  # fmt: skip
    packets += [
        nack_packet(code, 9, 5, 6, resent=code % 2 == 0, marked=code % 3 == 0, payload=10)
        for code in NackCode
    ]
    return [
        bytes(Ether() / IP(tos=46 << 2) / UDP(sport=50000, dport=4793, chksum=0) / Raw(p))
        for p in packets
    ]


def shape(packet: DecodedPacket) -> object:
    """Return what tells a kind of packet from others: layers, and the fields that choose a form."""
    choosing = (
        "pds.type", "pds.next_hdr", "pds.flags", "pds.ctl_type", "pds.nack_code", "ses.opcode",
        "ses.som", "ses.eom", "ses.hd", "ses.dc", "ses.return_code", "ses.list",
        "ext.atomic_opcode",
    )  # fmt: skip
    return (
        packet.envelope.encapsulation,
        packet.trimmed,
        tuple(packet.layer_names),
        tuple(packet.fields.get(name) for name in choosing),
    )


@dataclass(frozen=True)
class Sent:
    """A frame that the stack sent, and whether a peer like the reference provider did."""

    setting: str
    frame: bytes
    reference_provider: bool
    open_secure: OpenSecure | None

    def decoded(self, *, with_keys: bool = True) -> DecodedPacket:
        return decode_frame(
            self.frame,
            trimmed_dscp=TRIMMED_DSCP,
            open_secure=self.open_secure if with_keys else None,
            reference_provider=self.reference_provider,
        )


def everything() -> list[Sent]:
    """Some frames of each shape."""
    chosen = []
    for number, setting in enumerate(SETTINGS):
        frames = _carried(setting, number, partial(_ask, setting=setting))
        if not number:
            frames += _made()
        if not setting.reference_provider:
            frames += _carried(replace(setting, wire=WIRES["perfect"]), number, _alone)
        domains = PROTECTIONS[setting.protection].get("domains", ())
        open_secure = opener(list(domains)) if domains else None
        counts: Counter[object] = Counter()
        for frame in frames:
            sent = Sent(setting.name, frame, setting.reference_provider, open_secure)
            kind = shape(sent.decoded())
            counts[kind] += 1
            if counts[kind] <= _KEPT:
                chosen.append(sent)
    return chosen


def _alone(exchange: Exchange) -> None:
    """Datagrams would take the receives of other sends."""
    for side in exchange.sides:
        datagram(exchange, side, "uud")
