"""Requests on registered memory: write, read and atomic operations (UES 3.4.1).

The checks, in order: the key is known and open to the job, the region's rights allow it, the range
lies inside; then the operation's own checks. A failed check is reported by its return code, a
positive number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

from uet.pds.semantics import ACCEPTED, NO_ROOM, Answer, Context, Outbound, Response
from uet.profiles import FepCapability
from uet.ses.arrival import SYNC_ATOMIC, SYNC_EXTENSION, SYNC_WRITE, RequestArrival
from uet.ses.facilities import Facilities
from uet.ses.memory.atomic_operations import execute
from uet.ses.memory.operands import unpack_operands
from uet.ses.memory.registered_memory import IDEMPOTENT_SAFE, RegisteredRegion
from uet.ses.responses import data_header, data_response, response
from uet.timekeeper import Timekeeper
from uet.transport import Completion
from uet.wire import headers
from uet.wire.codes import CSWAP_OPCODES, NextHeader, Opcode, ReturnCode

_RESPONSE_DATA: Final = int(NextHeader.RESPONSE_DATA)
_RESPONSE_DATA_SMALL: Final = int(NextHeader.RESPONSE_DATA_SMALL)


class ReturnData(Outbound):
    """The data that one request packet reads.

    A READ of several packets is requested packet by packet, and each draws one of these.
    """

    __slots__ = (
        "_data",
        "_header",
        "by",
        "key",
        "offset",
    )

    def __init__(
        self,
        request: RequestArrival,
        data: memoryview | bytes,
        *,
        key: int | None = None,
        offset: int = 0,
        by: object = None,
    ) -> None:
        next_header = _RESPONSE_DATA if request.has_id else _RESPONSE_DATA_SMALL
        super().__init__(request.message_id, next_header, 1)
        #: the region that was read, where, and by which message, if one was and has taken the data
        self.key = key
        self.offset = offset
        self.by = by
        self._header = data_header(request, len(data))
        self._data = data

    def __len__(self) -> int:
        """Octets of data."""
        return len(self._data)

    def packet(self, index: int) -> tuple[bytes, memoryview | bytes]:
        """SES header and data; ``index`` is 0."""
        return self._header, self._data

    def answered(self, index: int, next_header: int, response: memoryview) -> None:
        """Note that the initiator has refused the data: it does not count as read."""
        self.key = None


#: Extension header of a member: group, and how many the group has where this one carries it.
SYNC_HEADER: Final = headers.SES_SYNC
#: Groups that may be open at once, and for how long (ns), as the UEC reference provider has it.
MOST_GROUPS: Final = 4_096
LIFETIME: Final = 60_000_000_000


class _Group:
    __slots__ = ("arrived", "begun", "expected", "header_data", "octets")

    def __init__(self, begun: int) -> None:
        self.begun = begun
        self.arrived = 0
        self.expected = 0
        self.octets = 0
        self.header_data: int | None = None


class SyncGroups:
    """Groups of synchronised operations that are not complete; one report once all have arrived.

    Opcodes and extension are those of the UEC reference provider; UES 1.0 reserves their numbers.
    The terminating operation carries the number of members, others 0.
    """

    def __init__(self, complete: Callable[[Completion], None], time: Timekeeper) -> None:
        self._complete = complete
        self._groups: OrderedDict[tuple[str, int, int], _Group] = OrderedDict()
        self._time = time

    @staticmethod
    def read(extension: memoryview, initiator: int) -> tuple[int, int, int]:
        """(initiator, group, number of members or 0) of an operation."""
        group, expected = SYNC_HEADER.unpack_from(extension)
        return initiator, group, expected

    def arrived(
        self,
        peer: str,
        member: tuple[int, int, int],
        key: int,
        offset: int,
        length: int,
        header_data: int | None,
    ) -> None:
        """An operation has been carried out; if it was the last of its group, report it."""
        initiator, number, expected = member
        groups = self._groups
        while groups:
            oldest = next(iter(groups))
            if len(groups) <= MOST_GROUPS and self._time.now - groups[oldest].begun < LIFETIME:
                break
            del groups[oldest]
        name = (peer, initiator, number)
        group = groups.get(name)
        if group is None:
            group = groups[name] = _Group(self._time.now)
        group.arrived += 1
        group.octets += length
        group.expected = max(group.expected, expected)
        if header_data is not None:
            group.header_data = header_data
        if group.expected and group.arrived >= group.expected:
            del groups[name]
            self._complete(
                Completion(
                    kind="remote_write",
                    peer=peer,
                    length=group.octets,
                    header_data=group.header_data,
                    key=key,
                    offset=offset,
                    initiator=initiator,
                )
            )


_OK: Final = int(ReturnCode.OK)
_BAD_ADDR: Final = int(ReturnCode.BAD_ADDR)
#: Packets of return data that may wait on one PDC; a request that finds so many comes again.
MOST_READBACKS: Final = 4_096
_FETCHING: Final = frozenset({int(Opcode.FETCHING_ATOMIC), int(Opcode.TSEND_FETCH_ATOMIC)})
#: Called with the address of a peer, a key, and the memory that a write of that peer under that key
#: is for, as it begins; gives the memory that it goes to.
Guard = Callable[[str, int, memoryview], memoryview]


class MemoryAccess:
    """Carries out the requests of peers on one endpoint's registered memory.

    ``served`` is called with (key, offset, length, message) of what a peer has confirmed to have
    read. That may be the rest of a rendezvous send.  ``guard`` may send writes elsewhere.
    """

    def __init__(
        self,
        facilities: Facilities,
        served: Callable[[int, int, int, object], None],
    ) -> None:
        config = facilities.config
        self._memory = facilities.memory
        self._served = served
        self.guard: Guard | None = None
        self._complete = facilities.complete
        self._counters = facilities.counters
        self._mtu = config.payload_mtu
        self._most_in_ack = config.max_ack_data_size
        self._swaps = FepCapability.FETCHING_ATOMIC in config.capabilities
        self._overrun = int(
            ReturnCode.UNSUPPORTED_SIZE
            if config.compatibility.region_overrun_is_unsupported_size
            else _BAD_ADDR
        )
        self.sync = SyncGroups(facilities.complete, facilities.time)

    def region(
        self, request: RequestArrival, length: int, *, write: bool, read: bool
    ) -> RegisteredRegion | int:
        """The region in question, or the code of the first check that fails."""
        for key in request.keys:
            region = self._memory.find(key)
            if region is not None:
                break
        else:
            return int(ReturnCode.BAD_MKEY)
        if region.job_id is not None and region.job_id != request.job_id:
            return int(ReturnCode.BAD_MKEY)
        if (write and not region.writable) or (read and not region.readable):
            return int(ReturnCode.PERM_VIOLATION)
        if request.buffer_offset + length > len(region.memory):
            return self._overrun if write else _BAD_ADDR
        return region

    def is_unsafe(self, request: RequestArrival) -> bool:
        """Return whether the request's region is not safe for idempotent requests.

        The region is one of the request's job.

        The request's key marks the region as idempotent (bit 63), and that of the region does not.
        """
        for key in request.keys:
            region = self._memory.find(key & ~IDEMPOTENT_SAFE)
            if region is not None and region.job_id in (None, request.job_id):
                return True
        return False

    # -- write -------------------------------------------------------------------------------

    def written(
        self,
        peer: str,
        key: int,
        offset: int,
        length: int,
        header_data: int | None,
        group: tuple[int, int, int] | None = None,
    ) -> None:
        """Every octet is in place; header data makes that a completion (UES 3.4.1)."""
        self._counters["rx_messages"] += 1
        self._counters["rx_message_octets"] += length
        if group is not None:
            self.sync.arrived(peer, group, key, offset, length, header_data)
        elif header_data is not None:
            self._complete(
                Completion(
                    kind="remote_write",
                    peer=peer,
                    length=length,
                    header_data=header_data,
                    key=key,
                    offset=offset,
                )
            )

    # -- read --------------------------------------------------------------------------------

    def read(self, pdc: Context, request: RequestArrival) -> Answer:
        """A READ packet: its data in the answer, or on the return direction (UES 3.5.20.1).

        Where it goes depends on the whole message's length, so that all of it goes one way.
        """
        region = self.region(request, request.length, write=False, read=True)
        if isinstance(region, int):
            return region
        if pdc.backlog >= MOST_READBACKS:
            return NO_ROOM
        data = self._data(region, request)
        if not data:
            return ACCEPTED
        offset = request.buffer_offset + request.start
        by = (pdc.id, request.message_id)
        if request.length <= self._most_in_ack:
            answer = data_response(request, data)
            answer.known = partial(self._served, region.key, offset, len(data), by)
            return answer
        pdc.post(ReturnData(request, data, key=region.key, offset=offset, by=by))
        return ACCEPTED

    def _data(self, region: RegisteredRegion, request: RequestArrival) -> memoryview:
        asked = request.asked(self._mtu)
        begin = request.buffer_offset + request.start
        self._counters["tx_read_octets"] += asked
        return region.memory[begin : begin + asked]

    def read_inline(self, request: RequestArrival) -> Response:
        """A READ packet without a PDC: always in the answer, up to one payload MTU (UES 3.5.3)."""
        region = self.region(request, request.length, write=False, read=True)
        if isinstance(region, int):
            return response(request, region)
        return data_response(request, self._data(region, request))

    def return_data_end(self, message: ReturnData) -> None:
        """End a read whose initiator has the data, or whose PDC has failed."""
        if message.error is None and message.key is not None:
            self._served(message.key, message.offset, len(message), message.by)

    # -- atomic ------------------------------------------------------------------------------

    def atomic(self, pdc: Context, request: RequestArrival) -> Answer:
        """An atomic operation, executed here and now; PDS sees to it that it is only once."""
        extension = request.extension
        group = None
        if request.opcode == SYNC_ATOMIC:
            group = SyncGroups.read(extension, request.initiator)
            extension = extension[SYNC_EXTENSION:]
        requested = unpack_operands(extension)
        if requested is None:
            return int(ReturnCode.OP_VIOLATION)
        length = requested.target_length(request.length)
        fetching = request.opcode in _FETCHING
        region = self.region(request, length, write=True, read=fetching)
        if isinstance(region, int):
            return region
        if requested.operation in CSWAP_OPCODES and not self._swaps:
            return int(ReturnCode.AMO_UNSUPPORTED_OP)
        offset = request.buffer_offset
        code, before = execute(
            requested.operation,
            requested.datatype,
            region.memory[offset : offset + length],
            requested.operand,
            requested.compare,
            offset=offset,
        )
        if code != _OK:
            return code
        self.written(pdc.address, region.key, offset, length, request.header_data, group)
        return self.executed(pdc, request, before)

    def executed(self, pdc: Context, request: RequestArrival, before: bytes) -> Answer:
        """The answer to an atomic operation: the original value, if it is fetched."""
        if request.opcode not in _FETCHING:
            return ACCEPTED
        if len(before) <= self._most_in_ack:
            return data_response(request, before)
        pdc.post(ReturnData(request, before))
        return ACCEPTED

    @staticmethod
    def group(request: RequestArrival) -> tuple[int, int, int] | None:
        """The group that a synchronised write belongs to."""
        if request.opcode != SYNC_WRITE or not request.extension:
            return None
        return SyncGroups.read(request.extension, request.initiator)
