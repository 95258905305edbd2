"""Workers that are processes of this machine, forked from the one that drives the run.

A worker ends when the connection to its driver does, and the kernel kills it with the driver
(``PR_SET_PDEATHSIG``).  An interrupt is the driver's to handle.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import socket
import struct
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from emulator.endpoint.agent_processes import AgentError
from emulator.engine.event_queue import EventQueue
from emulator.engine.workers.worker import call
from emulator.engine.workers.worker_part import WorkerPart
from emulator.lab import Lab

_PR_SET_PDEATHSIG = 1
_BUFFER_OCTETS = 4 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class ForkedWorker:
    """Worker ``number`` of the run on ``lab``, in a process of its own."""

    def __init__(self, lab: Lab, number: int) -> None:
        self.number = number
        self._ended: int | None = None
        self._unanswered = 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_OCTETS)
        driver = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become_worker(lab, number, ours, theirs, driver)
        theirs.close()
        self._connection = Connection(ours.detach())

    def give(self, method: str, *arguments: object) -> None:
        """Have ``method`` called there."""
        self._unanswered += 1
        try:
            self._connection.send_bytes(pickle.dumps((method, arguments), pickle.HIGHEST_PROTOCOL))
        except OSError:
            self._bury()

    def answer(self) -> Any:
        """What the oldest call without an answer has returned."""
        try:
            failure, value = pickle.loads(self._connection.recv_bytes())
        except (OSError, EOFError):
            self._bury()
        self._unanswered -= 1
        if failure is not None:
            raise failure
        return value

    @property
    def idle(self) -> bool:
        """Whether it has answered all calls: nothing has interrupted an exchange."""
        return self._ended is None and not self._unanswered

    def _bury(self) -> NoReturn:
        """Say how the process has ended."""
        status = self._wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        raise AgentError(
            f"worker {self.number} of the run (process {self.pid}) {how}; start the run again",
            died=True,
        )

    def _wait(self) -> int:
        if self._ended is None:
            self._ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._ended

    def close(self) -> None:
        """End the process, whatever it does now, and wait until it is gone."""
        self._connection.close()
        if self._ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._wait()


def _become_worker(
    lab: Lab, number: int, ours: socket.socket, theirs: socket.socket, driver: int
) -> NoReturn:
    """Serve the driver, and never go back into its code nor its exit handlers."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        ours.close()
        gc.freeze()  # else the first collection would copy every page that is shared
        if os.getppid() == driver:
            _serve(lab, number, Connection(theirs.detach()))
        status = 0
    finally:
        os._exit(status)


def _serve(lab: Lab, number: int, driver: Connection) -> None:
    part: WorkerPart | None = None
    while True:
        try:
            method, arguments = pickle.loads(driver.recv_bytes())
        except (OSError, EOFError):
            break
        failure: BaseException | None = None
        value: object = None
        try:
            if part is None:
                part = WorkerPart(lab, number, EventQueue())
            value = call(part, method, arguments)
        except Exception as error:  # noqa: BLE001 (it is the driver's to judge)
            failure = error
        driver.send_bytes(_pickled(failure, value))


def _pickled(failure: BaseException | None, value: object) -> bytes:
    """An answer; an exception that cannot be pickled goes as its text."""
    try:
        octets = pickle.dumps((failure, value), pickle.HIGHEST_PROTOCOL)
        if failure is not None:
            pickle.loads(octets)  # some are pickled and cannot be made again
    except (pickle.PicklingError, TypeError, AttributeError, struct.error):
        octets = pickle.dumps((RuntimeError(f"{type(failure).__name__}: {failure}"), None))
    return octets
