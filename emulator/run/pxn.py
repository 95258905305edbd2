"""Traffic that changes the rail does so over the scale-up network (NCCL's PXN).

::

    server 0        g0 ---copy over NVLink---> g1          server 1
                                               |
                                             write
                                               |
                                             rail1 ------> g1

A write from GPU to GPU becomes two: a copy to the GPU of the same scale-up network that stands on
the destination's rail, into memory set aside there. From there a write goes over the fabric.  Its
receive completes at the destination as before, only that the data come from another rank.  What
waited for the write at its source waits for the copy: the source's memory is free again then.

Fabrics without spines need it wherever a schedule leaves its rail (``auto``).  On others it keeps
traffic off the spines (``always``).

::

    source                      relay                       destination
    write to 5, tag 8   --1-->                              receive from 0, tag 8
      becomes                                                 becomes
    copy to 1, tag 2    --2-->  receive from 0, tag 2
      into the stage    <--2--  write to 5, tag 3    --2--> receive from 1, tag 3

A stage is the memory of a relay for what it sends on.  Tags from a GPU to another and places in a
stage are given in the order of all relayed writes, by rank and index.  Each process computes the
schedules of its own GPUs.  It gives all tags of what these send, and all places in their stages, so
that two rounds of messages do: (1) writes go to the processes of their relays, (2) tags and places
to those that need them.

Operations keep their places in their schedules, and what is added comes behind them: all records of
the original schedules (:mod:`emulator.run.measures.message_times`) hold for the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.errors import UserError
from emulator.run.plan.variants import PXN_MODES
from emulator.sim.endpoint.operations.operation_table import (
    COLUMNS,
    COPY,
    RECEIVE,
    WRITE,
    Names,
    OperationTable,
    distinct,
)
from emulator.sim.endpoint.operations.schedule import Operation, Schedule, Write
from emulator.workers.division import Division, JobSchedules
from topologies.model import Node, Topology
from topologies.parts.scale_up import ScaleUpDomains
from topologies.routing.paths import spans_from

#: The buffer that is the stage.
BUFFER = "pxn"
ALIGNMENT = 64  # octets, of places in it
Pair = tuple[int, int]  # ranks: source, destination
Numbers = npt.NDArray[np.signedinteger[Any]]
#: A relayed write each, with the fields of ``_FIELDS``.
Records = npt.NDArray[np.void]
#: Ranks, and the write's index at its source; its remote region, whose ``buffer`` is a number among
#: the names of the process that has the record; tags before and after; the place in the stage.
_FIELDS = np.dtype(
    [(name, np.int32) for name in ("source", "relay", "destination", "index", "buffer")]
    + [(name, np.int64) for name in ("octets", "far_at", "far_octets")]
    + [(name, np.int64) for name in ("tag", "inside", "outside", "offset")]
)
#: Bits of a key below a rank or the number of a pair, for tags and counts.
_LOW_BITS = 32


@dataclass(frozen=True)
class _Answer:
    """A message from a process to another in the second round.

    ``inside`` are the tags of copies to the other's relays, and ``offsets`` the places in own
    stages of writes of the other's GPUs.  ``arriving`` are writes that own GPUs send on to the
    other's, and ``staged`` the octets of own stages, by rank.
    """

    inside: Numbers
    offsets: Numbers
    arriving: Records
    staged: Mapping[int, int]


class RelayedWrites:
    """The schedules of a process's own GPUs, whose writes are relayed as ``relays`` has it.

    ``tables`` are their operations by rank, and ``relays`` the GPUs that send instead of a pair's
    source.  Where it is the destination, a copy is all that is needed.
    """

    def __init__(
        self,
        schedules: JobSchedules,
        tables: Mapping[int, OperationTable],
        relays: Mapping[Pair, int],
    ) -> None:
        self._before, self._tables, self._relays = schedules, tables, relays
        self._processes = schedules.division.processes
        self._home = np.asarray(schedules.division.home, np.int32)
        self._names = Names()  # of buffers that relays write to
        self._buffer = BUFFER
        while any(self._buffer in schedule.buffers for schedule in schedules):
            self._buffer += "-"

    def schedules(self) -> list[Schedule]:
        """Return the schedules of all ranks; those of others' GPUs are given their stages alone.

        All processes call it.
        """
        own = _joined(self._relayed_of(rank) for rank in self._tables)
        own = own[_relay_order(own)]
        here, sender = self._asked(own)
        own["inside"], here["outside"] = self._tags(own, here)
        here["offset"], staged = _stages(here)
        arriving, stages = self._exchanged(own, here, sender, staged)
        sources, relays = _places(own["source"]), _places(here["relay"])
        destinations, none = _places(arriving["destination"]), np.zeros(0, np.intp)
        made = []
        for schedule in self._before:
            rank = schedule.rank
            if rank in self._tables:
                table = self._table(
                    rank,
                    own[sources.get(rank, none)],
                    here[relays.get(rank, none)],
                    arriving[destinations.get(rank, none)],
                )
                if table is not self._tables[rank]:
                    schedule = replace(schedule, operations=table)
            if stages.get(rank):
                buffers = {**schedule.buffers, self._buffer: stages[rank]}
                schedule = replace(schedule, buffers=buffers)
            made.append(schedule)
        return made

    # -- writes, and who relays them -----------------------------------------------------------

    def _relays_of(self, rank: int) -> tuple[Numbers, Numbers]:
        """Return the indices of the writes of ``rank`` that it does not send, and their relays."""
        table = self._tables[rank]
        writes = table.where(WRITE)
        peers, place = np.unique(table.columns["peer"][writes], return_inverse=True)
        relay = np.array([self._relays.get((rank, peer), -1) for peer in peers.tolist()], np.int32)
        relays = relay[place]
        return writes[relays >= 0], relays[relays >= 0]

    def _relayed_of(self, rank: int) -> Records:
        """Return the writes of ``rank`` that another GPU sends on."""
        columns = self._tables[rank].columns
        index, relay = self._relays_of(rank)
        on = relay != columns["peer"][index]
        index, relay = index[on], relay[on]
        found = np.zeros(len(index), _FIELDS)
        found["source"], found["relay"], found["index"] = rank, relay, index
        found["destination"], found["tag"] = columns["peer"][index], columns["tag"][index]
        found["octets"] = columns["near_octets"][index]
        found["far_at"] = columns["far_at"][index]
        found["far_octets"] = columns["far_octets"][index]
        found["buffer"] = _renumbered(
            columns["far_buffer"][index], self._tables[rank].names, self._names
        )
        return found

    # -- exchanges -----------------------------------------------------------------------------

    def _asked(self, own: Records) -> tuple[Records, Numbers]:
        """Return the writes of all processes that own GPUs relay, and whose each is."""
        names = self._names.all()
        asked: list[tuple[Records, Sequence[str]]] = self._processes.all_to_all(
            "writes to relay", [(own[one], names) for one in self._of_each(own["relay"])]
        )
        for records, theirs in asked:
            records["buffer"] = _renumbered(records["buffer"], theirs, self._names)
        here = _joined(records for records, _ in asked)
        sender = np.repeat(np.arange(len(asked)), [len(records) for records, _ in asked])
        order = _relay_order(here)
        return here[order], sender[order]

    def _exchanged(
        self, own: Records, here: Records, sender: Numbers, staged: Mapping[int, int]
    ) -> tuple[Records, Mapping[int, int]]:
        """Fill in what other processes know of ``own`` and ``here``.

        Returns the relayed writes that arrive at own GPUs, and the octets of the stages of all.
        The writes of one process that another relays are in the same order at both.
        """
        to_relay, arriving = self._of_each(own["relay"]), self._of_each(here["destination"])
        asked = [np.flatnonzero(sender == process) for process in range(self._processes.count)]
        answers: list[_Answer] = self._processes.all_to_all(
            "places of relayed writes",
            [
                _Answer(own["inside"][ours], here["offset"][theirs], here[ends], staged)
                for ours, theirs, ends in zip(to_relay, asked, arriving, strict=True)
            ],
        )
        for ours, theirs, answer in zip(to_relay, asked, answers, strict=True):
            own["offset"][ours] = answer.offsets
            here["inside"][theirs] = answer.inside
        stages = {rank: octets for answer in answers for rank, octets in answer.staged.items()}
        return _joined(answer.arriving for answer in answers), stages

    def _of_each(self, ranks: Numbers) -> list[Numbers]:
        """Return the places of each process's GPUs in ``ranks``."""
        owner = self._home[ranks]
        return [np.flatnonzero(owner == process) for process in range(self._processes.count)]

    # -- tags ----------------------------------------------------------------------------------

    def _tags(self, own: Records, here: Records) -> tuple[Numbers, Numbers]:
        """Return the tags of the copies of ``own`` writes, and of the writes ``here``."""
        count = len(self._home)
        sender = np.concatenate([own["source"], here["relay"]]).astype(np.int64)
        receiver = np.concatenate([own["relay"], here["destination"]])
        # No GPU relays its own writes: those of one pair and source are all copies, or all writes.
        order = np.argsort(np.concatenate([own["source"], here["source"]]), kind="stable")
        taken_pairs, taken = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for rank in distinct(sender).tolist():
            table = self._tables[rank]
            sends = table.where(WRITE, COPY)
            peer = table.columns["peer"][sends]
            known = sends[(peer >= 0) & (peer < count)]
            taken_pairs.append(rank * count + table.columns["peer"][known].astype(np.int64))
            taken.append(table.columns["tag"][known].astype(np.int64))
        tags = np.empty(len(order), np.int64)
        tags[order] = free_tags(
            (sender * count + receiver)[order], np.concatenate(taken_pairs), np.concatenate(taken)
        )
        return tags[: len(own)], tags[len(own) :]

    # -- operations ----------------------------------------------------------------------------

    def _table(
        self, rank: int, sent: Records, relayed: Records, arriving: Records
    ) -> OperationTable:
        """Return the operations of ``rank``, which sends and relays these writes and gets those."""
        table = self._tables[rank]
        handed, _ = self._relays_of(rank)
        if not len(handed) + len(relayed) + len(arriving):
            return table
        columns = {name: table.columns[name].astype(np.int64) for name in COLUMNS}
        names = Names(table.names)
        columns["kind"][handed] = COPY
        if len(sent):
            index = sent["index"]
            columns["peer"][index], columns["tag"][index] = sent["relay"], sent["inside"]
            columns["far_buffer"][index] = names.number(self._buffer)
            columns["far_at"][index], columns["far_octets"][index] = sent["offset"], sent["octets"]
        receives, moved = _receives(table, arriving)
        columns["peer"][receives], columns["tag"][receives] = moved["relay"], moved["outside"]
        added = self._added(relayed, names)
        ends = (np.arange(2 * len(relayed), dtype=np.int64) + 1) // 2
        after = len(table) + 2 * np.arange(len(relayed), dtype=np.int64)
        return OperationTable(
            {name: np.concatenate([columns[name], added[name]]) for name in COLUMNS},
            np.concatenate([table.begin, table.begin[-1] + ends]),
            np.concatenate([table.after, after]),
            names.all(),
            table.calls,
        )

    def _added(self, relayed: Records, names: Names) -> Mapping[str, Numbers]:
        """Return the columns of a receive and a write for each of the writes ``relayed``."""
        added = {name: np.zeros(2 * len(relayed), np.int64) for name in COLUMNS}
        receive, write = slice(0, None, 2), slice(1, None, 2)
        if len(relayed):
            added["near_buffer"][:] = names.number(self._buffer)
        for one, kind, peer, tag in (
            (receive, RECEIVE, "source", "inside"),
            (write, WRITE, "destination", "outside"),
        ):
            added["kind"][one] = kind
            added["peer"][one], added["tag"][one] = relayed[peer], relayed[tag]
            added["near_at"][one], added["near_octets"][one] = relayed["offset"], relayed["octets"]
        added["far_buffer"][write] = _renumbered(relayed["buffer"], self._names.all(), names)
        added["far_at"][write] = relayed["far_at"]
        added["far_octets"][write] = relayed["far_octets"]
        return added


