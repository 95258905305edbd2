"""Guardians of ranks: each starts its rank, says how that died, and removes what it has left.

A rank that is killed says nothing, and MPI over TCP ends a rank, without a word to it, that sends
to a dead one.  So the process that the launcher starts is a guardian, which uses no MPI.  Its child
is the rank, and the guardians of all others report to that of rank 0::

    launcher on a -- guardian 0 -- rank 0          launcher on b -- guardian 1 -- rank 1
                         |                                              |
                         +------------------- TCP ----------------------+

Guardian 0 decides who died first, says so, and tells all others (:class:`Death`).  Each interrupts
its rank, which removes its lab.  Launchers kill ranks and guardians a second after they have told
them to end. So a cleaner, which the guardian forks, removes what the ended rank has left.  Where
both are killed at once, the rank's own does so (:mod:`emulator.dataplane.kernel.keeper`).
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import platform
import secrets
import select
import selectors
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from types import FrameType
from typing import Any, NoReturn, Self

import psutil

from emulator.dataplane.kernel.launcher import RankPlace
from emulator.logs import plain_logger
from emulator.workers.ranks.exchange import RANK_NAME, Death

#: Host time (s) in which an address of guardian 0 answers.
_ANSWER_S = 1.0
_PIECE = 65536
#: How the other end of a line goes: its process, or its machine.
ENDED_SILENTLY, CUT_OFF = "ended without a word", "does not answer any more"


@dataclass(frozen=True)
class Contact:
    """Where guardian 0 listens: its ``machine`` and IP ``addresses``; ``token`` proves the job."""

    machine: str
    addresses: tuple[str, ...]
    port: int
    token: str

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return what :meth:`as_data` was made of."""
        return cls(data["machine"], tuple(data["addresses"]), data["port"], data["token"])


class MessageLine:
    """One end of a line.

    ``ended`` is None until the other end has gone, then how; ``heard`` is when (s, monotonic)
    something came last.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._rest = b""
        self.ended: str | None = None
        self.heard = time.monotonic()

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send ``message``; one that the other end does not take any more is dropped."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def received(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that are there, after a wait for the first octet."""
        try:
            piece = self._socket.recv(_PIECE)
        except OSError:  # also where no answer comes in time
            piece = b""
        self.heard = time.monotonic()
        if not piece:
            self.ended = ENDED_SILENTLY
        *lines, self._rest = (self._rest + piece).split(b"\n")
        yield from map(json.loads, lines)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def line_pair() -> tuple[MessageLine, MessageLine]:
    """Return both ends of a line between two processes of this machine."""
    one, other = socket.socketpair()
    return MessageLine(one), MessageLine(other)


@dataclass(frozen=True)
class _Hello:
    """The first message of a guardian of this job."""

    number: int
    machine: str

    @classmethod
    def of(cls, data: object, token: str) -> Self | None:
        """Return the hello that ``data`` is, None if it is none with this ``token``."""
        if not isinstance(data, dict) or not isinstance(data.get("token"), str):
            return None
        number, machine = data.get("number"), data.get("machine")
        if not secrets.compare_digest(data["token"].encode(), token.encode()):
            return None
        return cls(number, machine) if type(number) is int and type(machine) is str else None


def _parsed(line: MessageLine) -> Iterator[object]:
    """Yield what comes over ``line`` until something is no JSON."""
    with suppress(ValueError, RecursionError):  # those of JSON and of UTF-8 are ValueErrors
        yield from line.received()


