"""Communicators: which GPUs take part in a collective, and in which order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from emulator.errors import UserError
from scenarios.collectives import ring
from topologies.model import Topology

#: Words that stand for one communicator, or for several side by side.
ALL, HOST, RAIL = "all", "host", "rail"
#: Stands before the number of ranks of each communicator.
_EACH = "/"


@dataclass(frozen=True)
class Communicator:
    """Ranks of the cluster in the order of their positions: rank ``ranks[p]`` has position p."""

    ranks: tuple[int, ...]
    topology: Topology
    #: decides at random which members the library takes for those of a host; None: it finds them
    shuffled_by: int | None = None

    def __len__(self) -> int:
        return len(self.ranks)

    @cached_property
    def hosts(self) -> list[list[int]]:
        """Return the positions of each host's members, host by host, as the library sees them.

        Shuffled, the ranks were placed on the GPUs at random, and the library still believes that
        consecutive ranks share a host.
        """
        gpus = self.topology.gpus
        found: dict[str | None, list[int]] = {}
        for position, rank in enumerate(self.ranks):
            found.setdefault(gpus[rank].server, []).append(position)
        hosts = list(found.values())
        if self.shuffled_by is None:
            return hosts
        placed = [position for host in hosts for position in host]
        random.Random(f"placement {self.shuffled_by}").shuffle(placed)
        turn = iter(placed)
        return [[next(turn) for _ in host] for host in hosts]

    @cached_property
    def uniform(self) -> bool:
        """Return whether all hosts have equally many members."""
        return len({len(host) for host in self.hosts}) == 1

    @cached_property
    def rings(self) -> list[tuple[int, ...]]:
        """Return rings of ranks, one for each member of a host, which stay on their rails.

        Hosts with unequal numbers of members have one ring through all, host after host.
        """
        members = [[self.ranks[position] for position in host] for host in self.hosts]
        if not self.uniform:
            return [tuple(rank for host in members for rank in host)]
        return ring.rail_rings(members, shape=ring.shape_of(self.topology))

    def position(self, rank: int) -> int:
        return self._positions[rank]

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {rank: position for position, rank in enumerate(self.ranks)}


def communicators(
    topology: Topology, text: str, collective: str, *, shuffled_by: int | None = None
) -> list[Communicator]:
    """Return the communicators that ``text`` names: all, host, rail, /N, or ranks such as 0-3,8.

    ``host`` makes one of the GPUs of each host, ``rail`` one of those of each rail, and ``/N`` one
    of each N ranks in a row, as ``NCCL_TESTS_SPLIT`` does; these work side by side.  Raises
    UserError for what does not exist and for a communicator of one GPU.
    """
    gpus = topology.gpus
    groups: dict[object, list[int]] = {}
    if text == ALL:
        groups[ALL] = list(range(len(gpus)))
    elif text in (HOST, RAIL):
        for rank, gpu in enumerate(gpus):
            groups.setdefault(gpu.server if text == HOST else gpu.rail, []).append(rank)
    elif text.startswith(_EACH):
        each = _number(text.removeprefix(_EACH))
        if not each:
            raise UserError(_unknown(text))
        for rank in range(len(gpus)):
            groups.setdefault(rank // each, []).append(rank)
    else:
        groups[text] = _listed(text, len(gpus))
    for members in groups.values():
        if len(members) < 2:
            raise UserError(_lonely(topology, text, collective, members))
    return [Communicator(tuple(one), topology, shuffled_by) for one in groups.values()]


def _lonely(topology: Topology, text: str, collective: str, members: Sequence[int]) -> str:
    if text == ALL:
        return (
            f"{collective} needs at least two GPUs and topology {topology.name} has "
            f"{len(topology.gpus)}; add hosts or GPUs"
        )
    return (
        f"{collective} needs at least two GPUs in each communicator, and ranks={text} makes one of "
        f"rank {members[0]} alone in topology {topology.name}; name more ranks, or take ranks=all"
    )


def _listed(text: str, count: int) -> list[int]:
    """Return the ranks of a list such as ``0-3,8``, in its order."""
    listed: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        digits = (first, last) if dash else (first,)
        ends = [number for one in digits if (number := _number(one)) is not None]
        if len(ends) < len(digits):
            raise UserError(_unknown(text))
        if max(ends) >= count:
            raise UserError(
                f"ranks is {text!r}, and rank {max(ends)} does not exist: the topology has ranks "
                f"0 to {count - 1}"
            )
        if ends[-1] < ends[0]:
            raise UserError(f"ranks is {text!r}, and {part} runs backwards; write the lower first")
        listed.extend(range(ends[0], ends[-1] + 1))
    twice = next((rank for rank in listed if listed.count(rank) > 1), None)
    if twice is not None:
        raise UserError(f"ranks is {text!r}, which names rank {twice} twice; name it once")
    return listed


def _number(digits: str) -> int | None:
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 6 else None


def _unknown(text: str) -> str:
    return f"ranks is {text!r}; write all, host, rail, /64, or ranks such as 0-3,8 or 0,4,8"
