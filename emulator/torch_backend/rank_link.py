"""A rank's side of the run: its clock, its part of the GPU's memory, and its calls under way."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.torch_backend.arena import Arena
from emulator.torch_backend.calls import (
    Begin,
    Call,
    Exited,
    StoreAnswer,
    StoreCall,
    Wait,
    Woken,
)
from emulator.torch_backend.computing import NONE, Clock, Computing
from emulator.torch_backend.script_lines import script_line

#: Fabric time that a poll whether a call has ended takes (ns).
POLL_NS = 1_000


class RankLink:
    """The connection of rank ``rank`` of ``size`` over the socket ``channel``.

    ``clock`` counts how long the rank has computed since the script began.
    """

    def __init__(self, rank: int, size: int, channel: int) -> None:
        self.rank, self.size = rank, size
        self._connection = Connection(os.dup(channel))
        begin = self._connection.recv()
        assert isinstance(begin, Begin)
        descriptor = os.open(begin.memory, os.O_RDWR | os.O_CLOEXEC)
        self._mapping = mmap.mmap(descriptor, begin.capacity)
        os.close(descriptor)
        self.octets: npt.NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)
        self._arena = Arena(Path(begin.memory), 0, begin.capacity // 2)
        #: what the clock is beside the time of computing
        self._waited_ns = begin.clock_ns
        self.clock: Clock = Computing(kind=NONE).clock(rank)
        self._number = 0
        self._pid, self._lock = os.getpid(), threading.Lock()
        #: the one that calls; another one may once it has ended
        self._thread: threading.Thread | None = None
        #: why another one was refused, which the script may not have noticed
        self._refused = ""
        self._sources: dict[int, int] = {}
        self._consumed: list[int] = []
        self._ended: dict[int, tuple[int, int, int]] = {}
        self._errors: dict[int, str] = {}

    @contextmanager
    def _alone(self) -> Iterator[threading.Thread | None]:
        """Refuse threads beside the one that calls, and the processes that the rank has forked.

        Autograd's threads, which are not Python's, may call: who has begun the pass waits for them.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"a process that rank {self.rank} has started calls torch.distributed; let the "
                "ranks alone call it"
            )
        own, known = threading.current_thread(), self._thread
        foreign = isinstance(own, threading._DummyThread)  # noqa: SLF001
        if known is not None and own is not known and known.is_alive() and not foreign:
            self._refused = (
                f"thread {own.name} of rank {self.rank} calls torch.distributed beside {known.name}"
                ", and the host would decide whose call is first; have one thread make all calls, "
                "or begin once the other has ended"
            )
            raise RuntimeError(self._refused)
        with self._lock:
            yield known if foreign else own

    @property
    def clock_ns(self) -> int:
        """Return the rank's time on the fabric's clock."""
        return self._waited_ns + self.clock.computed_ns()

    def _set_clock(self, clock_ns: int) -> None:
        self._waited_ns = clock_ns - self.clock.computed_ns()

    def sleep(self, duration_ns: int) -> None:
        """Let the rank's time go on without anything done."""
        self._waited_ns += duration_ns

    def source(self, octets: int) -> int:
        """Return where ``octets`` of a call's input are to be put in :attr:`octets`."""
        return self._arena.allocate(octets)

    def call(self, call: Call) -> int:
        """Begin ``call``, whose number and clock are set here; return its number."""
        with self._alone() as self._thread:
            self._number += 1
            self.clock.before_call()
            made = replace(call, number=self._number, clock_ns=self.clock_ns, rank=self.rank)
            self._sources[made.number] = made.source
            self._connection.send(made)
            return made.number

    def wait(self, number: int) -> tuple[npt.NDArray[np.uint8], int]:
        """Return the result of call ``number`` once it has ended, and the rank that has sent it.

        The octets are there until :meth:`taken`; the rank is -1 but of a message that was received.
        RuntimeError with the reason if the call has failed.
        """
        if number not in self._ended and number not in self._errors:
            self._ask((number,), None)
        if number in self._errors:
            raise RuntimeError(self._errors[number])
        at, octets, sender = self._ended[number]
        return self.octets[at : at + octets], sender

    def taken(self, number: int) -> None:
        """Give back what call ``number`` has in the memory."""
        del self._ended[number]
        self._arena.free(self._sources.pop(number))
        self._consumed.append(number)

    def poll(self, number: int) -> bool:
        """Return whether call ``number`` has ended, after :data:`POLL_NS`."""
        if number in self._ended or number in self._errors:
            return True
        self._ask((number,), self.clock_ns + POLL_NS)
        return number in self._ended or number in self._errors

    def _ask(self, numbers: tuple[int, ...], until_ns: int | None) -> None:
        with self._alone():
            consumed, self._consumed = tuple(self._consumed), []
            self._connection.send(Wait(self.clock_ns, numbers, consumed, until_ns, script_line()))
            answer = self._receive()
            assert isinstance(answer, Woken)
            self._set_clock(answer.clock_ns)
            self._ended.update(answer.results)
            self._errors.update(answer.errors)

    def store(self, operation: str, *keys: str, value: bytes = b"", amount: int = 0) -> Any:
        """Carry out ``operation`` on the store of all ranks; return its answer."""
        with self._alone():
            self._connection.send(StoreCall(self.clock_ns, operation, keys, value, amount))
            answer = self._receive()
            assert isinstance(answer, StoreAnswer)
            self._set_clock(answer.clock_ns)
            return answer.value

    def _receive(self) -> object:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            os._exit(1)  # the driver is gone, and the rank goes with it

    def end(self, failure: str = "") -> None:
        """Tell that the script is over."""
        failure = failure or self._refused
        self._connection.send(Exited(self.clock_ns, failure, tuple(self._consumed)))
