"""One request packet as it arrived, whatever its format (UES 3.4.1, Tables 3-8 to 3-10).

The three formats carry much the same in ever fewer octets; the checks and operations that come
after see one object with all fields.  The opcode alone determines which extension header follows
the base header.
"""

from __future__ import annotations

from typing import Final

from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE, OPTIMIZED
from uet.wire import headers
from uet.wire.codes import (
    ATOMIC_OPCODES,
    CSWAP_OPCODES,
    DEFERRABLE_OPCODES,
    RENDEZVOUS_OPCODES,
    NextHeader,
    Opcode,
    ProviderOpcode,
)

SYNC_WRITE: Final = int(ProviderOpcode.SYNC_WRITE)
SYNC_ATOMIC: Final = int(ProviderOpcode.SYNC_ATOMIC)
#: Their extension header: group (16), count (16).
SYNC_EXTENSION: Final = headers.SES_SYNC.size

_SOM: Final = headers.SES_STD_SOM
_NOSOM: Final = headers.SES_STD_NOSOM
_MEDIUM: Final = headers.SES_MEDIUM
_SMALL: Final = headers.SES_SMALL
_STD_SIZE: Final = _SOM.size
_SHORT: Final = 16  # the first word of small and medium requests has the length behind these flags
_SHORT_LENGTH: Final = _SMALL.mask("request_length")
_OPCODE_SHIFT: Final = _SOM.shift("opcode")
_OPCODE: Final = _SOM.mask("opcode") >> _OPCODE_SHIFT
_SOM_BIT: Final = _SOM.mask("som")
_EOM_BIT: Final = _SOM.mask("eom")
_HD_BIT: Final = _SOM.mask("hd")
_DC_BIT: Final = _SOM.mask("dc")
_IE_BIT: Final = _SOM.mask("ie")
_REL_BIT: Final = _SOM.mask("rel")
_VERSION: Final = _SOM.mask("version")
#: Flags that packets of one message need not share.
FREE: Final = _SOM_BIT | _EOM_BIT | _HD_BIT | _DC_BIT
_GENERATION_SHIFT: Final = _SOM.shift("ri_generation")
_JOB_SHIFT: Final = _SOM.shift("job_id")
_PID_SHIFT: Final = _SOM.shift("pid_on_fep")
_INDEX_SHIFT: Final = _SOM.shift("resource_index")
_JOB: Final = _SOM.mask("job_id") >> _JOB_SHIFT
_PID: Final = _SOM.mask("pid_on_fep") >> _PID_SHIFT
_INDEX: Final = _SOM.mask("resource_index") >> _INDEX_SHIFT
_PAYLOAD_LENGTH: Final = _NOSOM.mask("payload_length")

_RENDEZVOUS: Final = frozenset(map(int, RENDEZVOUS_OPCODES))
_ATOMIC: Final = frozenset({*map(int, ATOMIC_OPCODES), SYNC_ATOMIC})
_DEFERRABLE: Final = frozenset(map(int, DEFERRABLE_OPCODES))
_CSWAP: Final = frozenset(map(int, CSWAP_OPCODES))
_EXTENDED: Final = frozenset({*_RENDEZVOUS, *_ATOMIC, SYNC_WRITE})
#: Opcodes whose payload is part of a message that is put together from packets.
_PLACED: Final = frozenset(
    {
        int(Opcode.WRITE),
        SYNC_WRITE,
        int(Opcode.SEND),
        int(Opcode.TAGGED_SEND),
        int(Opcode.DATAGRAM_SEND),
        *_DEFERRABLE,
    }
)