class Listener:
    """The socket at which guardian 0 hears the others."""

    def __init__(self) -> None:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        self._socket = socket.create_server(
            ("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6
        )
        port = self._socket.getsockname()[1]
        self.contact = Contact(platform.node(), _addresses(), port, secrets.token_hex(16))

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    def accepted(self) -> tuple[int, str, MessageLine] | None:
        """Take a connection; return rank, machine and line of a guardian of this job.

        A peer that says something else, or nothing, is not heard again: None.
        """
        try:
            end, _ = self._socket.accept()
        except OSError:  # it has gone already
            return None
        end.settimeout(_ANSWER_S)
        line = MessageLine(end)
        if (hello := _Hello.of(next(_parsed(line), None), self.contact.token)) is None:
            line.close()
            return None
        end.settimeout(None)
        line.send({"welcome": True})
        return hello.number, hello.machine, line

    def close(self) -> None:
        """Hear nobody any more."""
        self._socket.close()


def reach(contact: Contact, number: int) -> MessageLine | None:
    """Return a line to guardian 0 for that of rank ``number``; None if no address answers."""
    here = contact.machine == platform.node()
    for address in (*(["127.0.0.1"] if here else []), *contact.addresses):
        try:
            end = socket.create_connection((address, contact.port), timeout=_ANSWER_S)
        except OSError:
            continue
        line = MessageLine(end)
        line.send({"token": contact.token, "number": number, "machine": platform.node()})
        if any(True for _ in line.received()):
            end.settimeout(None)
            return line
        line.close()
    return None


def _addresses() -> tuple[str, ...]:
    """Return the addresses of this machine that others may reach."""
    found = [
        one.address
        for addresses in psutil.net_if_addrs().values()
        for one in addresses
        if one.family in (socket.AF_INET, socket.AF_INET6)
    ]
    unfit = ("127.", "fe80:", "::1")
    return tuple(sorted(one for one in found if not one.startswith(unfit)))


class SharedDeath:
    """Memory that a guardian shares with its rank, for the one :class:`Death`."""

    _SIZE = struct.Struct("=I")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, death: Death) -> None:
        """Have the rank know of ``death``."""
        octets = json.dumps(asdict(death)).encode()
        start = self._SIZE.size
        self._memory[start : start + len(octets)] = octets
        self._SIZE.pack_into(self._memory, 0, len(octets))  # written last: now it is there

    def read(self) -> Death | None:
        """Return the death that the guardian has written."""
        (length,) = self._SIZE.unpack_from(self._memory)
        start = self._SIZE.size
        return Death(**json.loads(self._memory[start : start + length])) if length else None


_log = plain_logger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Host time (s) in which the death is reported that made MPI end a rank, or the launcher end all.
_CAUSE_S = 0.8
#: Host time (s) without a heartbeat after which a machine is taken for gone: the patience with
#: ranks within these bounds.
_LEAST_SILENCE_S, _LONGEST_SILENCE_S = 10.0, 60.0
#: Host time (s) after which a rank is killed that was told of a death and has not ended.
_HANGS_S = 60.0
#: Host time (s) between two looks whether an ended rank has been reaped.
_LOOK_S = 0.01
#: Host time (s) that guardians wait for each other's end.
_CLOSING_S = 5.0
_BY_MPI = "was ended by MPI"
_WITHOUT_LAUNCHER = "lost its launcher"
_WITHOUT_GUARDIAN = "lost the process that had started it"
#: How ranks end, each with what to do about it.
_ADVICE = {
    "was killed": "and the run has ended: dmesg there says whether memory ran out; start it again",
    "crashed": "and the run has ended: its traceback is above, or in dmesg there",
    _BY_MPI: "which says above what it has lost; start the run again",
    _WITHOUT_LAUNCHER: "which was killed there, and the run has ended: start it again",
    _WITHOUT_GUARDIAN: "which was killed, and the run has ended: start it again",
    ENDED_SILENTLY: "so that the run has ended: start it again",
    CUT_OFF: "so that the run has ended: it hangs, or its machine is cut off; run uetemu clean "
    "there, and start the run again",
}


