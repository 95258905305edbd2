"""Workers that are processes of this machine, forked from the one that drives the run.

A worker ends when the connection to its driver does, and the kernel kills it with the driver
(``PR_SET_PDEATHSIG``).  Signals that end a run are the driver's to handle.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TypeVar

from emulator.dataplane.dataplane import Dataplane
from emulator.logs import plain_logger
from emulator.sim.endpoint.endpoint_spec import EndpointError
from emulator.sim.event_queue import EventQueue
from emulator.sim.line_record import LineRecord
from emulator.workers.worker import Call, WorkerPart

_log = plain_logger(__name__)

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
#: Signals that end a run.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BUFFER_OCTETS = 4 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class ForkedWorker:
    """Worker ``number`` of the run on ``lab``, in a process of its own.

    ``others`` are those that were forked before it, whose connections are none of its business.
    """

    def __init__(
        self,
        lab: Dataplane,
        number: int,
        others: Sequence[ForkedWorker] = (),
        record: LineRecord | None = None,
    ) -> None:
        self.number = number
        self._ended: int | None = None
        #: what has changed at the nodes since the last call
        self._changes = lab.follow()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_OCTETS)
        driver = os.getpid()
        # A handler of the driver that ran in the child would unwind the driver's stack there.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                for other in others:
                    other.let_go()
                make = partial(WorkerPart, lab, number, record=record)
                _become_worker(lab, make, (ours, theirs), driver)
            theirs.close()
            self._connection = Connection(ours.detach())
            _log.info("worker %d is process %d", number, self.pid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def let_go(self) -> None:
        """Close the connection, in a process that is not the driver's."""
        self._connection.close()

    def give(self, call: Call[T], time_limit_s: float | None = None) -> Callable[[], T]:
        """Have ``call`` carried out there; return what returns its answer, or raises its exception.

        If there is none for ``time_limit_s`` the process is ended: EndpointError.
        """
        try:
            with_changes = pickle.dumps((self._changes, call), pickle.HIGHEST_PROTOCOL)
            self._connection.send_bytes(with_changes)
            self._changes.clear()
        except OSError:
            self._bury()
        return partial(self._answer, time_limit_s)

    def _answer(self, time_limit_s: float | None) -> Any:
        """Return the answer to the oldest call that has none yet."""
        try:
            if time_limit_s is not None and not self._connection.poll(time_limit_s):
                self._bury()
            failure, there, value = pickle.loads(self._connection.recv_bytes())
        except (OSError, EOFError):
            self._bury()
        if failure is not None:
            failure.add_note(f"in worker {self.number}:\n{there}")
            raise failure
        return value

    def _bury(self) -> NoReturn:
        """Raise EndpointError: the process has ended, and if it has not, it is ended now."""
        status = self._end()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        raise EndpointError(
            f"worker {self.number} of the run (process {self.pid}) {how}; start the run again",
            died=True,
        )

    def _end(self) -> int:
        """End the process, whatever it does now; return how it has ended."""
        if self._ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._ended

    def close(self) -> None:
        """End the process, whatever it does now, and wait until it is gone."""
        self._connection.close()
        self._end()


def _become_worker(
    lab: Dataplane,
    make: Callable[[EventQueue], WorkerPart],
    connection: tuple[socket.socket, socket.socket],
    driver: int,
) -> NoReturn:
    """Serve the driver, and never go back into its code nor its exit handlers."""
    status = 1
    ours, theirs = connection
    try:
        signal.set_wakeup_fd(-1)
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
            raise OSError(ctypes.get_errno(), "prctl")
        ours.close()
        gc.freeze()  # else the first collection would copy every page that is shared
        if os.getppid() == driver:
            _serve(lab, make, Connection(theirs.detach()))
        status = 0
    finally:
        os._exit(status)


def _serve(lab: Dataplane, make: Callable[[EventQueue], WorkerPart], driver: Connection) -> None:
    part: WorkerPart | None = None
    while True:
        try:
            changes, call = pickle.loads(driver.recv_bytes())
        except (OSError, EOFError):
            break
        failure: Exception | None = None
        there, value = "", None
        try:
            lab.take(changes)
            if part is None:
                part = make(EventQueue())
            value = call.carry_out(part)
        except Exception as error:  # noqa: BLE001 (it is the driver's to judge)
            failure, there = error, traceback.format_exc()
        driver.send_bytes(_pickled(failure, there, value))


def _pickled(failure: Exception | None, there: str, value: object) -> bytes:
    """An answer: an exception with its traceback, or what a call has returned.

    What cannot be pickled, or cannot be made again, goes as its text.
    """
    try:
        octets = pickle.dumps((failure, there, value), pickle.HIGHEST_PROTOCOL)
        if failure is not None:
            pickle.loads(octets)
    except Exception as error:  # noqa: BLE001 (pickle raises what the objects in it raise)
        what = value if failure is None else failure
        stated = f"{type(what).__name__} cannot leave the process ({error}): {what!s:.200}"
        octets = pickle.dumps((RuntimeError(stated), there, None))
    return octets
