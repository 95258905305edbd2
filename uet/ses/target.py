"""The target side of SES: is this request allowed, and where does its payload go?

The checks come in the specification's order and the first that fails decides the return code
(UES 3.4.1, receive checks).  A request whose first word and addressing equal the expected ones
passes the first nine at once.
"""

from __future__ import annotations

from collections.abc import Callable

from uet.config import FepConfig
from uet.pds.destination import NO_ROOM
from uet.ses.memory import MemoryRegion, MemoryTable
from uet.ses.messages import InboundMessage
from uet.transport import Completion
from uet.wire import headers
from uet.wire.codes import Opcode, ReturnCode

_SOM = headers.SES_STD_SOM
_NOSOM = headers.SES_STD_NOSOM
_SIZE = _SOM.size
_SOM_BIT, _EOM_BIT, _HD_BIT = _SOM.mask("som"), _SOM.mask("eom"), _SOM.mask("hd")
_OPCODE_SHIFT = _SOM.shift("opcode")
_OPCODE = _SOM.mask("opcode") >> _OPCODE_SHIFT
_VERSION, _IE, _REL = _SOM.mask("version"), _SOM.mask("ie"), _SOM.mask("rel")
#: Bits of the first word that may take any value in an acceptable write.
_FREE = _SOM_BIT | _EOM_BIT | _HD_BIT | _SOM.mask("dc")
_WRITE = _SOM.word(opcode=Opcode.WRITE, rel=1) & ~_FREE
_PID_OR_INDEX = _SOM.mask("pid_on_fep") | _SOM.mask("resource_index")
_JOB_ID, _GENERATION = _SOM.mask("job_id"), _SOM.mask("ri_generation")
_OK = int(ReturnCode.OK)
_PAYLOAD_LENGTH = _NOSOM.mask("payload_length")


class Target:
    """Carries out the requests that reach one endpoint."""

    def __init__(
        self,
        config: FepConfig,
        memory: MemoryTable,
        complete: Callable[[Completion], None],
        counters: dict[str, int],
    ) -> None:
        self._memory = memory
        self._complete = complete
        self._counters = counters
        self._job_id = config.job_id
        self._addressing = _SOM.word(
            job_id=config.job_id,
            pid_on_fep=config.pid_on_fep,
            resource_index=config.resource_index,
            ri_generation=0,
        )
        self._limit = config.max_inbound_messages
        self._idle_time = config.inbound_message_idle_time
        self._inbound: dict[tuple[int, int], InboundMessage] = {}
        self._full_until = 0  # before then no message has been idle for long enough
        self.now = 0

    def deliver(self, pdc_id: int, peer: str, packet: memoryview, at: int) -> int:
        """Carry out the request at ``at``; its return code, or :data:`NO_ROOM`.

        PDS calls this once per request, with a whole header.  The packet's view ends where its
        payload does.
        """
        left = len(packet) - at - _SIZE
        if packet[at + 1] & _SOM_BIT:
            word, message_id, to, offset, _, key, header_data, length = _SOM.unpack_from(packet, at)
            start, octets = 0, left
        else:
            word, message_id, to, offset, _, key, octets, start, length = _NOSOM.unpack_from(
                packet, at
            )
            octets &= _PAYLOAD_LENGTH
            header_data = None
        if word & ~_FREE != _WRITE or to != self._addressing:
            code = self._refusal(word, to, pdc_id, message_id)
            if code:
                return code
        if octets != left or start + octets > length or (length and not octets):
            return ReturnCode.OP_VIOLATION
        message = self._inbound.get((pdc_id, message_id))
        if message is None:
            region = self._memory.find(key)
            if region is None or (region.job_id is not None and region.job_id != self._job_id):
                return ReturnCode.BAD_MKEY
            if not region.writable:
                return ReturnCode.PERM_VIOLATION
            if offset + length > len(region.memory):
                return ReturnCode.BAD_ADDR
            if word & _SOM_BIT and octets == length:
                payload = at + _SIZE
                region.memory[offset : offset + length] = packet[payload : payload + length]
                self._finished(peer, word & _HD_BIT, header_data, region, offset, length)
                return _OK
            if not self._make_room():
                return NO_ROOM
            message = InboundMessage(region, offset, length)
            self._inbound[pdc_id, message_id] = message
        elif message.region.key != key or message.offset != offset or message.length != length:
            return ReturnCode.OP_VIOLATION
        message.touched = self.now
        payload = at + _SIZE
        if not message.place(start, packet[payload : payload + octets]):
            return ReturnCode.OP_VIOLATION
        if header_data is not None and word & _HD_BIT:
            message.header_data = header_data
        if message.placed == length:
            del self._inbound[pdc_id, message_id]
            has_data = message.header_data is not None
            self._finished(peer, has_data, message.header_data, message.region, offset, length)
        return _OK

    def _finished(
        self,
        peer: str,
        has_data: int,
        header_data: int | None,
        region: MemoryRegion,
        offset: int,
        length: int,
    ) -> None:
        """Every octet is in place; header data makes that a completion (UES 3.4.1)."""
        self._counters["rx_messages"] += 1
        self._counters["rx_message_octets"] += length
        if has_data:
            self._complete(
                Completion(
                    kind="remote_write",
                    peer=peer,
                    length=length,
                    header_data=header_data,
                    key=region.key,
                    offset=offset,
                )
            )

    def _refusal(self, word: int, to: int, pdc_id: int, message_id: int) -> int:
        """Which of the first nine checks fails, in their order; 0 if none does.

        OK says that the request has been dealt with: the initiator gave its message up.
        """
        if word & _VERSION:
            return ReturnCode.UNCOR
        wrong = to ^ self._addressing
        if wrong & _PID_OR_INDEX or not word & _REL:
            return ReturnCode.UNDELIVERABLE
        if wrong & _JOB_ID:
            return ReturnCode.BAD_JOB_ID
        if wrong & _GENERATION:
            return ReturnCode.BAD_GENERATION
        if word & _IE:
            return ReturnCode.INITIATOR_ERR
        opcode = word >> _OPCODE_SHIFT & _OPCODE
        if opcode == Opcode.MSG_ERROR:
            if self._inbound.pop((pdc_id, message_id), None) is not None:
                self._counters["rx_messages_abandoned"] += 1
            return ReturnCode.OK
        if opcode != Opcode.WRITE:
            return ReturnCode.UNSUPPORTED_OP
        return 0

    def _make_room(self) -> bool:
        """Whether one more message can be tracked; drops those idle for too long if need be."""
        if len(self._inbound) < self._limit:
            return True
        if self.now < self._full_until:
            return False
        oldest = self.now - self._idle_time
        idle = [key for key, message in self._inbound.items() if message.touched <= oldest]
        for key in idle:
            del self._inbound[key]
        touched = [message.touched for message in self._inbound.values()]
        self._full_until = min(touched, default=self.now) + self._idle_time
        self._counters["rx_messages_abandoned"] += len(idle)
        return bool(idle)

    def forget(self, pdc_id: int) -> None:
        """The PDC is gone, and with it what was half received on it."""
        gone = [key for key in self._inbound if key[0] == pdc_id]
        for key in gone:
            del self._inbound[key]
        self._counters["rx_messages_abandoned"] += len(gone)
