"""Scripts of tests on a fabric, run by the command."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import CHECKOUT

#: Programs that tests start import it: the tests' own process, which is forked often, stays small.
NEEDS_TORCH = pytest.mark.skipif(
    find_spec("torch") is None, reason="PyTorch is not installed (pip install 'uetemu[torch]')"
)

SMALL = "rail_clos:hosts=2,gpus_per_host=2"


def torchrun(
    folder: Path, text: str, *words: str, topology: str = SMALL, fabric: str = "model"
) -> subprocess.CompletedProcess[str]:
    """Run the script ``text`` on a fabric with options ``words``; its run is in ``run``.

    The script has what stands before it in :data:`HEAD`.
    """
    script = folder / "train.py"
    script.write_text(HEAD + text)
    return torchrun_file(folder, *words, str(script), topology=topology, fabric=fabric)


def torchrun_file(
    folder: Path, *words: str, topology: str = SMALL, fabric: str = "model"
) -> subprocess.CompletedProcess[str]:
    """Run with ``words``, in which is the path of a script; its run is in ``folder`` / ``run``."""
    command = [sys.executable, "-c", "from emulator.cli.main import main; main()", "torchrun"]
    options = ["--fabric", fabric, "--topology", topology, "--output", str(folder / "run")]
    return subprocess.run(
        [*command, *options, *words],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )


def printed(folder: Path, rank: int, ranks: str = "ranks") -> list[str]:
    """Return the lines that ``rank`` printed; ``ranks`` is the folder of the execution."""
    return (folder / "run" / ranks / f"{rank}.stdout").read_text().splitlines()


def result(folder: Path) -> dict[str, Any]:
    """Return ``result.json``."""
    found: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    return found


#: The first lines of every script; line 7 is the first of its own.
HEAD = """\
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
"""
