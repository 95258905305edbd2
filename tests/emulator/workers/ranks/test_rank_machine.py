"""Machines whose ranks would not fit together are refused by name."""

from __future__ import annotations

import pytest

from emulator.errors import UserError
from emulator.workers.ranks.rank_machine import RankMachine, check_alike
from tests.harness.engine.memory_channel import ranks_of

HERE = RankMachine("a", "6.1.0-18-amd64", "0123456789ab")


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (
            RankMachine("b", HERE.kernel, "ba9876543210"),
            r"^MPI rank 1 on b has another uetemu \(ba9876543210\) than MPI rank 0 on a \(0123456",
        ),
        (
            RankMachine("b", "6.12.0-1-amd64", HERE.sources),
            r"^MPI rank 1 on b has kernel 6\.12\.0-1-amd64, and MPI rank 0 on a has 6\.1\.0-18",
        ),
    ],
)
def test_another_machine_is_refused(other: RankMachine, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        check_alike([HERE, other], ranks_of(2)[0])


def test_equal_machines_are_taken() -> None:
    check_alike([HERE, RankMachine("b", HERE.kernel, HERE.sources)], ranks_of(2)[0])
    assert RankMachine.here() == RankMachine.here()
