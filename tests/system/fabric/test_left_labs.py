"""Labs of processes that were killed go, by a keeper or by hand, and those of others stay."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.dataplane import cleanup, lab_record
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.lab_record import LabRecord, Phase
from emulator.dataplane.settings import FabricSettings
from emulator.errors import UserError
from emulator.whole_file import write_whole
from tests import CHECKOUT
from tests.harness.lab.traffic import within
from tests.system.conftest import SMALL
from topologies import catalogue

pytestmark = pytest.mark.root

BUDGET_S = 60.0
#: A process with a lab, and a keeper for that.
MAKER = """
import os, sys
from contextlib import ExitStack
from emulator.dataplane import cleanup
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from topologies import catalogue
name, spec = sys.argv[1:]
with cleanup.kept(name):
    settings = FabricSettings(spec=spec, seed=1, dilation=1000)
    with Lab.create(name, catalogue.load(spec), settings):
        with open(f"/dev/shm/uetemu.{name}.h0g0", "wb") as memory:
            memory.write(bytes(4096))
        print("up", flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def maker(lab_name: str) -> Iterator[subprocess.Popen[str]]:
    made = subprocess.Popen(
        [sys.executable, "-c", MAKER, lab_name, SMALL],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "up\n"
    yield made
    made.kill()
    made.communicate()


def test_a_keeper_removes_the_lab_of_a_killed_process(
    maker: subprocess.Popen[str], lab_name: str
) -> None:
    assert cleanup.exists(lab_name)
    os.killpg(maker.pid, signal.SIGKILL)
    within(BUDGET_S, lambda: not cleanup.exists(lab_name), "the lab is removed")


def test_the_lab_of_a_living_process_stays(maker: subprocess.Popen[str], lab_name: str) -> None:
    before = namespaces.of_lab(lab_name)
    cleanup.remove_left(lab_name)
    assert namespaces.of_lab(lab_name) == before != {}
    assert maker.poll() is None
    maker.communicate("\n")
    assert not cleanup.exists(lab_name)


def recorded(name: str, identity: str, phase: Phase = Phase.UP) -> LabRecord:
    """Return the record of a lab of this process, which outlives it."""
    return LabRecord(
        lab=name,
        identity=identity,
        phase=phase,
        settings=FabricSettings(
            spec=SMALL, seed=1, dilation=1000, cable_delay="netem", persistent=True
        ),
        owner=lab_record.this_process(),
        created=lab_record.now(),
        nodes=(),
    )


def test_a_lab_that_is_up_for_its_users_stays(lab_name: str) -> None:
    lab_record.register(recorded(lab_name, "one"), catalogue.load(SMALL)).release()
    cleanup.remove_left(lab_name)
    assert lab_record.load(lab_name) is not None
    cleanup.take_down(lab_name)


def test_a_lab_that_got_the_name_meanwhile_stays(lab_name: str) -> None:
    lock = lab_record.register(recorded(lab_name, "one"), catalogue.load(SMALL))
    refusals: list[UserError] = []

    def take_down() -> None:
        try:
            cleanup.take_down(lab_name)
        except UserError as refusal:
            refusals.append(refusal)

    taking = threading.Thread(target=take_down)
    taking.start()
    try:
        within(BUDGET_S, _somebody_waits_here, "it waits for the lock")
        path = lab_record.directory_of(lab_name) / "lab.json"
        write_whole(path, json.dumps(json.loads(path.read_text()) | {"identity": "other"}))
    finally:
        lock.release()
        taking.join()
    assert [str(one) for one in refusals] == [
        f"lab {lab_name} has been removed, and there is another one of that name"
    ]
    assert lab_record.load(lab_name) is not None
    cleanup.take_down(lab_name)


def _somebody_waits_here() -> bool:
    """Return whether a thread of this process waits for the lock of a file."""
    locks = Path("/proc/locks").read_text().splitlines()
    return any("-> FLOCK" in line and f" {os.getpid()} " in line for line in locks)


def test_a_lab_that_somebody_removes_is_awaited(lab_name: str) -> None:
    gone = subprocess.Popen(["sleep", "600"])
    record = recorded(lab_name, "one", Phase.DOWN)
    owner = lab_record.Process.of(gone.pid)
    assert owner is not None
    lab_record.register(
        LabRecord(**{**vars(record), "owner": owner}), catalogue.load(SMALL)
    ).release()
    removing = threading.Thread(target=cleanup.remove_left, args=(lab_name,))
    removing.start()
    removing.join(0.3)
    assert lab_record.load(lab_name) is not None
    gone.kill()
    gone.wait()
    removing.join()
    assert not cleanup.exists(lab_name)
