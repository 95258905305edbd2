"""The traffic that a run's schedules announce: who sends how much to whom, before it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from emulator.sim.endpoint.operations.operation_table import COPY, WRITE, OperationTable

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ExpectedTraffic:
    """Octets from ``sender`` to ``receiver`` (ranks), a row for each pair that has any.

    ``written`` cross the fabric, ``copied`` the scale-up network.
    """

    sender: Numbers
    receiver: Numbers
    written: Numbers
    copied: Numbers

    @classmethod
    def of(cls, tables: Iterable[OperationTable]) -> Self:
        """The traffic of one execution; the tables are those of ranks 0, 1, ..."""
        rows: list[Numbers] = [np.zeros((4, 0), np.int64)]
        for rank, table in enumerate(tables):
            for kind, row in ((WRITE, 2), (COPY, 3)):
                chosen = table.where(kind)
                peers = np.asarray(table.columns["peer"][chosen], np.int64)
                receivers, place = np.unique(peers, return_inverse=True)
                part = np.zeros((4, len(receivers)), np.int64)
                part[0], part[1] = rank, receivers
                octets = np.asarray(table.columns["near_octets"][chosen], np.int64)
                np.add.at(part[row], place, octets)
                rows.append(part)
        return cls(*np.concatenate(rows, axis=1))

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """All ``parts`` one behind the other."""
        columns = [np.stack((one.sender, one.receiver, one.written, one.copied)) for one in parts]
        return cls(*np.concatenate([np.zeros((4, 0), np.int64), *columns], axis=1))

    def by_sender(self) -> Self:
        """The rows in the order of their senders."""
        order = np.argsort(self.sender, kind="stable")
        columns = self.sender, self.receiver, self.written, self.copied
        return type(self)(*(column[order] for column in columns))
