"""Clients of storage nodes that begin together, and who computes until the last one has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.cluster.run.cluster_context import HELD, ClusterContext
from emulator.cluster.run.processes import ProcessorTimes
from emulator.cluster.run.storage_nodes import StorageNodes, StorageUsage


@dataclass(frozen=True, kw_only=True)
class WatchedClients:
    """The outcome: the clients' ``answers``, in their order, and shares of time that computed.

    ``busy_share`` is that of all processors of this machine, with what others did, and
    ``target_share`` that of the process of the busiest target.
    """

    answers: Sequence[Any]
    busy_share: float
    target_share: float


class _Begin:
    """The usage and processor times when the clients were released."""

    def __init__(self, nodes: StorageNodes) -> None:
        self._nodes = nodes
        self.usage: StorageUsage | None = None
        self.processors: ProcessorTimes | None = None

    def note(self) -> None:
        """Take both now."""
        self.usage, self.processors = self._nodes.usage(), ProcessorTimes.now()


def watched(
    run: ClusterContext,
    nodes: StorageNodes,
    client: str,
    tasks: Mapping[str, Mapping[str, object]],
) -> WatchedClients:
    """Run the module ``client`` on all machines of ``tasks``, released once all are ready.

    Raises UserError with the last words of the first that fails.
    """
    begun = {
        machine: run.begin(machine, client, {**task, HELD: True}) for machine, task in tasks.items()
    }
    begin = _Begin(nodes)
    answers = [answer for _, answer in run.gathered(begun, released=begin.note)]
    processors, usage = ProcessorTimes.now(), nodes.usage()
    assert begin.usage is not None
    assert begin.processors is not None
    computed = zip(usage.cpu_s, begin.usage.cpu_s, strict=True)
    took_s = usage.at_s - begin.usage.at_s
    return WatchedClients(
        answers=answers,
        busy_share=processors.busy_share_since(begin.processors),
        target_share=max(after - before for after, before in computed) / took_s,
    )