class RequestArrival:
    """The fields of a request packet, and what follows its base header."""

    __slots__ = (
        "buffer_offset",
        "extension",
        "generation",
        "has_id",
        "header_data",
        "index",
        "initiator",
        "job_id",
        "length",
        "match_bits",
        "message_id",
        "octets",
        "opcode",
        "payload",
        "pid",
        "psn",
        "small",
        "start",
        "to",
        "word",
    )

    def __init__(self, word: int, to: int, psn: int, length: int) -> None:
        self.word = word
        self.opcode = word >> _OPCODE_SHIFT & _OPCODE
        #: the addressing word as it came
        self.to = to
        self.generation = to >> _GENERATION_SHIFT
        self.job_id = to >> _JOB_SHIFT & _JOB
        self.pid = to >> _PID_SHIFT & _PID
        self.index = to >> _INDEX_SHIFT & _INDEX
        self.psn = psn
        self.length = length
        #: without an identifier of its own the message is this packet
        self.has_id = False
        #: a small request: neither initiator nor match bits
        self.small = False
        self.message_id = 0
        self.buffer_offset = 0
        self.initiator = 0
        self.match_bits = 0
        self.header_data: int | None = None
        #: place of this packet in the message, and octets that it has by the header; ``None``
        #: where that is what remains of the packet
        self.start = 0
        self.octets: int | None = None
        #: its extension header, empty without one
        self.extension = memoryview(b"")
        self.payload = memoryview(b"")

    @property
    def identity(self) -> int:
        """First header word without what differs between packets of one message.

        Bit 16 marks those whose extension header stands before the payload.
        """
        return self.word & ~(FREE | _IE_BIT) | (self.opcode in _EXTENDED) << 16

    @property
    def signature(self) -> tuple[int, ...]:
        """Return what all packets of one message have in common."""
        return (self.identity, self.to, self.match_bits, self.buffer_offset, self.length)

    @property
    def version(self) -> int:
        return self.word & _VERSION

    @property
    def relative(self) -> bool:
        return self.word & _REL_BIT != 0

    @property
    def delivery_complete(self) -> bool:
        return self.word & _DC_BIT != 0

    @property
    def initiator_error(self) -> bool:
        return self.word & _IE_BIT != 0

    @property
    def is_first(self) -> bool:
        return self.word & _SOM_BIT != 0

    @property
    def is_last(self) -> bool:
        return self.word & _EOM_BIT != 0

    @property
    def tokens(self) -> tuple[int, int]:
        """(initiator's, target's) restart token of a deferrable send or of its restart."""
        both = self.match_bits if self.opcode == Opcode.DEFERRABLE_RTR else self.buffer_offset
        return both >> 32, both & 0xFFFF_FFFF

    @property
    def keys(self) -> tuple[int, ...]:
        """Memory keys it may mean: a small request names an optimized key by its index only."""
        if self.small:
            return OPTIMIZED | self.index, OPTIMIZED | IDEMPOTENT_SAFE | self.index
        return (self.match_bits,)

    @property
    def awaited(self) -> int:
        """Octets that the packets of its message carry: of a rendezvous send the eager part."""
        if self.opcode in _RENDEZVOUS and self.extension:
            return int(headers.SES_RENDEZVOUS.unpack_from(self.extension)[0])
        return self.length

    def weight(self, mtu: int) -> int:
        """Octets by which it brings its message forward: payload, or requested data."""
        return self.asked(mtu) if self.opcode == Opcode.READ else len(self.payload)

    def consistent(self, mtu: int) -> bool:
        """Return whether the lengths agree with each other (UES 3.4.1, receive checks).

        ``mtu`` bounds what one packet may request.
        """
        opcode, length, octets = self.opcode, self.length, len(self.payload)
        placed = opcode in _PLACED or opcode in _RENDEZVOUS
        if placed and self.octets is not None and octets != self.octets:
            return False
        if opcode in _PLACED:
            if self.start + octets > length or (not self.has_id and octets != length):
                return False
            if opcode == SYNC_WRITE and not self.extension:
                return False
            # A deferred message is ended by a last packet without payload.
            given_up = opcode in _DEFERRABLE and self.is_last and not self.is_first
            return octets > 0 or not length or given_up
        if opcode == Opcode.READ:
            return not octets and self._asks_sensibly(mtu)
        if opcode in _RENDEZVOUS:
            if not self.extension:
                return False
            eager = self.awaited
            if octets != eager and not (self.has_id and octets):
                return False
            return bool(self.start + octets <= eager <= length)
        if opcode in _ATOMIC:
            return len(self.extension) > 0 and self.is_first
        return True

    def _asks_sensibly(self, mtu: int) -> bool:
        if not self.has_id and self.length > mtu:
            return False
        asked = self.asked(mtu)
        return (
            asked <= mtu and self.start + asked <= self.length and (asked > 0) == (self.length > 0)
        )

    def asked(self, mtu: int) -> int:
        """Octets that a READ packet requests: the first packet requests one MTU if it can."""
        return min(self.length, mtu) if self.octets is None else self.octets