class RankWatch:
    """A rank's side of its guardian: it reports what that needs, and asks who has died."""

    def __init__(
        self, number: int, line: MessageLine, shared: SharedDeath, contact: Contact | None
    ) -> None:
        self._number, self._line, self._shared = number, line, shared
        self._guardian = os.getppid()
        #: where guardian 0 listens, as JSON types; at rank 0 alone
        self.contact: object = None if contact is None else contact.as_data()

    def introduce(self, machines: list[str], contact: object) -> None:
        """Report the machines of all ranks, and the :attr:`contact` of rank 0.

        Returns when the guardian has reached that of rank 0, or has tried all its addresses.
        """
        self._line.send({"machines": machines, "contact": contact})
        for answer in self._line.received():
            if not answer["joined"]:
                _log.info("guardian %d does not reach that of rank 0", self._number)

    def holds(self, *, lab: str | None = None, folder: str | None = None) -> None:
        """Report the ``lab`` that is to be removed, or the run's ``folder``, of rank 0."""
        self._line.send({"lab": lab} if lab is not None else {"folder": folder})

    def over(self) -> None:
        """Report that the rank has said all, and removed all."""
        self._line.send({"over": True})

    def death(self) -> Death | None:
        """Return which rank has died: this one, if its guardian has."""
        if os.getppid() != self._guardian:
            name = f"{RANK_NAME} {self._number} on {platform.node()}"
            return Death(self._number, f"{name} {_WITHOUT_GUARDIAN}, {_ADVICE[_WITHOUT_GUARDIAN]}")
        return self._shared.read()


@dataclass(frozen=True)
class Aftermath:
    """Acts of a guardian for a rank that cannot: remove its lab, note a sentence in its folder."""

    remove: Callable[[str], None]
    note: Callable[[str, str], None]


def guarded(place: RankPlace, aftermath: Aftermath, patience_s: float) -> RankWatch:
    """Return in a child, which is to be the rank; this process guards that and never returns.

    ``patience_s`` is how long (host s) another guardian's machine may not answer.
    """
    listener = Listener() if place.number == 0 else None
    ours, theirs = line_pair()
    shared = SharedDeath()
    sys.stdout.flush()
    sys.stderr.flush()
    guardian = os.getpid()
    rank = os.fork()
    if rank:
        theirs.close()
        _Guardian(
            place,
            rank,
            ours,
            shared=shared,
            aftermath=aftermath,
            patience_s=patience_s,
            listener=listener,
        ).guard()
    ours.close()
    contact = None
    if listener is not None:
        contact = listener.contact
        listener.close()
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) or os.getppid() != guardian:
        os._exit(1)
    return RankWatch(place.number, theirs, shared, contact)


@dataclass
class _Reported:
    """Reports that a guardian has had from its rank."""

    machines: list[str] = field(default_factory=list)
    lab: str | None = None
    folder: str | None = None
    over: bool = False


