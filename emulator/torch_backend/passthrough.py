"""Ranks without a fabric: torch.distributed does by itself what the script asks of it."""

from __future__ import annotations

import selectors
import signal
import socket
from collections.abc import Sequence

from emulator.errors import UserError
from emulator.torch_backend.launching import ForkServer, RankPlace, RankProcess
from emulator.torch_backend.output import RankOutput

#: After all ranks have ended, their streams are read until nothing comes for so long (s).
DRAIN_S = 0.5


def run_alone(fork_server: ForkServer, places: Sequence[RankPlace], output: RankOutput) -> None:
    """Run the script at all ``places`` until the last has ended; UserError if one fails.

    The first that fails ends all.
    """
    ranks = fork_server.spawn(places)
    with selectors.DefaultSelector() as ready:
        ready.register(fork_server, selectors.EVENT_READ, None)
        open_streams = watch_streams(ready, ranks)
        failed: RankProcess | None = None
        while open_streams or any(one.status is None for one in ranks):
            over = all(one.status is not None for one in ranks)
            found = ready.select(DRAIN_S if over else None)
            if not found:
                break  # processes of a rank's own still have its streams
            for key, _ in found:
                if key.data is None:
                    ended = fork_server.next_exit()
                    if ended.status and failed is None:
                        failed = ended
                        fork_server.kill_ranks()
                elif not output.take(*key.data):
                    ready.unregister(key.fileobj)
                    open_streams -= 1
    fork_server.end_ranks()
    if failed is not None:
        where = output.where(failed.place.rank)
        raise UserError(f"{end_of(failed)}, which ended all others{where}")


def watch_streams(ready: selectors.BaseSelector, ranks: Sequence[RankProcess]) -> int:
    """Have ``ready`` tell of all streams, with (process, number) as data; return how many."""
    for process in ranks:
        for number, stream in process.streams.items():
            ready.register(stream, selectors.EVENT_READ, (process, number))
    return sum(len(process.streams) for process in ranks)


def end_of(process: RankProcess) -> str:
    """Return how the process of a rank, which has failed, has ended."""
    status, rank = process.status or 0, process.place.rank
    if status < 0:
        why = "; has the machine run out of memory?" if -status == signal.SIGKILL else ""
        how = f"was killed by signal {-status} ({signal.Signals(-status).name}{why})"
    else:
        how = f"ended with status {status}" + " before its script was over" * (not status)
    return f"rank {rank} of the script (process {process.pid}) {how}"


def free_port() -> int:
    """Return a TCP port of this host that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
