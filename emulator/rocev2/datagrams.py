"""Unreliable datagrams: a packet a message, to whatever QP has the Q_Key (IBA 9.8.3)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from emulator.rocev2.config import HcaConfig
from emulator.rocev2.connection.work import WorkError, encoded, message_length
from emulator.rocev2.wire import headers
from emulator.rocev2.wire.codes import GRH_SIZE, QPN_MASK, BthOperation, Service
from emulator.rocev2.wire.packets import Frames, HcaPeer
from uet.peer import traffic_class
from uet.transport import Completion, Frame, ReceiveRequest, SendRequest

_IP_AT: Final = 14
_IPV4_SIZE: Final = 20
_MIGREQ: Final = headers.BTH.mask("migreq")
_OPCODE_SHIFT: Final = headers.BTH.shift("opcode")
_FROM_QP: Final = 1 << 31  # in a Q_Key that is requested
_ORDINARY, _WITH_IMMEDIATE = (
    int(Service.UD) | int(BthOperation.SEND_ONLY),
    int(Service.UD) | int(BthOperation.SEND_ONLY_IMM),
)


@dataclass(frozen=True, slots=True)
class UdAddress:
    """The address of a datagram; a Q_Key with its highest bit set means the sender's own."""

    qpn: int
    qkey: int = _FROM_QP


class Datagrams:
    """The datagram queue pair of one endpoint."""

    def __init__(
        self, config: HcaConfig, complete: Callable[[Completion], None], counts: Counter[str]
    ) -> None:
        self._config = config
        self._complete = complete
        self._counts = counts
        self._class = traffic_class(config.dscp_data, ecn_capable=config.ecn_capable)
        self._receives: deque[ReceiveRequest] = deque()
        self._frames: dict[tuple[bytes, int], Frames] = {}
        self._psn = 0
        self.queue: deque[Frame] = deque()

    def post(self, request: SendRequest, peer: HcaPeer) -> None:
        """Queue a datagram; ``WorkError`` for one that cannot be."""
        config, address = self._config, request.destination
        if not isinstance(address, UdAddress):
            raise WorkError("a datagram needs a destination: a UdAddress(qpn, qkey)")
        if not 0 < address.qpn <= QPN_MASK:
            raise WorkError(f"the QP number {address.qpn:#x} is not in 1..{QPN_MASK:#x}")
        length = message_length(request.payload)
        if length > config.mtu:
            raise WorkError(
                f"a datagram of {length} octets is longer than the MTU of "
                f"{config.mtu}; send it in pieces or over a connection"
            )
        qkey = config.qkey if address.qkey & _FROM_QP else address.qkey
        extensions = encoded(headers.DETH, qkey=qkey, srcqp=config.ud_qpn)
        opcode = _ORDINARY
        if request.header_data is not None:
            opcode = _WITH_IMMEDIATE
            extensions += encoded(headers.IMM_DT, immediate=request.header_data)
        key = peer.key, address.qpn
        if key not in self._frames:
            self._frames[key] = peer.frames(config.ud_qpn, address.qpn, config.pkey)
        word = opcode << _OPCODE_SHIFT | (_MIGREQ if config.migreq else 0)
        self.queue.append(
            self._frames[key].frame(self._class, word, self._psn, extensions, request.payload)
        )
        self._psn = self._psn + 1 & 0xFF_FFFF
        self._complete(
            Completion(
                kind="send",
                peer=request.peer,
                length=length,
                context=request.context,
            )
        )

    def post_receive(self, receive: ReceiveRequest) -> None:
        """Offer memory; its first 40 octets are not the message's."""
        if message_length(receive.memory) < GRH_SIZE or receive.memory.readonly:
            raise WorkError(
                f"a receive for datagrams needs {GRH_SIZE} octets before the data, all writable"
            )
        self._receives.append(receive)

    def receive(
        self, opcode: int, peer: HcaPeer, frame: memoryview, extensions_at: int, at: int, end: int
    ) -> None:
        """Receive a packet for the datagram queue pair; its PSN has no meaning."""
        if opcode not in (_ORDINARY, _WITH_IMMEDIATE):
            self._counts["rx_drop_other_service"] += 1
            return
        qkey, source = headers.DETH.unpack_from(frame, extensions_at)
        if qkey != self._config.qkey:
            self._counts["rx_drop_bad_qkey"] += 1
            return
        self._counts["rx_datagrams"] += 1
        length = end - at
        if not self._receives or length > len(self._receives[0].memory) - GRH_SIZE:
            self._counts["rx_drop_no_receive"] += 1
            return
        receive = self._receives.popleft()
        memory = receive.memory
        if frame[_IP_AT] >> 4 == 4:  # the IPv4 header stands at the end of the room (A17.4.5)
            memory[: GRH_SIZE - _IPV4_SIZE] = bytes(GRH_SIZE - _IPV4_SIZE)
            memory[GRH_SIZE - _IPV4_SIZE : GRH_SIZE] = frame[_IP_AT : _IP_AT + _IPV4_SIZE]
        else:
            memory[:GRH_SIZE] = frame[_IP_AT : _IP_AT + GRH_SIZE]
        memory[GRH_SIZE : GRH_SIZE + length] = frame[at:end]
        immediate = None
        if opcode == _WITH_IMMEDIATE:
            (immediate,) = headers.IMM_DT.unpack_from(frame, at - headers.IMM_DT.size)
        self._complete(
            Completion(
                kind="receive",
                peer=peer.address,
                length=length,
                context=receive.context,
                header_data=immediate,
                offset=GRH_SIZE,
                initiator=source & 0xFF_FFFF,
            )
        )