class _Guardian:
    def __init__(
        self,
        place: RankPlace,
        rank: int,
        line: MessageLine,
        *,
        shared: SharedDeath,
        aftermath: Aftermath,
        patience_s: float,
        listener: Listener | None,
    ) -> None:
        self._number, self._rank, self._line = place.number, rank, line
        self._shared, self._aftermath = shared, aftermath
        self._interval_s = min(max(patience_s, _LEAST_SILENCE_S), _LONGEST_SILENCE_S) / 6
        self._last_heartbeat = time.monotonic()
        self._listener = listener
        self._launcher = os.getppid()
        self._reported = _Reported()
        self._death: Death | None = None
        self._signalled: set[int] = set()
        self._signalled_at = math.inf
        self._cleaner = 0
        self._selector = selectors.DefaultSelector()
        #: the line to guardian 0; lines to all others, at guardian 0
        self._first: MessageLine | None = None
        self._others: dict[int, MessageLine] = {}
        self._machines: dict[int, str] = {place.number: platform.node()}

    def guard(self) -> NoReturn:
        """Watch the rank until it has ended, see to what it has left, and end as it did."""
        for number in _ENDING:
            signal.signal(number, self._pass_on)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # the launcher's, or its daemon's
        handle = self._handle = os.pidfd_open(self._rank)
        self._selector.register(handle, selectors.EVENT_READ, lambda: None)
        self._selector.register(self._line, selectors.EVENT_READ, self._hear_rank)
        if self._listener is not None:
            accept = partial(self._accept, self._listener)
            self._selector.register(self._listener, selectors.EVENT_READ, accept)
        status = 1
        try:
            while os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                self._serve(self._interval_s)
                self._heartbeat()
            status = os.waitstatus_to_exitcode(os.waitpid(self._rank, 0)[1])
            self._selector.unregister(handle)
            while self._line.ended is None and select.select([self._line], [], [], 0)[0]:
                self._hear_rank()
            self._conclude(status)
        except Exception:  # noqa: BLE001 (the process must not go on as if it were the rank)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            _end_as(status)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        """Pass a signal of the launcher, or of its death, on to the rank."""
        if os.getppid() != self._launcher:
            self._report(_WITHOUT_LAUNCHER)
        self._signal_rank(number)

    def _signal_rank(self, number: int) -> None:
        if not self._signalled:
            self._signalled.add(number)
            self._signalled_at = time.monotonic()
            self._fork_cleaner()
            with suppress(ProcessLookupError):
                os.kill(self._rank, number)

    def _fork_cleaner(self) -> None:
        """Have a process, which no launcher kills, see to what the rank leaves at its end."""
        reported = self._reported
        if self._cleaner or (reported.lab is None and reported.folder is None):
            return
        self._cleaner = os.fork()
        if self._cleaner:
            return
        try:
            os.setsid()
            for number in _ENDING:
                signal.signal(number, signal.SIG_IGN)
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):  # the launcher waits until nobody has its pipes
                os.dup2(nothing, stream)
            for line in (self._line, self._first, self._listener, *self._others.values()):
                if line is not None:
                    line.close()
            select.select([self._handle], [], [])
            self._await_reaped()
            if reported.folder is not None and (death := self._shared.read()) is not None:
                self._aftermath.note(reported.folder, death.sentence)
            if reported.lab is not None:
                self._aftermath.remove(reported.lab)
        finally:
            os._exit(0)

    def _await_reaped(self) -> None:
        """Wait until nobody takes the ended rank for one that lives, and owns its lab."""
        give_up = time.monotonic() + _CLOSING_S
        with suppress(ProcessLookupError):
            while time.monotonic() < give_up:
                os.kill(self._rank, 0)
                time.sleep(_LOOK_S)

    def _heartbeat(self) -> None:
        """Send heartbeats to other guardians, notice who sends none, and end a rank that hangs."""
        now = time.monotonic()
        if now < self._last_heartbeat + self._interval_s:
            return
        stalled = now > self._last_heartbeat + 3 * self._interval_s  # this process was
        self._last_heartbeat = now
        for number, line in list(self._lines().items()):
            line.send({"heartbeat": True})
            if stalled:
                line.heard = now
            elif line.ended is None and now > line.heard + 6 * self._interval_s:
                line.ended = CUT_OFF
                self._forget(line)
                self._decide(number, CUT_OFF)
        if self._death is not None and now > self._signalled_at + _HANGS_S:
            with suppress(ProcessLookupError):
                os.kill(self._rank, signal.SIGKILL)

    def _lines(self) -> dict[int, MessageLine]:
        """Return the lines to other guardians, by rank."""
        return self._others if self._first is None else {0: self._first}

    def _serve(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data()

    # What is heard

    def _hear_rank(self) -> None:
        for message in self._line.received():
            for name, value in message.items():
                if name == "machines":
                    self._machines = dict(enumerate(value))
                    self._join(Contact.of(message["contact"]))
                elif name != "contact":
                    setattr(self._reported, name, value)
        if self._line.ended is not None:
            self._forget(self._line)

    def _join(self, contact: Contact) -> None:
        if self._number:
            self._first = line = reach(contact, self._number)
            if line is not None:
                hear = partial(self._hear_first, line)
                self._selector.register(line, selectors.EVENT_READ, hear)
        self._line.send({"joined": self._first is not None or self._number == 0})

    def _accept(self, listener: Listener) -> None:
        if (accepted := listener.accepted()) is not None:
            number, machine, line = accepted
            self._machines.setdefault(number, machine)
            self._others[number] = line
            self._selector.register(line, selectors.EVENT_READ, partial(self._hear_other, number))

    def _hear_other(self, number: int) -> None:
        line = self._others[number]
        for message in line.received():
            if (how := message.get("died")) is not None:
                self._decide(number, how)
            if "over" in message or "died" in message:
                self._forget(line)
                del self._others[number]
                return
        if line.ended is not None:
            self._forget(line)
            del self._others[number]
            self._decide(number, line.ended)

    def _hear_first(self, line: MessageLine) -> None:
        for message in line.received():
            if (death := message.get("death")) is not None:
                self._learn(Death(**death))
            if "over" in message:
                self._lose_first(line)
                return
        if line.ended is not None:
            self._lose_first(line)
            self._decide(0, line.ended)

    def _lose_first(self, line: MessageLine) -> None:
        self._forget(line)
        self._first = None

    def _forget(self, line: MessageLine) -> None:
        with suppress(KeyError):
            self._selector.unregister(line)

    # Deaths

    def _decide(self, number: int, how: str) -> None:
        """Take ``number`` for the one that has died, unless another one was before it.

        Ranks that end when the launcher has had its patience with all are none.
        """
        if self._death is None and time.monotonic() < self._signalled_at + _CAUSE_S:
            name = f"{RANK_NAME} {number} on {self._machines.get(number, 'another machine')}"
            death = Death(number, f"{name} {how}, {_ADVICE[how]}")
            if self._number < 2 or number == self._number:  # the first guardian that is there
                with suppress(OSError):
                    os.write(2, f"uetemu: {death.sentence}\n".encode())
            self._learn(death)
            for line in self._others.values():
                line.send({"death": asdict(death)})

    def _learn(self, death: Death) -> None:
        if self._death is None:
            self._death = death
            self._shared.write(death)
            if death.number != self._number:
                self._signal_rank(signal.SIGTERM)

    def _conclude(self, status: int) -> None:
        """See to what the rank has not said, or has not removed; ``status`` is its end."""
        if not self._reported.over:
            how = self._own_end(status)
            if how is not None:
                self._report(how)
                self._await(lambda: self._death is not None or self._first is None, _CLOSING_S)
            else:
                self._await(lambda: self._death is not None, _CAUSE_S)
                if self._number == 0 and not self._signalled:
                    self._decide(0, _BY_MPI)
            self._fork_cleaner()
        for line in self._lines().values():
            line.send({"over": True})
        if self._cleaner:
            os.waitpid(self._cleaner, 0)

    def _report(self, how: str) -> None:
        """Report the death of the own rank to guardian 0, or to standard error."""
        if self._first is not None:
            self._first.send({"died": how})
        else:
            self._decide(self._number, how)

    def _own_end(self, status: int) -> str | None:
        """Return how the rank died, None where another rank's death, or a user, has ended it."""
        if os.getppid() != self._launcher:
            return _WITHOUT_LAUNCHER
        if status >= 0 or -status in self._signalled or -status in _ENDING:
            return None
        return "was killed" if -status == signal.SIGKILL else "crashed"

    def _await(self, done: Callable[[], bool], budget_s: float) -> None:
        give_up = time.monotonic() + budget_s
        while not done() and (left := give_up - time.monotonic()) > 0:
            self._serve(left)


def _end_as(status: int) -> NoReturn:
    """End this process as another one has ended: by its exit ``status``, or by signal -status."""
    if status < 0:
        with suppress(OSError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)
