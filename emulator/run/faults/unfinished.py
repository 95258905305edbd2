"""The progress of a trial at the time when it failed.

``unfinished`` of ``result.json`` describes a trial that failed:

``collective``, ``size_bytes``
    which it was.
``delivered_messages``, ``messages``
    how many messages of the iteration that failed had been verified by their receivers, of how
    many; ``delivered_bytes`` and ``payload_bytes`` are their octets.
``unfinished_gpus``
    those whose schedule had not ended.
``cut_off_gpus``, ``cut_off_pairs``, ``faults``, ``lost_packets``, ``undisturbed_us``
    with faults of the user's (:mod:`emulator.run.faults.disturbance`): ``faults`` has what was
    requested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from emulator.endpoint.operations.rank_result import RankResult
from emulator.measures.message_graph import MessageGraph
from emulator.run.faults.disturbance import stated_pairs
from emulator.scenario import Trial


def unfinished(trial: Trial, results: Sequence[RankResult]) -> Mapping[str, object]:
    """The values described above; ``results`` are those of the ranks that still answered."""
    schedules = trial.compile()
    ends = {result.rank: result.operation_end for result in results}
    graph = MessageGraph(schedules)
    ranks, indices = graph.rank(graph.receive), graph.index(graph.receive)
    there = np.zeros(len(ranks), bool)
    for rank, times in ends.items():
        own = ranks == rank
        there[own] = times[indices[own]] >= 0
    lengths = graph.column("near_octets")[graph.send]
    return {
        "collective": trial.collective,
        "size_bytes": trial.size_bytes,
        "delivered_messages": int(there.sum()),
        "messages": len(there),
        "delivered_bytes": int(lengths[there].sum()),
        "payload_bytes": int(lengths.sum()),
        "unfinished_gpus": [result.node for result in results if (result.operation_end < 0).any()],
    }


def footer(unfinished: Mapping[str, object], transport: str | None = None) -> str:
    """One line for the table, by ``transport`` if it is given."""
    gone = unfinished.get("cut_off_gpus", ())
    assert isinstance(gone, Sequence)
    lost = ", ".join([*gone, *stated_pairs(unfinished.get("cut_off_pairs"))])
    return (
        ("" if transport is None else f"{transport}, ")
        + f"{unfinished['collective']} {unfinished['size_bytes']} B: "
        f"{unfinished['delivered_messages']} of {unfinished['messages']} messages were delivered"
        + (f"; the faults cut off {lost}" if lost else "")
    )
