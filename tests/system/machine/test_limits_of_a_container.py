"""What a container, a small shell or cron keeps from a run is named, with what mends it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.cli.main import SYSTEM_COMMANDS
from tests import CHECKOUT

pytestmark = pytest.mark.root

PROGRAM = "from emulator.cli.main import main; main()"
SMALL = "--topology rail_clos:hosts=2,gpus_per_host=2 --sizes 64KiB --iterations 1 --capture none"
RUN = f'"$PYTHON" -c "$PROGRAM" run allreduce {SMALL} --output run'


def shell(folder: Path, command: str, **changed: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHON": sys.executable}
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={**variables, "PROGRAM": PROGRAM, **changed},
        capture_output=True,
        text=True,
        timeout=120,
    )


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The only error line of a run that was refused; its report may have been written before."""
    assert done.returncode == 1, done
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("uetemu: wrote "))
    assert line.startswith("uetemu: ")
    return line


@pytest.mark.parametrize(
    ("wrapped", "stated"),
    [
        ("unshare -Ur {}", "root of a user namespace .* or take --fabric model"),
        (
            "setpriv --bounding-set -net_raw --inh-caps -net_raw {}",
            "the capability NET_RAW here: .*--cap-add NET_RAW, or --privileged.*--fabric model",
        ),
        (
            "unshare -m sh -c 'mount --bind /proc/sys /proc/sys && "
            "mount -o remount,ro,bind /proc/sys && {}'",
            "/proc/sys is read-only here, .* --privileged, or take --fabric model",
        ),
        (
            "unshare -m sh -c 'mount -o ro -t tmpfs none /run && {}'",
            "/run/uetemu cannot be written .* mount a tmpfs on /run, or take --fabric model",
        ),
    ],
    ids=["user namespace", "NET_RAW", "read-only /proc/sys", "read-only /run"],
)
def test_what_a_container_withholds_is_named(wrapped: str, stated: str, tmp_path: Path) -> None:
    line = sentence(shell(tmp_path, wrapped.format(RUN)))
    assert re.search(stated, line), line


def test_a_model_is_named_only_where_the_verb_has_one(tmp_path: Path) -> None:
    for verb, option in (("up", None), ("bench training", "--nodes model")):
        line = sentence(shell(tmp_path, f'unshare -Ur "$PYTHON" -c "$PROGRAM" {verb}'))
        assert "root of a user namespace" in line
        assert f"or take {option}" in line if option else "model" not in line


def test_doctor_names_the_capability_as_runs_do(tmp_path: Path) -> None:
    less = "setpriv --bounding-set -sys_admin --inh-caps -sys_admin"
    done = shell(tmp_path, f'{less} "$PYTHON" -c "$PROGRAM" doctor')
    assert "the capability SYS_ADMIN here: give it" in sentence(done)


def test_commands_of_sbin_are_found_without_it_on_path(tmp_path: Path) -> None:
    """As cron and su without a login have it."""
    assert "/usr/sbin" in SYSTEM_COMMANDS
    done = shell(tmp_path, RUN, PATH="/usr/bin:/bin")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("limit", [64, 200, 280])
def test_a_limit_on_open_files_is_told_before_anything_is_built(limit: int, tmp_path: Path) -> None:
    larger = RUN.replace(":hosts=2,gpus_per_host=2", "")  # 24 GPUs: at most 298 are open
    line = sentence(shell(tmp_path, f"ulimit -n {limit}; {larger} --report"))
    assert "open files and the limit is" in line


@pytest.mark.parametrize("kib", [280_000, 300_000])
def test_a_run_that_gets_no_memory_says_so_in_a_sentence(kib: int, tmp_path: Path) -> None:
    """Or succeeds: how much a library takes is not ours to know."""
    done = shell(tmp_path, f"ulimit -v {kib}; {RUN} --fabric model")
    if done.returncode:
        assert "gets no more memory: raise the limit (ulimit -v" in sentence(done)


LIBRARIES = "needs 256 MiB or more: raise it with ulimit -v"
FABRIC = "raise it with ulimit -v 2129920, or take --fabric model"


@pytest.mark.parametrize(
    ("kib", "options", "stated"),
    [
        *((kib, "--fabric model", LIBRARIES) for kib in (120_000, 200_000, 260_000)),
        *((kib, "--report", FABRIC) for kib in (400_000, 800_000, 1_600_000)),
    ],
)
def test_too_little_memory_is_told_before_libraries_are_loaded_or_a_fabric_is_built(
    kib: int, options: str, stated: str, tmp_path: Path
) -> None:
    assert stated in sentence(shell(tmp_path, f"ulimit -v {kib}; {RUN} {options}"))


def test_a_fabric_is_built_with_the_memory_that_is_asked_for(tmp_path: Path) -> None:
    done = shell(tmp_path, f"ulimit -v 2129920; {RUN}")
    assert done.returncode == 0, done.stderr


def test_a_run_without_a_report_draws_nothing(tmp_path: Path) -> None:
    program = "import sys; sys.modules['vl_convert'] = None; " + PROGRAM
    done = shell(tmp_path, f"{RUN} --fabric model", PROGRAM=program)
    assert done.returncode == 0, done.stderr


def test_a_killed_bpftool_is_not_the_kernels_fault(tmp_path: Path) -> None:
    (tmp_path / "bpftool").write_text("#!/bin/sh\nkill -KILL $$\n")
    (tmp_path / "bpftool").chmod(0o755)
    line = sentence(shell(tmp_path, RUN, PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert "bpftool was ended by SIGKILL" in line
