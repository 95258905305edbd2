"""The lab that a verb acts on: the one named, or the only one that runs.

A node of a lab is NODE where one is running, and LAB:NODE where several are.
"""

from __future__ import annotations

from collections.abc import Mapping

from emulator.dataplane import lab_record
from emulator.dataplane.lab_record import LabRecord, Phase
from emulator.errors import UserError
from topologies.advice import question


def up() -> dict[str, LabRecord]:
    """The labs that are up, by name."""
    loaded = (lab_record.load(lab) for lab in lab_record.recorded())
    return {item.lab: item for item in loaded if item is not None and item.phase is Phase.UP}


def choose_lab(name: str | None, how: str) -> LabRecord:
    """Return the lab ``name``, or the only one that runs; ``how`` explains how to name one.

    Raises UserError, which lists them, if there is none of that name, or several.
    """
    labs = up()
    if name in labs:
        return labs[name]
    running = [item for item in labs.values() if not item.abandoned and not _joined(item, labs)]
    if name is None and len(running) == 1:
        return running[0]
    names = ", ".join(item.lab for item in running)
    listed = f"running: {names}" if running else "none is running, start one: uetemu up"
    wrong = f"say which lab, {how}" if name is None else f"there is no lab {name!r}"
    raise UserError(f"{wrong} ({listed})")


def _joined(record: LabRecord, labs: Mapping[str, LabRecord]) -> bool:
    """Return whether the lab is a network of a cluster that runs, which is named in its place."""
    return record.settings.membership is not None and record.settings.membership.cluster in labs


def with_node(record: LabRecord, node: str) -> LabRecord:
    """Return the record of the lab that has ``node``: this one, or another network of its cluster.

    It is ``record`` itself if none has.
    """
    networks = (record, *lab_record.members(record.lab))
    return next((item for item in networks if node in item.nodes), record)


def agreed(option: str | None, words: Mapping[str, str]) -> str | None:
    """The lab that ``--lab`` (``option``) and ``words`` name, each with its lab; None: no lab.

    Raises UserError if they name several.
    """
    named = dict(words) if option is None else {f"--lab {option}": option, **words}
    for word, lab in named.items():
        first, other = next(iter(named.items()))
        if lab != other:
            raise UserError(f"{first} and {word} name different labs: leave one of them out")
    return next(iter(named.values()), None)


def node_of(option: str | None, word: str) -> tuple[LabRecord, str]:
    """Return the lab and the name of the node ``[LAB:]NODE``; ``option`` is that of ``--lab``.

    Raises UserError, with the nearest name, if no lab or no node of it is meant.
    """
    lab, colon, name = word.rpartition(":")
    named = agreed(option, {word: lab} if colon else {})
    record = with_node(choose_lab(named, "as LAB:NODE or with --lab"), name)
    if name not in record.nodes:
        listed = f"uetemu status {record.lab} lists them"
        hint = question(name, record.nodes, otherwise=listed)
        raise UserError(f"lab {record.lab} has no node {name!r}; {hint}")
    return record, name
