"""The loop of one endpoint: NIC, transport, what was requested of it, and when it ends.

::

    interface --nic--> transport --completions--> report
    operations and receives --post--> transport --nic--> interface
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Protocol

from emulator.dataplane.kernel import namespaces
from emulator.errors import UserError
from emulator.lab.standalone.events import CaptureFile, EventReport, Refusals
from emulator.lab.standalone.script.offers import Offer
from emulator.lab.standalone.script.outcomes import Outcomes
from emulator.lab.standalone.script.requested_operations import (
    Message,
    Open,
    Pending,
    ProbeRequest,
)
from emulator.sim.endpoint.nic.raw_port import RawPort
from uet.transport import Completion, Frame, Request, Transport

_BATCH = 64
#: Peers that are learnt from what they send, at most.
_MOST_PEERS = 4096
_IPV4, _IPV6 = b"\x08\x00", b"\x86\xdd"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """The request of a signal to end, with a descriptor that becomes readable then."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)

    def _asked(self, number: int, _: FrameType | None) -> None:
        self.number = self.number or number

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Have SIGINT, SIGTERM and SIGHUP request the end during the block, instead of killing."""
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
    """The limits after which a session ends (ns; ``None``: not for that reason).

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

    def slowed(self, dilation: float) -> Limits:
        """Return these limits, which are in this machine's time, by a clock of that dilation."""

        def slow(span: int | None) -> int | None:
            return None if span is None else round(span / dilation)

        return replace(
            self,
            duration=slow(self.duration),
            timeout=slow(self.timeout),
            linger=round(self.linger / dilation),
            close_time=round(self.close_time / dilation),
        )