def parse(
    next_header: int, packet: memoryview, at: int, psn: int, *, sync: bool
) -> RequestArrival | None:
    """The request whose header begins at ``at``; ``None`` if its base header is not all there.

    ``sync``: the extension of synchronised operations is understood.
    """
    left = len(packet) - at
    if next_header == NextHeader.REQUEST_STD:
        if left < _STD_SIZE:
            return None
        if packet[at + 1] & _SOM_BIT:
            word, number, to, offset, initiator, bits, data, length = _SOM.unpack_from(packet, at)
            arrival = RequestArrival(word, to, psn, length)
            if word & _HD_BIT:
                arrival.header_data = data
        else:
            word, number, to, offset, initiator, bits, octets, start, length = _NOSOM.unpack_from(
                packet, at
            )
            arrival = RequestArrival(word, to, psn, length)
            arrival.octets = octets & _PAYLOAD_LENGTH
            arrival.start = start
        arrival.has_id = True
        arrival.message_id = number
        arrival.buffer_offset = offset
        arrival.initiator = initiator
        arrival.match_bits = bits
        at += _STD_SIZE
    elif next_header == NextHeader.REQUEST_MEDIUM:
        if left < _MEDIUM.size:
            return None
        word, to, offset, initiator, bits = _MEDIUM.unpack_from(packet, at)
        arrival = RequestArrival(word >> _SHORT, to, psn, word & _SHORT_LENGTH)
        if arrival.word & _HD_BIT:
            arrival.header_data = offset
        else:
            arrival.buffer_offset = offset
        arrival.initiator = initiator
        arrival.match_bits = bits
        at += _MEDIUM.size
    elif next_header == NextHeader.REQUEST_SMALL:
        if left < _SMALL.size:
            return None
        word, to, offset = _SMALL.unpack_from(packet, at)
        arrival = RequestArrival(word >> _SHORT, to, psn, word & _SHORT_LENGTH)
        arrival.small = True
        arrival.buffer_offset = offset
        at += _SMALL.size
    else:
        return None
    size = _extension_size(arrival.opcode, packet, at, sync)
    if size:
        if at + size > len(packet):
            arrival.payload = packet[len(packet) :]
            return arrival
        arrival.extension = packet[at:] if arrival.opcode in _ATOMIC else packet[at : at + size]
    arrival.payload = packet[at + size :]
    return arrival


def _extension_size(opcode: int, packet: memoryview, at: int, sync: bool) -> int:
    if opcode in _RENDEZVOUS:
        return headers.SES_RENDEZVOUS.size
    if opcode >= SYNC_WRITE and not sync:
        return 0
    if opcode == SYNC_WRITE:
        return SYNC_EXTENSION
    if opcode not in _ATOMIC:
        return 0
    before = SYNC_EXTENSION if opcode == SYNC_ATOMIC else 0
    long = at + before < len(packet) and packet[at + before] in _CSWAP
    return before + (headers.SES_CSWAP.size if long else headers.SES_ATOMIC.size)
