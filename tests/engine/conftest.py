"""Labs for the engine's tests, and something to disturb them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.fabric.conftest import lab, lab_name

__all__ = ["busy", "lab", "lab_name"]


@pytest.fixture
def busy() -> Iterator[None]:
    """Two processes beside the test that never wait."""
    loop = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        for _ in range(2):
            process = stack.enter_context(subprocess.Popen(loop))
            stack.callback(process.kill)
        yield
