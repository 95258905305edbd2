"""The loop of one endpoint: NIC, transport, what was asked of it, and when it ends.

::

    interface --nic--> transport --completions--> report
    operations and receives --post--> transport --nic--> interface
"""

from __future__ import annotations

import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from types import FrameType

from emulator.endpoint.clock import Clock
from emulator.endpoint.nic import Nic
from emulator.errors import UserError
from emulator.fep.capture_file import CaptureFile
from emulator.fep.contents import summary
from emulator.fep.offers import Offer, Region
from emulator.fep.operations import Message, elements
from emulator.fep.report import Report
from emulator.fep.watched import WatchedEndpoint
from uet.transport import Completion

_BATCH = 64
#: Peers that are learnt from what they send, at most.
_MOST_PEERS = 4096
_IPV4, _IPV6 = b"\x08\x00", b"\x86\xdd"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Whether a signal has asked for the end, and a descriptor that becomes readable then."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)

    def _asked(self, number: int, _: FrameType | None) -> None:
        self.number = self.number or number

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """SIGINT, SIGTERM and SIGHUP ask for the end during the block, instead of killing."""
        before = {number: signal.signal(number, self._asked) for number in _SIGNALS}
        descriptor = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)
            self.reader.close()
            self._writer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to end (ns; ``None``: not for that reason).

    ``duration`` after the start; ``timeout`` after it with an error; after ``count`` completions
    of receives and announced writes; ``linger`` after the last thing to do, so that a peer that
    missed an answer gets it.  ``close`` closes the PDCs opened here in an orderly way, for which
    peers have ``close_time``.
    """

    duration: int | None = None
    timeout: int | None = None
    count: int | None = None
    linger: int = 0
    close: bool = False
    close_time: int = 10**10


@dataclass(slots=True)
class Tally:
    """What has come of it so far."""

    posted: int = 0
    succeeded: int = 0
    failed: int = 0
    received: int = 0
    errors: list[str] = field(default_factory=list)


class Session:
    """One endpoint at work.  Make it inside the namespace."""

    def __init__(
        self,
        endpoint: WatchedEndpoint,
        nic: Nic,
        clock: Clock,
        report: Report,
        stop: Stop,
        *,
        limits: Limits,
        messages: Sequence[Message] = (),
        in_flight: int = 1,
        offers: Sequence[Offer] = (),
        regions: Sequence[Region] = (),
        capture: CaptureFile | None = None,
        save: Path | None = None,
        seed: int = 0,
    ) -> None:
        self._endpoint, self._nic, self._clock = endpoint, nic, clock
        self._report, self._stop, self._limits = report, stop, limits
        self._messages = deque(messages)
        self._in_flight = in_flight or len(messages)
        self._open = 0
        self._offers = deque(sorted(offers, key=lambda offer: offer.after))
        self._regions = {region.key: region for region in regions}
        self._capture, self._save, self._seed = capture, save, seed
        self._own = ip_address(endpoint.config.address).packed
        self._closing = False
        self._idle_since: int | None = None
        self._saved = 0
        self.tally = Tally()

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> str:
        """Work until there is a reason to end, and return it."""
        clock = self._clock
        while True:
            now = clock.now()
            busy = self._turn(now)
            reason = self._ended(now)
            if reason is not None:
                return reason
            if not busy:
                if self._capture is not None:
                    self._capture.flush()
                self._wait(now)

    def _turn(self, now: int) -> bool:
        """A bounded share of everything; true when there was something to do."""
        endpoint, nic = self._endpoint, self._nic
        frames = nic.receive(now, _BATCH)
        if frames:
            if self._capture is not None:
                self._capture.received(frames)
            self._learn(frames)
            endpoint.receive(frames, now)
            endpoint.look()
        self._post(now)
        out = endpoint.transmit(now, nic.room())
        if out or nic.backlog:
            if self._capture is not None:
                self._capture.sent(out)
            nic.send(out)
            endpoint.look()
        done = endpoint.completions()
        for completion in done:
            self._completed(completion, now)
        return bool(frames or out or done)

    def _wait(self, now: int) -> None:
        nic = self._nic
        room = nic.room()
        wakes = [self._endpoint.next_deadline() if room else None, *self._own_deadlines(now)]
        wake = min((at for at in wakes if at is not None), default=None)
        timeout = None if wake is None else self._clock.host_seconds(max(0, wake - now))
        writers = () if room else (nic.fileno(),)
        readable, _, _ = select.select((nic.fileno(), self._stop.reader), writers, (), timeout)
        if nic.fileno() in readable:
            nic.acknowledge_error()
        if self._stop.reader in readable:
            self._stop.reader.recv(64)

    def _own_deadlines(self, now: int) -> Iterator[int | None]:
        limits = self._limits
        yield limits.duration
        yield limits.timeout
        if self._offers:
            yield self._offers[0].after
        if self._messages and self._open < self._in_flight and self._messages[0].after > now:
            yield self._messages[0].after
        if self._idle_since is not None:
            yield self._idle_since + (limits.close_time if self._closing else limits.linger)

    def _learn(self, frames: Sequence[memoryview]) -> None:
        """Answer those who speak first by the way their frames came (RFC 826 learns like that)."""
        peers = self._endpoint.peers
        for frame in frames:
            kind = frame[12:14]
            if kind == _IPV4:
                source, to = bytes(frame[26:30]), frame[30:34]
            elif kind == _IPV6:
                source, to = bytes(frame[22:38]), frame[38:54]
            else:
                continue
            if source in peers or to != self._own or source == self._own:
                continue
            if len(peers) >= _MOST_PEERS or len(source) != len(self._own):
                continue
            address, mac = str(ip_address(source)), bytes(frame[6:12]).hex(":")
            try:
                self._endpoint.add_peer(address, mac)
            except ValueError:  # an address or MAC that nobody can have: the stack counts it
                continue
            self._report.event("peer", peer=address, mac=mac)

    # -- what is asked of it -------------------------------------------------------------------

    def _post(self, now: int) -> None:
        while self._offers and self._offers[0].after <= now:
            self._offer(self._offers.popleft())
        while self._messages and self._open < self._in_flight and not self._closing:
            message = self._messages[0]
            if message.after > now or self._stop.number is not None:
                break
            self._messages.popleft()
            message.posted_at = now
            self.tally.posted += 1
            try:
                self._endpoint.post(_with_context(message))
            except ValueError as refusal:
                self._ended_message(message, "REFUSED_HERE", now, reason=str(refusal))
            else:
                self._open += 1

    def _offer(self, offer: Offer) -> None:
        try:
            self._endpoint.post_receive(offer.receive())
        except ValueError as refusal:
            self.tally.failed += 1
            self._report.event("error", reason=f"--receive: {refusal}")

    # -- what has ended ------------------------------------------------------------------------

    def _completed(self, completion: Completion, now: int) -> None:
        context = completion.context
        if isinstance(context, Message):
            self._open -= 1
            self._ended_message(context, completion.error, now, length=completion.length)
        elif isinstance(context, Offer):
            self._received(completion, context)
        else:
            self._arrived(completion)

    def _ended_message(
        self,
        message: Message,
        error: str | None,
        now: int,
        *,
        length: int | None = None,
        reason: str | None = None,
    ) -> None:
        said: dict[str, object] = dict(message.said)
        ok = error == message.error
        if not ok and message.error is not None:
            said["expected_error"] = message.error
        if error is None and message.memory is not None:
            said |= summary(message.memory)
            if message.datatype is not None:
                said["values"] = elements(message)
            if message.expected is not None:
                matches = bytes(message.memory) == message.expected
                said["as_expected"] = matches
                ok = ok and matches
                if not matches:
                    said["first_difference"] = _difference(message.memory, message.expected)
        if ok:
            self.tally.succeeded += 1
        else:
            self.tally.failed += 1
        self._report.event(
            "completion",
            kind=message.name,
            number=message.number,
            ok=ok,
            error=error,
            reason=reason,
            length=length,
            elapsed_us=round((now - message.posted_at) / 1000, 1),
            **said,
        )

    def _received(self, completion: Completion, offer: Offer) -> None:
        at = completion.offset or 0
        octets = offer.memory[at : at + completion.length]
        rule = offer.expect
        expected = None
        if rule is not None and completion.error is None:
            expected = rule.octets(len(octets), offer.index, self._seed)
        self._arrival(completion, octets, expected, size=offer.size)
        if offer.repost and completion.error is None:
            self._offer(offer)

    def _arrived(self, completion: Completion) -> None:
        """Data that a peer announced with header data, or the end of something of ours."""
        region = self._regions.get(completion.key) if completion.key is not None else None
        octets = memoryview(b"")
        if region is not None and completion.error is None:
            at = completion.offset or 0
            octets = region.memory[at : at + completion.length]
        self._arrival(completion, octets, None)

    def _arrival(
        self,
        completion: Completion,
        octets: memoryview,
        expected: bytes | None,
        size: int | None = None,
    ) -> None:
        said: dict[str, object] = {}
        ok = completion.error is None
        if ok:
            said = summary(octets)
            said["saved"] = self._save_octets(completion.kind, octets)
            if expected is not None:
                ok = bytes(octets) == expected
                said["as_expected"] = ok
                if not ok:
                    said["first_difference"] = _difference(octets, expected)
        self.tally.received += 1
        if not ok:
            self.tally.failed += 1
        self._report.event(
            "completion",
            kind=completion.kind,
            ok=ok,
            error=completion.error,
            peer=completion.peer,
            length=completion.length,
            offset=completion.offset,
            size=size,
            key=_hexadecimal(completion.key),
            tag=_hexadecimal(completion.tag),
            header_data=_hexadecimal(completion.header_data),
            initiator=completion.initiator,
            **said,
        )

    def _save_octets(self, kind: str, octets: memoryview) -> str | None:
        if self._save is None:
            return None
        path = self._save / f"{self._saved:04d}-{kind}.bin"
        self._saved += 1
        write_octets(path, octets)
        return str(path)

    # -- the end -------------------------------------------------------------------------------

    def _ended(self, now: int) -> str | None:
        limits = self._limits
        if self._stop.number is not None:
            return signal.Signals(self._stop.number).name
        if limits.timeout is not None and now >= limits.timeout:
            self.tally.errors.append("the time allowed is over")
            return "timeout"
        if limits.duration is not None and now >= limits.duration:
            return "duration"
        if not self._done():
            self._idle_since = None
            return None
        if self._idle_since is None:
            self._idle_since = now
            if limits.close and not self._closing:
                self._closing = True
                self._endpoint.close()
        if self._nic.backlog:
            return None
        if self._closing:
            if self._endpoint.closed:
                self._closing = False
                self._idle_since = now
                self._limits_after_close()
            elif now >= self._idle_since + limits.close_time:
                self.tally.errors.append("a PDC could not be closed in time")
                return "close timeout"
            return None
        over = now >= self._idle_since + limits.linger
        return "done" if over or not self._endpoint.counters()["pdcs_open"] else None

    def _limits_after_close(self) -> None:
        """Closed once is closed."""
        limits = self._limits
        self._limits = Limits(
            duration=limits.duration,
            timeout=limits.timeout,
            count=limits.count,
            linger=limits.linger,
        )

    def _done(self) -> bool:
        """Nothing is left to be done that was asked for, except to end."""
        if self._limits.count is not None and self.tally.received >= self._limits.count:
            return True
        if self._limits.count is not None or not self.tally.posted:
            return False
        return not self._messages and not self._open

    @property
    def unfinished(self) -> int:
        """Operations that have not ended."""
        return len(self._messages) + self._open

    @property
    def missing(self) -> int:
        """Completions that ``count`` asked for and that did not come."""
        count = self._limits.count
        return 0 if count is None else max(0, count - self.tally.received)

    def regions_at_end(self) -> Iterator[dict[str, object]]:
        """What the regions hold now; a region that is not as expected counts as failed."""
        for region in self._regions.values():
            said: dict[str, object] = {"key": f"{region.key:#x}", "size": len(region.memory)}
            said |= summary(region.memory)
            if region.expect is not None:
                wanted = region.expect.octets(len(region.memory), 0, self._seed)
                said["as_expected"] = bytes(region.memory) == wanted
                if not said["as_expected"]:
                    said["first_difference"] = _difference(region.memory, wanted)
                    self.tally.failed += 1
            if self._save is not None:
                path = self._save / f"region-{region.key:#x}.bin"
                write_octets(path, region.memory)
                said["saved"] = str(path)
            yield said


def _with_context(message: Message):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    return replace(message.request, context=message)


def write_octets(path: Path, octets: memoryview) -> None:
    """Write a file; :class:`UserError` if that cannot be."""
    try:
        path.write_bytes(octets)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; make room or choose --save") from None


def _difference(have: bytes | memoryview, want: bytes) -> int:
    """The first octet that differs."""
    have = bytes(have)
    return next((at for at, pair in enumerate(zip(have, want, strict=False)) if pair[0] != pair[1]),
                min(len(have), len(want)))  # fmt: skip


def _hexadecimal(value: int | None) -> str | None:
    return None if value is None else f"{value:#x}"


#: Stops a wait for something that a signal has made pointless.
Stopped = Callable[[], bool]
