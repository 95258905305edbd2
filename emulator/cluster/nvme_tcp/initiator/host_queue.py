"""A host's queue sends commands and takes completions, without a socket (NVMe/TCP)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from emulator.cluster.nvme_tcp.initiator.host_commands import AT_CID, AT_SGL
from emulator.cluster.nvme_tcp.wire.layouts import (
    IN_CAPSULE,
    IN_TRANSPORT,
    SGL,
    NvmeCompletion,
    NvmeStatus,
    completion_of,
)
from emulator.cluster.nvme_tcp.wire.pdu import (
    AT_ALIGNMENT,
    AT_CCCID,
    AT_DGST,
    AT_FLAGS,
    AT_LENGTH,
    AT_MAXIMUM,
    AT_PFV,
    COMMON,
    DATA,
    DATA_DIGEST,
    HEADER_DIGEST,
    INITIALIZE,
    LAST_PDU,
    LEAST_MAXH2CDATA,
    MOST_ALIGNMENT,
    R2T,
    SUCCESS,
    TERMINATE,
    FatalError,
    Pdu,
    PduError,
    PduReader,
    PduType,
    PduWriter,
)

_IDS = 1 << 16


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Parameters of ICReq for one queue, and limits of its commands."""

    header_digest: bool
    data_digest: bool
    alignment: int
    r2ts: int
    #: Commands that may be outstanding: SQSIZE.
    depth: int
    #: Data that fits into a command capsule.
    in_capsule: int
    #: Most data of a command.
    most_transfer: int


@dataclass(frozen=True, slots=True)
class CommandDone:
    """A completed command: the token of its submitter, its completion, its data, its time."""

    token: Any
    completion: NvmeCompletion
    data: bytes
    elapsed_ns: int


@dataclass(slots=True)
class _Request:
    """An outstanding command."""

    token: Any
    began_ns: int
    deadline_ns: int | None
    upload: bytes
    #: Octets that the controller is to send, and what has come of them: of one PDU as they are.
    download: int
    data: bytes | bytearray = b""
    came: int = 0
    r2ts: int = 0
    spoiled: bool = False


@dataclass(slots=True)
class _Upload:
    """Data that an R2T has requested and that is still to be sent."""

    cid: int
    ttag: int
    next: int
    end: int


@dataclass
class HostQueueCounters:
    """Counters of a queue."""

    commands: int = 0
    octets_written: int = 0
    octets_read: int = 0
    r2ts: int = 0
    data_digest_errors: int = 0
    bad_pdus: int = 0
    timeouts: int = 0
    failed_commands: int = 0


