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

from emulator.run.faults.condition import some
from emulator.run.faults.disturbance import stated_pairs
from emulator.run.measures.message_times import Recorder
from emulator.scenario import Trial
from emulator.sim.endpoint.operations.rank_result import RankResult


def unfinished(
    trial: Trial,
    results: Sequence[RankResult],
    messages: Recorder,
    *,
    together: bool,
) -> Mapping[str, object]:
    """The values described above; ``results`` are those of the ranks that still answered.

    ``messages`` are those of the trial.  ``together``: all processes call it; else
    this one says what it knows by itself.
    """
    division = messages.division
    own = [one for one in results if one.rank in division.own]
    waiting = [(one.rank, one.node) for one in own if (one.operation_end < 0).any()]
    mine = (*messages.delivered(own), waiting)
    parts = division.processes.gather("unfinished", mine) if together else [mine]
    return {
        "collective": trial.collective,
        "size_bytes": trial.size_bytes,
        "delivered_messages": sum(number for number, _, _ in parts),
        "messages": messages.total,
        "delivered_bytes": sum(octets for _, octets, _ in parts),
        "payload_bytes": messages.total_octets,
        "unfinished_gpus": [node for _, node in sorted(one for *_, some in parts for one in some)],
    }


def footer(unfinished: Mapping[str, object], transport: str | None = None) -> str:
    """One line for the table, by ``transport`` if it is given."""
    gone = unfinished.get("cut_off_gpus", ())
    assert isinstance(gone, Sequence)
    lost = ", ".join([*gone, *stated_pairs(unfinished.get("cut_off_pairs"))])
    there, count = unfinished["delivered_messages"], unfinished["messages"]
    heard = f"{there} of {count} messages were delivered"
    waiting = unfinished["unfinished_gpus"]
    assert isinstance(waiting, Sequence)
    if waiting and there == count:
        heard += f", but {some(waiting)} had not heard of it"
    return (
        ("" if transport is None else f"{transport}, ")
        + f"{unfinished['collective']} {unfinished['size_bytes']} B: {heard}"
        + (f"; the faults cut off {lost}" if lost else "")
    )
