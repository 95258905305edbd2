"""AlltoAllv over every GPU of the cluster: some experts are more popular than others.

::

    before                             after
    rank 0   [0 | 01   | 02 | 03]      rank 0   [0  | 10 | 20 | 30]
    rank 1   [10 | 1   | 12 | 13]      rank 1   [01   | 1   | 21   | 31]
    rank 2   [20 | 21  | 2  | 23] ---> rank 2   [02 | 12 | 2  | 32]
    rank 3   [30 | 31  | 32 | 3]       rank 3   [03 | 13 | 23 | 3]

Traffic: every GPU sends ``sizes`` octets, a part to each GPU, itself included, in rounds as
``alltoall`` has them.  The parts follow ``pattern``:

- ``zipf``: the r-th most popular GPU gets a share of 1 / r^``skew`` from everybody; the seed draws
  which GPU that is.  ``skew=0`` is balanced.
- ``distance``: the generated pattern of the NCCL tests: more for ranks whose number is further;
  everybody sends and receives equally much.
- ``file``: a matrix of octets in ``matrix``, as the NCCL tests read it.

Every element of every result is compared.

Measured: for each size the time from a common start until the last GPU is done.  The row's size is
what the busiest GPU sends or receives, and from it

- algbw = size / time, busbw = algbw * (n-1)/n, as the NCCL tests define them, in GB/s;
- imbalance: what the most popular GPU receives over the mean of all;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.run.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

What should be seen: the NIC of the most popular GPU decides, and everybody else waits for it.  With
``peers`` rounds under way, the incast at that GPU grows with the differences between the parts:
who has little to send to others comes to it early.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.errors import UserError
from emulator.run.report.result_table import TableColumn
from emulator.scenario import Contents, parameter, refuse_idle
from scenarios.collectives.algorithm_registry import algorithms
from scenarios.collectives.collective import (
    COLUMNS as COLLECTIVE_COLUMNS,
)
from scenarios.collectives.collective import (
    INPUT,
    OUTPUT,
    CollectiveBenchmark,
    all_peers,
)
from scenarios.collectives.collective_data import CollectiveData
from scenarios.collectives.collective_parameters import EXPONENT, SHARE, ExchangeParameters
from scenarios.collectives.exchange_matrix import (
    Matrix,
    distance_matrix,
    read_matrix,
    zipf_matrix,
)
from topologies.parts.design_parameters import TEXT

COLUMNS = (*COLLECTIVE_COLUMNS, TableColumn("imbalance", "max/mean", "", 8))


@dataclass(frozen=True, kw_only=True)
class Parameters(ExchangeParameters):
    """The parameters of ``alltoallv``."""

    algorithm: str = parameter(
        "shift", choices=algorithms("alltoallv", first="shift"), help="how the data travel"
    )
    pattern: str = parameter(
        "zipf", choices=("zipf", "distance", "file"), help="who sends how much to whom"
    )
    skew: int = parameter(1000, EXPONENT, help="exponent of Zipf's law; 0: balanced")
    spread: int = parameter(1000, SHARE, help="of pattern=distance: 0 uniform, 1 by distance")
    matrix_file: str = parameter(
        "", TEXT, help="of pattern=file: octets, a sender in each line", aliases=("matrix",)
    )

    def __post_init__(self) -> None:
        if (self.pattern == "file") != bool(self.matrix_file):
            raise UserError("pattern=file and matrix=FILE go together; give both or neither")
        for name, pattern in (("skew", "zipf"), ("spread", "distance")):
            if self.pattern != pattern:
                refuse_idle(self, (name,), f"beside pattern={self.pattern}")
        super().__post_init__()

    @property
    def sweep(self) -> tuple[int, ...]:
        """Return the sizes to run; a matrix has one."""
        return (super().sweep[-1],) if self.pattern == "file" else super().sweep

    def matrix(self, members: int, size: int, seed: int) -> Matrix:
        """Return who sends how much to whom in an exchange of ``size`` octets."""
        if self.pattern == "file":
            made = read_matrix(Path(self.matrix_file), members)
        elif self.pattern == "distance":
            made = distance_matrix(members, size, self.spread / 1000)
        else:
            made = zipf_matrix(members, size, self.skew / 1000, seed)
        if not any(sent for p, row in enumerate(made) for q, sent in enumerate(row) if p != q):
            raise UserError(
                f"a size of {size} B leaves no 16 octets for another one of {members} GPUs; take a "
                "larger size"
            )
        return made


def _matrix(data: CollectiveData) -> Matrix:
    assert data.matrix is not None
    return data.matrix


def _buffers(data: CollectiveData, root: int, position: int) -> dict[str, int]:
    matrix = _matrix(data)
    return {INPUT: sum(matrix[position]), OUTPUT: sum(row[position] for row in matrix)}


def _inputs(data: CollectiveData, root: int, position: int) -> Contents:
    if not sum(_matrix(data)[position]):
        return {}
    return {INPUT: np.concatenate([data.piece(position, to) for to in range(data.members)])}


def _expected(data: CollectiveData, root: int, position: int) -> Contents:
    if not sum(row[position] for row in _matrix(data)):
        return {}
    return {OUTPUT: np.concatenate([data.piece(one, position) for one in range(data.members)])}


COLLECTIVE = CollectiveBenchmark(
    name="alltoallv",
    title="AlltoAllv",
    key="alltoallv",
    bus_factor=all_peers,
    buffers=_buffers,
    inputs=_inputs,
    expected=_expected,
    by_parts=True,
)

topology = COLLECTIVE.topology
schedules = COLLECTIVE.schedules
measures = COLLECTIVE.measures
