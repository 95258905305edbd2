"""Matrices of exchanges: shares, files, and what files may not hold."""

from pathlib import Path

import pytest

from emulator.errors import UserError
from scenarios.collectives.exchange_matrix import (
    busiest,
    distance_matrix,
    imbalance,
    read_matrix,
    zipf_matrix,
)


def test_zipf_shares_fall_with_the_rank() -> None:
    matrix = zipf_matrix(4, 25 * 16 * 1000, 1.0, seed=1)
    assert len(set(matrix)) == 1
    row = sorted(matrix[0], reverse=True)
    for number, part in enumerate(row, 1):
        assert part == pytest.approx(row[0] / number, abs=16)
    assert zipf_matrix(4, 400_000, 1.0, seed=2)[0] != matrix[0]
    assert imbalance(matrix) == pytest.approx(4 * 12 / 25, rel=1e-3)  # 1 / (1 + 1/2 + 1/3 + 1/4)


def test_without_skew_all_parts_are_equal() -> None:
    matrix = zipf_matrix(5, 8000, 0, seed=1)
    assert {part for row in matrix for part in row} == {1600}
    assert (busiest(matrix), imbalance(matrix)) == (8000, 1)


def test_distance_is_the_pattern_of_the_nccl_tests() -> None:
    """Four ranks, all by distance: nothing to itself, then 1, 2 and 3 sixths."""
    matrix = distance_matrix(4, 6 * 1600, 1.0)
    assert matrix[0] == (0, 1600, 3200, 4800)
    assert matrix[1] == (4800, 0, 1600, 3200)
    assert imbalance(matrix) == 1
    assert distance_matrix(4, 6400, 0)[2] == (1600,) * 4


def test_a_file_is_read_as_the_nccl_tests_do(tmp_path: Path) -> None:
    path = tmp_path / "matrix"
    path.write_text("# octets\n100  200\t150\n50 1e2 75\n\n300 150 200\n")
    assert read_matrix(path, 3) == ((96, 192, 144), (48, 96, 64), (288, 144, 192))
    assert read_matrix(path, 2) == ((96, 192), (48, 96))
    assert busiest(read_matrix(path, 3)) == 624


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 2\n3\n", "line 2: it has 1 numbers, and the first line 2"),
        ("1 2\n3 x\n", "line 2: 'x' is no number of octets"),
        ("1 2\n3 -1\n", "line 2: '-1' is no number of octets"),
        ("1 2\n3 inf\n", "line 2: 'inf' is no number of octets"),
        ("1 2\n3 nan\n", "line 2: 'nan' is no number of octets"),
        ("1 2\n", "has 1 lines of 2 numbers"),
        ("", "has 0 lines of 0 numbers"),
        ("1 2\n3 4\n", "is for 2 GPUs, and 3 take part"),
        ("\0\xff", "no number of octets"),
    ],
)
def test_what_is_no_matrix_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "matrix"
    path.write_text(text)
    with pytest.raises(UserError, match=why):
        read_matrix(path, 3)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file or directory; give a file of octets"):
        read_matrix(tmp_path / "none", 3)
