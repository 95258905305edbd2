"""The processes of a lab's agents: fork them, talk to them, notice how they end, end them.

Every wait is bounded.  An agent that is killed, that stops answering or that reports a failure
of its own becomes an :class:`AgentError` naming its rank; the caller then ends the others.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import NoReturn, TypeVar

from emulator.endpoint.agent_spec import (
    AgentSpec,
    AgentStart,
    AtBarrier,
    Born,
    Died,
    Failed,
    Finished,
)
from emulator.endpoint.clock import Clock
from emulator.endpoint.operations.rank_result import RankResult
from emulator.errors import UserError

#: An agent that leaves the runner waiting this long (host seconds) does not answer any more.
ANSWER_SECONDS = 10.0
_START_SECONDS = 30.0
_OBITUARY_SECONDS = 1.0
_FORK_SERVER = "emulator.endpoint.fork_server"

Message = TypeVar("Message")
Progress = Callable[[int, int], None]


class AgentError(UserError):
    """A rank failed: ``rank`` and ``node`` (-1 and "" for the fork server itself).

    ``results`` holds what the ranks had done by then, and ``counters`` what they counted, both only
    of ranks that still answered. ``traceback`` is the agent's own for a failure inside it.
    ``died``: its process did, or answers no more; else the rank has ended its schedule with an
    error.
    """

    def __init__(
        self,
        sentence: str,
        *,
        rank: int = -1,
        node: str = "",
        traceback: str = "",
        died: bool = False,
        results: Sequence[RankResult] = (),
        counters: Mapping[int, Mapping[str, Mapping[str, int]]] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.rank, self.node, self.traceback, self.died = rank, node, traceback, died
        self.results = list(results)
        self.counters = dict(counters or {})


class AgentProcesses:
    """One agent process per spec, behind one fork server.  ``controls`` are their connections."""

    def __init__(self, lab: str, specs: Sequence[AgentSpec], clock: Clock) -> None:
        self.controls: dict[int, Connection] = {}
        self.pids: dict[int, int] = {}
        self._nodes = {spec.rank: spec.node for spec in specs}
        self._deaths: dict[int, int] = {}
        self._births, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _bound(self._births, _START_SECONDS)
        preload = sorted({spec.transport.partition(":")[0] for spec in specs})
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", _FORK_SERVER, str(theirs.fileno()), *preload],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # that of the runner may be a report in JSON
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        try:
            for spec in specs:
                self._bear(AgentStart(lab=lab, spec=spec, clock=clock))
        except BaseException:
            self.end()
            raise

    def _bear(self, start_message: AgentStart) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        _bound(ours, ANSWER_SECONDS)
        with ours, theirs:
            try:
                socket.send_fds(self._births, [pickle.dumps(start_message)], [theirs.fileno()])
            except OSError as gone:
                raise AgentError(f"the fork server of the agents ended ({gone})") from gone
            self.controls[start_message.spec.rank] = Connection(ours.detach())

    @property
    def fork_server_pid(self) -> int:
        return self._server.pid

    @property
    def anyone_dead(self) -> bool:
        """Return whether an agent is known to have ended or to answer no more."""
        return bool(self._deaths)

    def end(self) -> None:
        """End all processes and wait until they are gone; safe to call again.

        Closing the control connections ends the agents, closing its socket the fork server, which
        kills whoever does not go.
        """
        for control in self.controls.values():
            control.close()
        self.controls.clear()
        self._births.close()
        try:
            self._server.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        # A fork server that was killed cannot wait for its agents; the kernel kills them with it.
        give_up = time.monotonic() + ANSWER_SECONDS
        while any(map(_is_alive, self.pids.values())) and time.monotonic() < give_up:
            time.sleep(0.001)

    # Talking

    def send(self, rank: int, message: object) -> None:
        """Send ``message`` to ``rank``'s agent."""
        try:
            self.controls[rank].send(message)
        except BlockingIOError:
            self._blame(rank, "does not read its orders")
        except OSError:
            self._bury(rank)

    def gather(
        self,
        kind: type[Message],
        seconds: float,
        otherwise: str,
        progress: Progress | None = None,
    ) -> dict[int, Message]:
        """Return one message of ``kind`` from every agent; ``otherwise`` explains a silent one."""
        answers: dict[int, Message] = {}
        give_up = time.monotonic() + seconds
        while len(answers) < len(self.controls):
            for rank, message in self.receive(give_up, answers, otherwise):
                if not isinstance(message, kind):
                    self.check_late(rank, message)
                    continue
                answers[rank] = message
                if progress is not None:
                    progress(len(answers), len(self.controls))
        return answers

    def receive(
        self, give_up: float, heard: Mapping[int, object], otherwise: str
    ) -> list[tuple[int, object]]:
        """Return the next message of each agent by rank; report ranks silent until ``give_up``.

        ``heard`` holds the ranks that have answered before.

        ``give_up`` is on the monotonic clock, in seconds.
        """
        ranks = {control: rank for rank, control in self.controls.items()}
        readable = wait([*ranks, self._births], max(0.0, give_up - time.monotonic()))
        if not readable:
            self._blame(min(ranks.values() - heard.keys()), otherwise)
        messages: list[tuple[int, object]] = []
        for control in readable:
            if isinstance(control, Connection):
                messages.append((ranks[control], self._read(ranks[control])))
        if self._births in readable:
            self._take_agent_starts()
        return messages

    def _read(self, rank: int) -> object:
        try:
            message = self.controls[rank].recv()
        except (EOFError, ConnectionResetError):
            self._bury(rank)
        except BlockingIOError:
            self._blame(rank, "stopped in the middle of an answer")
        if isinstance(message, Failed):
            self._deaths.setdefault(rank, 0)
            raise AgentError(
                f"rank {rank} ({self._nodes[rank]}): {message.sentence}",
                rank=rank,
                node=self._nodes[rank],
                traceback=message.traceback,
                died=True,
            )
        return message

    def check_late(self, rank: int, message: object) -> None:
        """Ignore a late message of an execution that was given up; report any other message."""
        if not isinstance(message, (Finished, AtBarrier)):
            self._blame(rank, f"sent {type(message).__name__} unasked")

    # Births and deaths

    def _take_agent_starts(self) -> None:
        rank = self._note(self._read_births())
        # What an agent reported last may explain its death better than how it ended.
        if rank in self._deaths and not self.controls[rank].poll():
            self._bury(rank)

    def _read_births(self) -> bytes:
        """The next news from the fork server."""
        try:
            news = self._births.recv(65536)
        except ConnectionResetError:  # it ended with requests of ours unread
            news = b""
        if not news:
            self._deaths.setdefault(-1, 0)
            sentence = "the fork server of the agents was killed; all agents end with it"
            raise AgentError(sentence, died=True)
        return news

    def _note(self, news: bytes) -> int:
        """Take down a birth or a death; returns whose."""
        match pickle.loads(news):
            case Born(rank=rank, pid=pid):
                self.pids[rank] = pid
            case Died(rank=rank, status=status):
                self._deaths[rank] = status
        return int(rank)

    def _bury(self, rank: int) -> NoReturn:
        """Report how a rank ended whose connection is closed or whose process is gone."""
        give_up = time.monotonic() + _OBITUARY_SECONDS
        while rank not in self._deaths and (left := give_up - time.monotonic()) > 0:
            if not wait([self._births], left):
                break
            self._note(self._read_births())
        status = self._deaths.get(rank)
        if status is None:
            how = "ended"
        elif status < 0:
            how = f"was killed by {_signal_name(-status)}"
        else:
            how = f"ended with status {status}"
        self._blame(rank, how)

    def _blame(self, rank: int, what: str) -> NoReturn:
        self._deaths.setdefault(rank, 0)  # nothing more is expected of it
        node = self._nodes[rank]
        sentence = f"the agent of rank {rank} ({node}) {what}"
        raise AgentError(sentence, rank=rank, node=node, died=True)


def _bound(stream: socket.socket, seconds: float) -> None:
    """Limit every send and receive on ``stream`` to ``seconds``."""
    whole, part = divmod(seconds, 1)
    span = struct.pack("@ll", int(whole), int(part * 1e6))
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
