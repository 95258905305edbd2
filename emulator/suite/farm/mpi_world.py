"""The other ranks of this MPI job, behind messages; the only module that imports mpi4py.

It fits mpi4py 3.1 and 4.  Nobody waits inside MPI, whose waiting takes a whole processor: a rank
looks for messages and sleeps in between.  mpi4py.futures is not used: it gives a task to any
worker, and takes a result as one message.  Here a trial that failed is tried on another machine,
and files arrive in pieces.
"""

from __future__ import annotations

import importlib
import socket
from typing import Any

from emulator.dataplane.kernel.launcher import RankPlace
from emulator.errors import UserError

_TAG = 1


class MpiWorld:
    """All ranks of the job of ``place``, for one thread at a time.

    UserError where mpi4py is missing, or belongs to another MPI than the launcher.
    """

    def __init__(self, place: RankPlace) -> None:
        self.place = place
        try:
            self._mpi: Any = importlib.import_module("mpi4py.MPI")
        except (ImportError, RuntimeError) as error:
            raise UserError(
                f"a launcher started {place.count} ranks, which talk by mpi4py, and that cannot be "
                f"loaded on {socket.gethostname()} ({error}); install it there with "
                "vagrant/provision.sh --with mpi, or run without the launcher"
            ) from None
        if self._mpi.Query_thread() < self._mpi.THREAD_SERIALIZED:
            raise UserError(
                f"the MPI of mpi4py ({self._mpi.get_vendor()[0]}) was built without threads; use "
                "another, such as Debian's"
            )
        self._comm = self._mpi.COMM_WORLD
        if self._comm.Get_size() != place.count:
            raise UserError(
                f"the launcher started {place.count} ranks and mpi4py knows of "
                f"{self._comm.Get_size()}: it was built for another MPI "
                f"({self._mpi.get_vendor()[0]}); use the mpirun of that one"
            )

    def send(self, rank: int, message: object) -> None:
        """Send a small ``message`` to ``rank``."""
        self._comm.send(message, rank, _TAG)

    def send_taken(self, rank: int, message: object) -> None:
        """Send ``message`` to ``rank``, and return when it has begun to take it."""
        self._comm.ssend(message, rank, _TAG)

    def receive(self) -> tuple[int, object] | None:
        """Return the sender and the message that came first; None where there is none."""
        status = self._mpi.Status()
        if not self._comm.iprobe(self._mpi.ANY_SOURCE, _TAG, status):
            return None
        source = status.Get_source()
        return source, self._comm.recv(None, source, _TAG)

    def abort(self, status: int) -> None:
        """End all ranks of the job at once; for a job in which some do not answer."""
        self._comm.Abort(status)
