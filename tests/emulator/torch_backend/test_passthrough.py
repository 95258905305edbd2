"""Ranks of a script without a fabric."""

import os
import sys
from pathlib import Path

import pytest

from emulator.errors import UserError
from emulator.torch_backend.launching import ForkServer, RankPlace, Script, places
from emulator.torch_backend.output import RankOutput
from emulator.torch_backend.passthrough import free_port, run_alone
from tests.emulator.torch_backend.scripts import NEEDS_TORCH

pytestmark = NEEDS_TORCH

SUMS = """
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.tensor([float(dist.get_rank()), 1.0])
dist.all_reduce(tensor)
print(sys.argv[1], tensor.tolist(), sys.stdin.read())
"""
FAILS = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("no more")
time.sleep(600)
"""


def _wrapped(place: RankPlace) -> None:
    sys.stdout.write(f"prepared {place.rank} of {place.size}\n")


def _run(tmp_path: Path, text: str, ranks: int, *words: str) -> list[tuple[int, int, str]]:
    path = tmp_path / "train.py"
    path.write_text(text)
    lines: list[tuple[int, int, str]] = []
    script = Script(
        path=str(path),
        arguments=words,
        prepare=[_wrapped],
        environment={"MASTER_PORT": str(free_port())},
    )
    output = RankOutput(tmp_path / "ranks", lambda *line: lines.append(line))
    with ForkServer(script) as fork_server:
        fork_server.ready()
        run_alone(fork_server, places([0] * ranks), output)
    return sorted(lines)


def test_ranks_talk_to_each_other_and_what_they_print_is_kept(tmp_path: Path) -> None:
    lines = _run(tmp_path, SUMS, 2, "--steps")
    assert lines == [
        (0, 1, "--steps [1.0, 2.0] "),
        (0, 1, "prepared 0 of 2"),
        (1, 1, "--steps [1.0, 2.0] "),
        (1, 1, "prepared 1 of 2"),
    ]
    kept = (tmp_path / "ranks" / "1.stdout").read_text().splitlines()
    assert kept == ["prepared 1 of 2", "--steps [1.0, 2.0] "]


def test_a_rank_that_fails_ends_all_and_its_traceback_begins_in_the_script(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rank 1 of the script .* ended with status 1"):
        _run(tmp_path, FAILS, 2)
    words = (tmp_path / "ranks" / "1.stderr").read_text().splitlines()
    assert words[1].strip().startswith(f'File "{tmp_path}/train.py", line 4')
    assert words[-1] == "ValueError: no more"
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_places_count_the_gpus_of_each_host() -> None:
    made = [(one.rank, one.local, one.local_size, one.host) for one in places([0, 0, 1, 0])]
    assert made == [(0, 0, 3, 0), (1, 1, 3, 0), (2, 0, 1, 1), (3, 2, 3, 0)]
