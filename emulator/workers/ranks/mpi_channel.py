"""Messages between ranks by MPI.  Only a process that a launcher started loads this module.

Raises ImportError where mpi4py is missing.  MPI is initialised by the import, and finalised when
the interpreter ends.
"""

from __future__ import annotations

from mpi4py import MPI

#: A collective under way: its request, what it reads, and what it writes.
_Gather = tuple[MPI.Request, bytes, bytearray]
#: The last one is in use; those before it were left behind by failures.  MPI may touch their octets
#: until it is finalised, when no channel is there any more.
_gathers: list[_Gather] = []


class MpiChannel:
    """The channel over the ranks of ``MPI_COMM_WORLD``."""

    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD
        self.number: int = self._world.Get_rank()
        self.count: int = self._world.Get_size()
        # MPI reads the octets of a message until its request is complete.
        self._under_way: list[tuple[MPI.Request, bytes]] = []
        #: by peer the message of which MPI has the beginning
        self._arriving: dict[int, tuple[MPI.Request, bytearray]] = {}

    def send(self, peer: int, octets: bytes) -> None:
        """Send ``octets`` to ``peer``, and return at once.

        Raises ConnectionError if MPI cannot.
        """
        try:
            self._under_way = [one for one in self._under_way if not one[0].Test()]
            request = self._world.Isend([octets, MPI.BYTE], dest=peer)
        except MPI.Exception as error:
            raise ConnectionError(str(error)) from error
        self._under_way.append((request, octets))

    def poll(self, peer: int) -> bytes | None:
        """Return the next message of ``peer`` if the whole of it is there; never wait in MPI.

        Raises ConnectionError if MPI has lost it.
        """
        try:
            if peer not in self._arriving:
                status = MPI.Status()
                message = self._world.Improbe(source=peer, status=status)
                if message is None:
                    return None
                octets = bytearray(status.Get_count(MPI.BYTE))
                self._arriving[peer] = message.Irecv([octets, MPI.BYTE]), octets
            request, octets = self._arriving[peer]
            if not request.Test():
                return None
        except MPI.Exception as error:
            raise ConnectionError(str(error)) from error
        del self._arriving[peer]
        return bytes(octets)

    def gather(self, block: bytes) -> None:
        """Begin to bring ``block`` to all ranks, and theirs to this one; return at once.

        Blocks are as long as each other, and all ranks gather as often.  Raises ConnectionError if
        MPI cannot.
        """
        blocks = bytearray(len(block) * self.count)
        try:
            request = self._world.Iallgather([block, MPI.BYTE], [blocks, MPI.BYTE])
        except MPI.Exception as error:
            raise ConnectionError(str(error)) from error
        _gathers.append((request, block, blocks))

    def gathered(self) -> bytes | bytearray | None:
        """Return the blocks of all ranks, one behind the other, once they are there; never wait.

        They are those of the last :meth:`gather`.  Raises ConnectionError if MPI has lost one.
        """
        request, _, blocks = _gathers[-1]
        try:
            if not request.Test():
                return None
        except MPI.Exception as error:
            raise ConnectionError(str(error)) from error
        _gathers.pop()
        return blocks

    def abort(self, status: int) -> None:
        """Have the launcher end all ranks."""
        self._world.Abort(status)