class HostQueue:
    """Send commands and take completions of one queue, octets in and octets out.

    Commands may be submitted once :attr:`ready`; :attr:`broken` says why the queue has ended.
    """

    def __init__(self, settings: QueueSettings, now_ns: int, connect_ns: int) -> None:
        self.settings = settings
        self.counters = HostQueueCounters()
        self.ready = False
        self.broken: str | None = None
        limits = {
            PduType.IC_RESP: 0,
            PduType.C2H_TERM_REQ: 0,
            PduType.CAPSULE_RESP: 0,
            PduType.C2H_DATA: settings.most_transfer,
            PduType.R2T: 0,
        }
        self._reader = PduReader(limits)
        self._reader.alignment = settings.alignment
        self._writer = PduWriter()
        self._maxh2cdata = LEAST_MAXH2CDATA
        self._requests: dict[int, _Request] = {}
        self._next_cid = 0
        self._out: deque[list[bytes]] = deque()
        self._uploads: deque[_Upload] = deque()
        self._done: list[CommandDone] = []
        self._connect_deadline: int | None = now_ns + connect_ns
        digests = (HEADER_DIGEST if settings.header_digest else 0) | (
            DATA_DIGEST if settings.data_digest else 0
        )
        self._digests = digests
        self._out.append(
            [
                self._writer.initialize(
                    PduType.IC_REQ, settings.alignment, digests, settings.r2ts - 1
                )
            ]
        )

    # -- commands ----------------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Return the number of commands that have not completed."""
        return len(self._requests)

    def submit(
        self,
        entry: bytearray,
        token: Any,
        now_ns: int,
        *,
        upload: bytes = b"",
        download: int = 0,
        timeout_ns: int | None = None,
    ) -> int:
        """Send a command with its data, or for so many octets; return its CID."""
        if not self.ready or self.broken is not None:
            raise RuntimeError("the queue is not connected")
        if len(self._requests) >= self.settings.depth:
            raise RuntimeError("the queue is full")
        cid = self._next_cid
        while cid in self._requests:
            cid = (cid + 1) % _IDS
        self._next_cid = (cid + 1) % _IDS
        entry[AT_CID : AT_CID + 2] = cid.to_bytes(2, "little")
        inside = bool(upload) and len(upload) <= self.settings.in_capsule
        SGL.pack_into(
            entry, AT_SGL, 0, len(upload) or download, IN_CAPSULE if inside else IN_TRANSPORT
        )
        self._requests[cid] = _Request(
            token, now_ns, None if timeout_ns is None else now_ns + timeout_ns,
            b"" if inside else upload, download,
        )  # fmt: skip
        self.counters.commands += 1
        self.counters.octets_written += len(upload)
        self._out.append(
            self._writer.capsule(PduType.CAPSULE_CMD, bytes(entry), upload if inside else b"")
        )
        return cid

    def take_completions(self) -> list[CommandDone]:
        """Return the commands that have completed since the last call."""
        done, self._done = self._done, []
        return done

    # -- octets and time ---------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Tell whether there is something for :meth:`octets_to_send`."""
        return bool(self._out or self._uploads)

    def octets_to_send(self, most: int) -> list[bytes]:
        """Return PDUs to send, some ``most`` octets of them; uploads take turns."""
        parts: list[bytes] = []
        size = 0
        while size < most:
            if self._out:
                pdu = self._out.popleft()
            elif self._uploads:
                pdu = self._next_piece(self._uploads.popleft())
            else:
                break
            parts += pdu
            size += sum(map(len, pdu))
        return parts

    def receive(self, octets: bytes | memoryview, now_ns: int) -> None:
        """Take octets of the TCP connection; never raises on what they are."""
        if self.broken is not None:
            return
        try:
            self._reader.feed(octets)
            while self.broken is None and (pdu := self._reader.next_pdu()) is not None:
                self._dispatch(pdu, now_ns)
        except PduError as error:
            self.counters.bad_pdus += 1
            self.fail(f"{error.status.name.lower()}: {error}")
            self._out.append([self._writer.terminate(PduType.H2C_TERM_REQ, error)])

    def next_deadline(self) -> int | None:
        """Return the time at which to call :meth:`handle_timer`, or None."""
        deadlines = (request.deadline_ns for request in self._requests.values())
        known = [at for at in deadlines if at is not None]
        if self._connect_deadline is not None:
            known.append(self._connect_deadline)
        return min(known, default=None)

    def handle_timer(self, now_ns: int) -> None:
        """Break the queue where a command, or ICResp, has not come in time."""
        deadline = self.next_deadline()
        if deadline is not None and deadline <= now_ns and self.broken is None:
            self.counters.timeouts += 1
            self.fail("a command was not completed in time" if self.ready else "no ICResp came")

    def fail(self, reason: str) -> None:
        """End the queue; its outstanding commands never complete."""
        if self.broken is None:
            self.broken = reason
            self._connect_deadline = None
            self._requests.clear()
            self._uploads.clear()
            self._out.clear()

    # -- PDUs that arrive --------------------------------------------------------------------------

    def _dispatch(self, pdu: Pdu, now_ns: int) -> None:
        if pdu.kind is PduType.C2H_TERM_REQ:
            *_, status, information = TERMINATE.unpack(pdu.header)
            self.fail(f"the controller has requested termination: FES {status}, FEI {information}")
        elif pdu.kind is PduType.IC_RESP:
            self._initialize(pdu)
        elif not self.ready:
            raise PduError(FatalError.SEQUENCE_ERROR, 0, pdu.header, "no ICResp came first")
        elif pdu.kind is PduType.C2H_DATA:
            self._controller_data(pdu, now_ns)
        elif pdu.kind is PduType.R2T:
            self._requested(pdu)
        else:
            completion = completion_of(pdu.header, COMMON.size)
            self._complete(self._request(completion.cid, pdu, COMMON.size + 12), completion, now_ns)

    def _initialize(self, pdu: Pdu) -> None:
        """Take ICResp (NVMe/TCP, 3.6.2.3)."""
        if self.ready:
            raise PduError(FatalError.SEQUENCE_ERROR, 0, pdu.header, "a second ICResp")
        *_, version, alignment, digests, most = INITIALIZE.unpack(pdu.header)
        for bad, place, words in (
            (version, AT_PFV, f"PFV {version}"),
            (alignment > MOST_ALIGNMENT, AT_ALIGNMENT, f"CPDA {alignment}"),
            (digests != self._digests, AT_DGST, "the controller does not do the digests"),
            (most < LEAST_MAXH2CDATA or most % 4, AT_MAXIMUM, f"MAXH2CDATA {most}"),
        ):
            if bad:
                raise PduError(FatalError.UNSUPPORTED_PARAMETER, place, pdu.header, words)
        self._reader.header_digest = self._writer.header_digest = self.settings.header_digest
        self._reader.data_digest = self._writer.data_digest = self.settings.data_digest
        self._writer.alignment = alignment
        self._maxh2cdata = most
        self._connect_deadline = None
        self.ready = True

    def _request(self, cid: int, pdu: Pdu, place: int = AT_CCCID) -> _Request:
        request = self._requests.get(cid)
        if request is None:
            raise PduError(
                FatalError.INVALID_HEADER_FIELD, place, pdu.header, f"no command has CID {cid}"
            )
        return request

    def _controller_data(self, pdu: Pdu, now_ns: int) -> None:
        """Take C2HData, in order (NVMe/TCP, 3.6.2.9)."""
        _, flags, _, _, _, cid, _, offset, length = DATA.unpack(pdu.header)
        request = self._request(cid, pdu)
        if length != len(pdu.data):
            raise PduError(
                FatalError.INVALID_HEADER_FIELD, AT_LENGTH, pdu.header, f"DATAL {length}"
            )
        end = offset + length
        if offset != request.came or end > request.download:
            raise PduError(
                FatalError.DATA_OUT_OF_RANGE, 0, pdu.header, f"data from {offset} to {end}"
            )
        if flags & SUCCESS and not flags & LAST_PDU:
            raise PduError(
                FatalError.INVALID_HEADER_FIELD, AT_FLAGS, pdu.header, "SUCCESS without LAST_PDU"
            )
        if not pdu.data_intact:
            self.counters.data_digest_errors += 1
            request.spoiled = True
        if length == request.download:
            request.data = pdu.data
        else:
            if not request.data:
                request.data = bytearray(request.download)
            assert isinstance(request.data, bytearray)  # what is not whole began one
            request.data[offset:end] = pdu.data
        request.came = end
        self.counters.octets_read += length
        if flags & SUCCESS:
            self._complete(request, NvmeCompletion(0, 0, 0, cid, NvmeStatus.SUCCESS), now_ns)

    def _complete(self, request: _Request, completion: NvmeCompletion, now_ns: int) -> None:
        if completion.ok:
            if request.spoiled:
                completion = completion._replace(status=NvmeStatus.TRANSIENT_TRANSPORT_ERROR)
            elif request.came < request.download:
                completion = completion._replace(status=NvmeStatus.DATA_TRANSFER_ERROR)
        if not completion.ok:
            self.counters.failed_commands += 1
        del self._requests[completion.cid]
        if request.r2ts:  # it failed while it was fetched
            self._uploads = deque(one for one in self._uploads if one.cid != completion.cid)
        data = bytes(request.data) if completion.ok else b""  # copies no bytes object
        self._done.append(CommandDone(request.token, completion, data, now_ns - request.began_ns))

    def _requested(self, pdu: Pdu) -> None:
        """Take R2T (NVMe/TCP, 3.6.2.10)."""
        *_, cid, ttag, offset, length = R2T.unpack(pdu.header)
        request = self._request(cid, pdu)
        if not length or offset + length > len(request.upload):
            raise PduError(
                FatalError.DATA_OUT_OF_RANGE, 0, pdu.header, f"R2T from {offset}, {length} octets"
            )
        if request.r2ts >= self.settings.r2ts:
            raise PduError(FatalError.LIMIT_EXCEEDED, 0, pdu.header, "more R2Ts than MAXR2T")
        request.r2ts += 1
        self.counters.r2ts += 1
        self._uploads.append(_Upload(cid, ttag, offset, offset + length))

    def _next_piece(self, upload: _Upload) -> list[bytes]:
        request = self._requests[upload.cid]
        start = upload.next
        end = min(start + self._maxh2cdata, upload.end)
        upload.next = end
        flags = 0
        if end == upload.end:
            flags = LAST_PDU
            request.r2ts -= 1
        else:
            self._uploads.append(upload)
        octets = request.upload[start:end]
        return self._writer.data(PduType.H2C_DATA, flags, upload.cid, upload.ttag, start, octets)