def free_tags(asked: Numbers, pairs: Numbers, tags: Numbers) -> Numbers:
    """Return a tag for each of ``asked``, which are pairs: the lowest ones that are free, in order.

    Of ``pairs`` those in ``tags`` are taken.
    """
    groups, group = np.unique(asked, return_inverse=True)
    counts = np.bincount(group, minlength=len(groups))
    turn = np.empty(len(asked), np.int64)  # among those of its pair
    turn[np.argsort(group, kind="stable")] = _counted(counts)
    taken = np.isin(pairs, groups) & (tags >= 0) & (tags < 1 << _LOW_BITS - 1)
    keys = distinct(np.searchsorted(groups, pairs[taken]) << _LOW_BITS | tags[taken])
    of = keys >> _LOW_BITS
    first = np.searchsorted(of, np.arange(len(groups)))
    # free tags below each that is taken: whose turn is not below them comes behind it
    below = keys - (np.arange(len(keys)) - first[of])
    skipped = np.searchsorted(below, group << _LOW_BITS | turn, side="right") - first[group]
    return turn + skipped


def _counted(counts: Numbers) -> Numbers:
    """Return 0, 1, ... for each of ``counts`` in a row."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _receives(table: OperationTable, arriving: Records) -> tuple[Numbers, Records]:
    """Return the indices of receives in ``table`` that wait for ``arriving``, and those of them.

    Of receives with the same source and tag it is the last.
    """
    receives = table.where(RECEIVE)
    columns = table.columns
    keys = _key(columns["peer"][receives], columns["tag"][receives])
    order = np.argsort(keys, kind="stable")
    wanted = _key(arriving["source"], arriving["tag"])
    place = np.searchsorted(keys[order], wanted, side="right") - 1
    some = place >= 0
    place, arriving, wanted = place[some], arriving[some], wanted[some]
    match = keys[order[place]] == wanted
    return receives[order[place[match]]], arriving[match]


def _key(rank: npt.NDArray[Any], tag: npt.NDArray[Any]) -> Numbers:
    key: Numbers = (rank.astype(np.int64) << _LOW_BITS) + tag
    return key


def _stages(here: Records) -> tuple[Numbers, Mapping[int, int]]:
    """Return the place of each write in the stage of its relay, and the octets of each stage."""
    octets = -(-here["octets"] // ALIGNMENT) * ALIGNMENT
    relays, first, counts = np.unique(here["relay"], return_index=True, return_counts=True)
    ends = np.cumsum(octets)
    begins = ends - octets
    base = begins[first]
    staged = ends[first + counts - 1] - base
    return begins - np.repeat(base, counts), dict(
        zip(relays.tolist(), staged.tolist(), strict=True)
    )


def _joined(records: Iterable[Records]) -> Records:
    return np.concatenate([np.zeros(0, _FIELDS), *records])


def _relay_order(records: Records) -> Numbers:
    """Return the order by relay, then by source; those of one source stay as they are."""
    return np.lexsort((records["source"], records["relay"]))


def _places(ranks: Numbers) -> Mapping[int, Numbers]:
    """Return where each rank is among ``ranks``."""
    order = np.argsort(ranks, kind="stable")
    found, first, counts = np.unique(ranks[order], return_index=True, return_counts=True)
    bounds = zip(found.tolist(), first.tolist(), counts.tolist(), strict=True)
    return {rank: order[begin : begin + count] for rank, begin, count in bounds}


def _renumbered(numbers: npt.NDArray[Any], names: Sequence[str], into: Names) -> Numbers:
    used, place = np.unique(numbers, return_inverse=True)
    new = np.array([into.number(names[number]) for number in used.tolist()], np.int64)
    return new[place]


@dataclass(frozen=True)
class Pxn:
    """The writes that are relayed on ``topology`` by the ``mode`` of ``--pxn``."""

    topology: Topology
    mode: str = PXN_MODES[0]

    def relayed(self, schedules: Sequence[Schedule]) -> JobSchedules:
        """The schedules of all ranks, in rank order, with writes relayed where they have to be.

        All processes call it, and each has the operations of its own GPUs.  Of others' it gets and
        returns the buffers.
        Raises :class:`UserError` in all of them for a write to a GPU that neither its source
        reaches, nor anybody who may relay it.
        """
        job = JobSchedules.of(schedules)
        own = sorted(job.division.own)
        tables = {rank: OperationTable.of(job[rank].operations) for rank in own}
        relays = self._relays(tables, job.division)
        return job.changed(RelayedWrites(job, tables, relays).schedules())

    def _relays(
        self, tables: Mapping[int, OperationTable], division: Division
    ) -> Mapping[Pair, int]:
        """Return the relay of each pair that has one, for writes in ``tables``."""
        pairs = [
            (rank, peer)
            for rank, table in tables.items()
            for peer in table.peers(WRITE)
            if 0 <= peer < len(division.home)
        ]
        relays: dict[Pair, int] = {}
        failure: tuple[Pair, str] | None = None
        for pair in pairs:
            try:
                relay = self.relay(*pair)
            except UserError as error:
                failure = pair, str(error)
                break
            if relay is not None:
                relays[pair] = relay
        if (sentence := division.first_failure("relays of writes", failure)) is not None:
            raise UserError(sentence)
        return relays

    def relay(self, source: int, destination: int) -> int | None:
        """The rank that sends to ``destination`` what ``source`` writes; None: itself.

        It is ``destination`` where a copy inside the server is all that is needed.
        """
        gpus = self.topology.gpus
        here, there = gpus[source], gpus[destination]
        direct = self._hops(here, there)
        if direct is not None and self.mode != "always":
            return None
        joined = self._scale_up.joins(here.name, there.name)
        near = [source, *(self._ranks[name] for name in self._scale_up.peers(here.name))]
        mates = {
            rank: far for rank in sorted(near) if (far := self._hops(gpus[rank], there)) is not None
        }
        if self.mode == "off" or (not mates and not joined and direct is None):
            way_out = (
                "leave --pxn at auto to relay it over NVLink, or take a fabric with spines"
                if mates or joined
                else "and no GPU that it reaches over NVLink does: take a fabric with spines"
            )
            raise UserError(
                f"{here.name} does not reach {there.name} over this fabric, and the schedule has "
                f"it write there; {way_out}"
            )
        if joined:
            return destination
        least = min(mates.values())
        if direct is not None and direct <= least:
            return None
        nearest = [rank for rank, far in mates.items() if far == least]
        # GPUs that share a NIC are equally near: those of the same number take turns
        return nearest[(there.local_rank or 0) % len(nearest)]

    @cached_property
    def _scale_up(self) -> ScaleUpDomains:
        return ScaleUpDomains(self.topology)

    @cached_property
    def _ranks(self) -> Mapping[str, int]:
        return {gpu.name: rank for rank, gpu in enumerate(self.topology.gpus)}

    def _hops(self, here: Node, there: Node) -> int | None:
        """Return the number of cables from GPU ``here`` to ``there``; None: no way leads there."""
        span = spans_from(self.topology, here.name).get(there.name)
        return None if span is None else span.hops


def changed(before: Sequence[Schedule], after: Sequence[Schedule]) -> int:
    """Return how many writes of the schedules ``before`` are no longer writes in ``after``.

    What has no operations there counts nothing, so that processes may add up those of their GPUs.
    """
    count = 0
    for old, new in zip(before, after, strict=True):
        if old is not new:
            writes = np.flatnonzero(_are_writes(old.operations))
            still = _are_writes(new.operations)
            count += int(np.count_nonzero(~still[writes[writes < len(still)]]))
    return count


def _are_writes(operations: Sequence[Operation]) -> npt.NDArray[np.bool_]:
    """Return which of ``operations`` are writes, without a table made for it."""
    if isinstance(operations, OperationTable):
        writes: npt.NDArray[np.bool_] = operations.columns["kind"] == WRITE
        return writes
    return np.fromiter((isinstance(one, Write) for one in operations), bool, len(operations))