class PeerLearner(Transport, Protocol):
    @property
    def counts(self) -> dict[str, int]: ...
    @property
    def peers(self) -> Mapping[bytes, object]: ...
    def add_peer(self, address: str, mac: str) -> object:
        """Learn how to reach a peer; ``ValueError`` if that cannot be."""

    def contain_error(self, *, sending: bool) -> bool:
        """Count an error of the stack itself, and end what it was for; whether it can go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """The behaviour that is particular to a transport.

    ``address`` is the endpoint's own, at which peers are learnt that speak first; ``None``: none
    are.  ``control`` carries out what belongs to no request. ``explain`` returns what a user can do
    about the error of a request.
    """

    address: str | None = None
    control: Callable[[ProbeRequest | Open, int], Pending] | None = None
    explain: Callable[[Request, str | None], str | None] = lambda request, error: None


class EndpointSession:
    """One endpoint at work.  Make it inside the namespace."""

    def __init__(  # noqa: PLR0913  parts of an endpoint
        self,
        endpoint: PeerLearner,
        port: RawPort,
        report: EventReport,
        outcomes: Outcomes,
        stop: Stop,
        *,
        limits: Limits,
        manners: Manners,
        messages: Sequence[Message] = (),
        in_flight: int = 1,
        offers: Sequence[Offer] = (),
        capture: CaptureFile | None = None,
    ) -> None:
        self._endpoint, self._port = endpoint, port
        self._report, self._outcomes, self._stop = report, outcomes, stop
        self._limits, self._manners = limits, manners
        self._tally = outcomes.tally
        self._messages = deque(messages)
        self._in_flight = in_flight or len(messages)
        self._open = 0
        self._answer: tuple[Message, Pending] | None = None  # that is being waited for
        self._offers = deque(sorted(offers, key=lambda offer: offer.after))
        self._first_at: int | None = None  # when the first packet came
        self._capture = capture
        self._refusals = Refusals(endpoint.counts, report)
        self._own = manners.address and ip_address(manners.address).packed
        self._to_close = limits.close
        self._closing = False
        self._idle_since: int | None = None

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> str:
        """Work until there is a reason to end, and return it."""
        clock = self._port.clock
        self._post_receives(0)  # before the first frames, which may have come already
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
        endpoint, nic = self._endpoint, self._port.nic
        frames = nic.receive(now, _BATCH)
        if frames:
            if self._first_at is None:
                self._first_at = now
            if self._capture is not None:
                self._capture.received(frames)
            self._learn(frames)
        if not frames:
            endpoint.receive(frames, now)  # it passes the time
        for frame in frames:
            try:
                endpoint.receive((frame,), now)
            except UserError:  # of the user's files, such as a disk that is full
                raise
            except Exception:  # noqa: BLE001  # whatever it is, other peers are served on
                self._contained(sending=False)
        self._post(now)
        out: list[Frame] = []
        try:
            out = endpoint.transmit(now, nic.room())
        except UserError:
            raise
        except Exception:  # frames of others in this turn are lost, and sent again
            if not self._contained(sending=True):
                raise
        if out or nic.backlog:
            if self._capture is not None:
                self._capture.sent(out)
            self._port.send(out)
        done = endpoint.completions()
        for completion in done:
            self._completed(completion, now)
        answered = self._answered(now)
        self._refusals.look(frames)
        return bool(frames or out or done or answered)

    def _contained(self, *, sending: bool) -> bool:
        """End what raised, and no more of the endpoint; the first time, show where it was."""
        first = not self._endpoint.counts["internal_error"]
        contained = self._endpoint.contain_error(sending=sending)
        if contained and first:
            self._tally.errors.append(
                "an error of uetemu itself ended a PDC or queue pair; please report the traceback"
            )
            traceback.print_exc()
        return contained

    def _wait(self, now: int) -> None:
        end = min((at for at in self._own_deadlines(now) if at is not None), default=None)
        if self._port.wait(now, self._endpoint.next_deadline(), end, self._stop.reader.fileno()):
            self._stop.reader.recv(64)

    def _own_deadlines(self, now: int) -> Iterator[int | None]:
        limits = self._limits
        yield limits.duration
        yield limits.timeout
        if self._answer is not None:
            yield self._answer[1].deadline
        if self._offers and self._first_at is not None:
            yield self._first_at + self._offers[0].after
        if self._messages and self._open < self._in_flight and self._messages[0].after > now:
            yield self._messages[0].after
        if self._idle_since is not None:
            yield self._idle_since + (limits.close_time if self._closing else limits.linger)

    def _learn(self, frames: Sequence[memoryview]) -> None:
        """Answer those who speak first by the way their frames came (RFC 826 learns like that)."""
        if not self._own:
            return
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

    # -- what is called of it ------------------------------------------------------------------

    def _post(self, now: int) -> None:
        control = self._manners.control
        self._post_receives(0 if self._first_at is None else now - self._first_at)
        while self._messages and self._open < self._in_flight and not self._closing:
            message = self._messages[0]
            if message.after > now or self._stop.number is not None:
                break
            request = message.request
            if self._answer is not None and isinstance(request, ProbeRequest | Open):
                break
            self._messages.popleft()
            message.posted_at = now
            self._tally.posted += 1
            try:
                if control is not None and isinstance(request, ProbeRequest | Open):
                    self._answer = message, control(request, now)
                else:
                    self._endpoint.post(replace(request, context=message))
            except ValueError as refusal:
                self._outcomes.operation(message, "REFUSED_HERE", now, reason=str(refusal))
            else:
                self._open += 1

    def _post_receives(self, since_first: int) -> None:
        while self._offers and self._offers[0].after <= since_first:
            self._offer(self._offers.popleft())

    def _offer(self, offer: Offer) -> None:
        try:
            self._endpoint.post_receive(offer.receive())
        except ValueError as refusal:
            self._tally.failed += 1
            self._report.event("error", reason=f"--receive: {refusal}")

    # -- what has ended ------------------------------------------------------------------------

    def _completed(self, completion: Completion, now: int) -> None:
        context, outcomes = completion.context, self._outcomes
        if isinstance(context, Message):
            self._open -= 1
            error = completion.error
            reason = self._manners.explain(context.request, error)
            outcomes.operation(context, error, now, length=completion.length, reason=reason)
        elif isinstance(context, Offer):
            outcomes.receive(completion, context)
            if context.repost and completion.error is None:
                self._offer(context)
        else:
            outcomes.remote_write(completion)

    def _answered(self, now: int) -> bool:
        """Return whether a PROBE, or what opens a PDC, has ended."""
        if self._answer is None:
            return False
        message, answer = self._answer
        ended, error = answer.outcome(now)
        if ended:
            self._answer = None
            self._open -= 1
            self._outcomes.operation(message, error, now)
        return ended

    # -- the end -------------------------------------------------------------------------------

    def _ended(self, now: int) -> str | None:
        limits = self._limits
        if self._stop.number is not None:
            return signal.Signals(self._stop.number).name
        if limits.timeout is not None and now >= limits.timeout:
            self._tally.errors.append("the time allowed is over")
            return "timeout"
        if limits.duration is not None and now >= limits.duration:
            return "duration"
        if not self._done():
            self._idle_since = None
            return None
        if self._idle_since is None:
            self._idle_since = now
        if self._to_close:
            self._to_close, self._closing = False, True
            self._endpoint.close()
        if self._port.nic.backlog:
            return None
        if self._closing:
            if not self._endpoint.closed:
                if now < self._idle_since + limits.close_time:
                    return None
                self._tally.errors.append("a PDC could not be closed in time")
                return "close timeout"
            self._closing = False
            self._idle_since = now
        over = now >= self._idle_since + limits.linger
        # Without PDCs nothing shows whether the peer misses something.
        return "done" if over or not self._endpoint.counters().get("pdcs_open", 1) else None

    def _done(self) -> bool:
        """Return whether no requested operation is left, except to end."""
        if self._messages or self._open:
            return False
        if self._limits.count is not None:
            return self._tally.received >= self._limits.count
        return self._tally.posted > 0

    @property
    def unfinished(self) -> int:
        return len(self._messages) + self._open

    @property
    def missing(self) -> int:
        """Return the completions that ``count`` requires and that did not come."""
        count = self._limits.count
        return 0 if count is None else max(0, count - self._tally.received)


def enter_namespace(name: str) -> None:
    """Move this process's only thread into a namespace, by its name or the path of its file."""
    path = Path(name) if "/" in name else namespaces.DIRECTORY / name
    try:
        namespaces.enter(path)
    except FileNotFoundError:
        there = sorted(os.listdir(namespaces.DIRECTORY)) if namespaces.DIRECTORY.is_dir() else []
        known = f"there are {', '.join(there[:8])}" if there else "there is none"
        raise UserError(f"there is no network namespace {name!r}; {known}") from None
    except PermissionError:
        raise UserError(f"only root may enter the namespace {name}; run as root") from None
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.EINVAL:
            reason = "it is no network namespace"
        raise UserError(f"cannot enter {name}: {reason}; give the name ip netns lists") from None
