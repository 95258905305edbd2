"""Tests mirror the source; those that need root lie in `system`, what tests share in `harness`."""

from pathlib import Path

#: The repository that the tests belong to.
CHECKOUT = Path(__file__).resolve().parents[1]
#: Captures, vectors, configurations and digests that results are compared with.
DATA = Path(__file__).resolve().parent / "data"
