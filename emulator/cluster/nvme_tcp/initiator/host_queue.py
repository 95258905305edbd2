"""A host's queue sends commands and takes completions, without a socket (NVMe/TCP).

Here are also the submission queue entries that it makes, and the errors that a user can act on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from emulator.cluster.nvme_tcp.wire import layouts as nvme
from emulator.cluster.nvme_tcp.wire import pdu as wire
from emulator.errors import UserError

#: Offsets of CID and of the SGL descriptor within an entry (Base 2.0, 3.3.3.1).
AT_CID, AT_SGL = 2, 24


def entry(opcode: int, nsid: int = 0, *dwords: int) -> bytearray:
    """Make an entry with CDW10 and the dwords behind it."""
    six = (*dwords, 0, 0, 0, 0, 0, 0)[:6]
    return bytearray(nvme.SQE.pack(opcode, nvme.USES_SGL, 0, nsid, 0, 0, 0, 0, *six))


def io_entry(opcode: int, nsid: int, lba: int, blocks: int, flags: int = 0) -> bytearray:
    """Make a Read, Write, Compare or Write Zeroes; ``flags`` go into CDW12."""
    return entry(opcode, nsid, lba & 0xFFFFFFFF, lba >> 32, blocks - 1 | flags)


def identify_entry(cns: nvme.IdentifyCns, nsid: int = 0) -> bytearray:
    return entry(nvme.AdminOpcode.IDENTIFY, nsid, cns)


def log_entry(page: int, offset: int, length: int) -> bytearray:
    """Make a Get Log Page command for ``length`` octets, a multiple of 4."""
    dwords = length // 4 - 1
    return entry(
        nvme.AdminOpcode.GET_LOG_PAGE, 0xFFFFFFFF, page | (dwords & 0xFFFF) << 16, dwords >> 16,
        offset & 0xFFFFFFFF, offset >> 32,
    )  # fmt: skip


def connect_entry(qid: int, sqsize: int, keep_alive_ms: int, *, flow_control: bool) -> bytearray:
    """Make a Connect command; :func:`connect_data` makes its data."""
    return bytearray(
        nvme.CONNECT.pack(
            opcode=nvme.FABRICS,
            flags=nvme.USES_SGL,
            fctype=nvme.FabricsType.CONNECT,
            qid=qid,
            sqsize=sqsize,
            cattr=0 if flow_control else nvme.DISABLE_FLOW_CONTROL,
            kato=keep_alive_ms,
        )
    )


def connect_data(identifier: bytes, cntlid: int, subsystem: str, host: str) -> bytes:
    return nvme.CONNECT_DATA.pack(
        hostid=identifier, cntlid=cntlid, subnqn=subsystem.encode(), hostnqn=host.encode()
    )


def property_get_entry(offset: nvme.Property) -> bytearray:
    return bytearray(
        nvme.PROPERTY.pack(
            opcode=nvme.FABRICS,
            flags=nvme.USES_SGL,
            fctype=nvme.FabricsType.PROPERTY_GET,
            attrib=int(offset in nvme.LONG_PROPERTIES),
            ofst=offset,
        )
    )


def property_set_entry(offset: nvme.Property, value: int) -> bytearray:
    """Make a Property Set command of a property of 4 octets."""
    return bytearray(
        nvme.PROPERTY.pack(
            opcode=nvme.FABRICS,
            flags=nvme.USES_SGL,
            fctype=nvme.FabricsType.PROPERTY_SET,
            ofst=offset,
            value=value,
        )
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
    completion: nvme.NvmeCompletion
    data: bytes
    elapsed_ns: int


@dataclass(slots=True)
class _Request:
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
            wire.PduType.IC_RESP: 0,
            wire.PduType.C2H_TERM_REQ: 0,
            wire.PduType.CAPSULE_RESP: 0,
            wire.PduType.C2H_DATA: settings.most_transfer,
            wire.PduType.R2T: 0,
        }
        self._reader = wire.PduReader(limits)
        self._reader.alignment = settings.alignment
        self._writer = wire.PduWriter()
        self._maxh2cdata = wire.LEAST_MAXH2CDATA
        self._requests: dict[int, _Request] = {}
        self._next_cid = 0
        self._out: deque[list[bytes]] = deque()
        self._uploads: deque[_Upload] = deque()
        self._done: list[CommandDone] = []
        self._connect_deadline: int | None = now_ns + connect_ns
        digests = (wire.HEADER_DIGEST if settings.header_digest else 0) | (
            wire.DATA_DIGEST if settings.data_digest else 0
        )
        self._digests = digests
        self._out.append(
            [
                self._writer.initialize(
                    wire.PduType.IC_REQ, settings.alignment, digests, settings.r2ts - 1
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
        nvme.SGL.pack_into(
            entry,
            AT_SGL,
            0,
            len(upload) or download,
            nvme.IN_CAPSULE if inside else nvme.IN_TRANSPORT,
        )
        self._requests[cid] = _Request(
            token, now_ns, None if timeout_ns is None else now_ns + timeout_ns,
            b"" if inside else upload, download,
        )  # fmt: skip
        self.counters.commands += 1
        self.counters.octets_written += len(upload)
        self._out.append(
            self._writer.capsule(wire.PduType.CAPSULE_CMD, bytes(entry), upload if inside else b"")
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
        except wire.PduError as error:
            self.counters.bad_pdus += 1
            self.fail(f"{error.status.name.lower()}: {error}")
            self._out.append([self._writer.terminate(wire.PduType.H2C_TERM_REQ, error)])

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

    def _dispatch(self, pdu: wire.Pdu, now_ns: int) -> None:
        if pdu.kind is wire.PduType.C2H_TERM_REQ:
            *_, status, information = wire.TERMINATE.unpack(pdu.header)
            self.fail(f"the controller has requested termination: FES {status}, FEI {information}")
        elif pdu.kind is wire.PduType.IC_RESP:
            self._initialize(pdu)
        elif not self.ready:
            raise wire.PduError(
                wire.FatalError.SEQUENCE_ERROR, 0, pdu.header, "no ICResp came first"
            )
        elif pdu.kind is wire.PduType.C2H_DATA:
            self._controller_data(pdu, now_ns)
        elif pdu.kind is wire.PduType.R2T:
            self._requested(pdu)
        else:
            completion = nvme.completion_of(pdu.header, wire.COMMON.size)
            self._complete(
                self._request(completion.cid, pdu, wire.COMMON.size + 12), completion, now_ns
            )

    def _initialize(self, pdu: wire.Pdu) -> None:
        """Take ICResp (NVMe/TCP, 3.6.2.3)."""
        if self.ready:
            raise wire.PduError(wire.FatalError.SEQUENCE_ERROR, 0, pdu.header, "a second ICResp")
        *_, version, alignment, digests, most = wire.INITIALIZE.unpack(pdu.header)
        for bad, place, words in (
            (version, wire.AT_PFV, f"PFV {version}"),
            (alignment > wire.MOST_ALIGNMENT, wire.AT_ALIGNMENT, f"CPDA {alignment}"),
            (digests != self._digests, wire.AT_DGST, "the controller does not do the digests"),
            (most < wire.LEAST_MAXH2CDATA or most % 4, wire.AT_MAXIMUM, f"MAXH2CDATA {most}"),
        ):
            if bad:
                raise wire.PduError(wire.FatalError.UNSUPPORTED_PARAMETER, place, pdu.header, words)
        self._reader.header_digest = self._writer.header_digest = self.settings.header_digest
        self._reader.data_digest = self._writer.data_digest = self.settings.data_digest
        self._writer.alignment = alignment
        self._maxh2cdata = most
        self._connect_deadline = None
        self.ready = True

    def _request(self, cid: int, pdu: wire.Pdu, place: int = wire.AT_CCCID) -> _Request:
        request = self._requests.get(cid)
        if request is None:
            raise wire.PduError(
                wire.FatalError.INVALID_HEADER_FIELD, place, pdu.header, f"no command has CID {cid}"
            )
        return request

    def _controller_data(self, pdu: wire.Pdu, now_ns: int) -> None:
        """Take C2HData, in order (NVMe/TCP, 3.6.2.9)."""
        _, flags, _, _, _, cid, _, offset, length = wire.DATA.unpack(pdu.header)
        request = self._request(cid, pdu)
        if length != len(pdu.data):
            raise wire.PduError(
                wire.FatalError.INVALID_HEADER_FIELD, wire.AT_LENGTH, pdu.header, f"DATAL {length}"
            )
        end = offset + length
        if offset != request.came or end > request.download:
            raise wire.PduError(
                wire.FatalError.DATA_OUT_OF_RANGE, 0, pdu.header, f"data from {offset} to {end}"
            )
        if flags & wire.SUCCESS and not flags & wire.LAST_PDU:
            raise wire.PduError(
                wire.FatalError.INVALID_HEADER_FIELD,
                wire.AT_FLAGS,
                pdu.header,
                "SUCCESS without LAST_PDU",
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
        if flags & wire.SUCCESS:
            self._complete(
                request, nvme.NvmeCompletion(0, 0, 0, cid, nvme.NvmeStatus.SUCCESS), now_ns
            )

    def _complete(self, request: _Request, completion: nvme.NvmeCompletion, now_ns: int) -> None:
        if completion.ok:
            if request.spoiled:
                completion = completion._replace(status=nvme.NvmeStatus.TRANSIENT_TRANSPORT_ERROR)
            elif request.came < request.download:
                completion = completion._replace(status=nvme.NvmeStatus.DATA_TRANSFER_ERROR)
        if not completion.ok:
            self.counters.failed_commands += 1
        del self._requests[completion.cid]
        if request.r2ts:  # it failed while it was fetched
            self._uploads = deque(one for one in self._uploads if one.cid != completion.cid)
        data = bytes(request.data) if completion.ok else b""  # copies no bytes object
        self._done.append(CommandDone(request.token, completion, data, now_ns - request.began_ns))

    def _requested(self, pdu: wire.Pdu) -> None:
        """Take R2T (NVMe/TCP, 3.6.2.10)."""
        *_, cid, ttag, offset, length = wire.R2T.unpack(pdu.header)
        request = self._request(cid, pdu)
        if not length or offset + length > len(request.upload):
            raise wire.PduError(
                wire.FatalError.DATA_OUT_OF_RANGE,
                0,
                pdu.header,
                f"R2T from {offset}, {length} octets",
            )
        if request.r2ts >= self.settings.r2ts:
            raise wire.PduError(
                wire.FatalError.LIMIT_EXCEEDED, 0, pdu.header, "more R2Ts than MAXR2T"
            )
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
            flags = wire.LAST_PDU
            request.r2ts -= 1
        else:
            self._uploads.append(upload)
        octets = request.upload[start:end]
        return self._writer.data(
            wire.PduType.H2C_DATA, flags, upload.cid, upload.ttag, start, octets
        )


#: What its user can do about a status.
_HINTS: dict[int, str] = {
    nvme.NvmeStatus.CONNECT_INVALID_PARAMETERS: "; uetemu nvme discover lists the subsystems",
    nvme.NvmeStatus.CONNECT_INVALID_HOST: "; the target admits other hosts only: give --host NQN",
    nvme.NvmeStatus.CONNECT_CONTROLLER_BUSY: (
        "; the target has no controller left: end another host"
    ),
    nvme.NvmeStatus.NAMESPACE_WRITE_PROTECTED: "; it is served read-only",
}


class NvmeCommandError(UserError):
    def __init__(self, what: str, status: int, result: int = 0) -> None:
        hint = _HINTS.get(status & ~nvme.DO_NOT_RETRY, "")
        super().__init__(f"{what} failed: {nvme.status_name(status)} ({status & 0x7FF:#05x}){hint}")
        self.status = status & ~nvme.DO_NOT_RETRY
        self.do_not_retry = bool(status & nvme.DO_NOT_RETRY)
        self.result = result


class QueueBrokenError(UserError):
    """The connection of a queue has ended while a command was outstanding, or before."""


class ControllerLostError(UserError):
    """The controller stayed away for longer than ``ctrl_loss_s``, or the host was closed."""
