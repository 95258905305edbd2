"""A lab comes up whole or not at all, and goes without a trace, whatever happens to its maker."""

import json
import mmap
import os
import random
import secrets
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from emulator.dataplane import cleanup, lab_record
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.lab import Lab
from emulator.dataplane.lab_record import Phase, Process
from emulator.dataplane.settings import FabricSettings, Progress
from emulator.errors import UserError
from emulator.topology_file import from_json, to_json
from tests import CHECKOUT
from tests.harness.lab.traffic import within
from tests.harness.runs.processes import completed as uetemu
from tests.system.conftest import SMALL, LabFactory
from topologies import catalogue

pytestmark = pytest.mark.root

REFERENCE = "rail_clos"
STEPS = 2 * 30 + 48  # of the reference cluster: nodes, cables, nodes again


def python(source: str, **options: Any) -> subprocess.Popen[str]:
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)], cwd=CHECKOUT, **settings | options
    )


COMMAND: Sequence[str] = (
    sys.executable,
    "-c",
    "from emulator.cli.main import main; main()",
)


def nothing_left(name: str) -> bool:
    return not cleanup.exists(name) and not namespaces.of_lab(name)


# --- life --------------------------------------------------------------------------------------


def test_record_is_written_before_the_kernel_is_touched(
    lab_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def build(*_: object, **__: Any) -> None:
        seen["record"] = lab_record.load(lab_name)
        seen["namespaces"] = namespaces.of_lab(lab_name)
        raise RuntimeError("stop here")

    monkeypatch.setattr("emulator.dataplane.kernel.fabric.build.build_fabric", build)
    with pytest.raises(RuntimeError, match="stop here"):
        create(lab_name)
    assert seen["record"].phase is Phase.BUILDING
    assert seen["record"].owner.pid == os.getpid()
    assert seen["namespaces"] == {}
    assert nothing_left(lab_name)


def create(name: str, spec: str = SMALL, progress: Progress | None = None, **settings: Any) -> Lab:
    settings = {"dilation": 1000, "seed": 7, "spec": spec, **settings}
    return Lab.create(name, catalogue.load(spec), FabricSettings(**settings), progress=progress)


def test_everything_carries_the_name_and_goes_with_it(lab_name: str) -> None:
    with create(lab_name) as lab:
        assert lab.directory == Path("/run/uetemu") / lab_name
        assert set(namespaces.of_lab(lab_name)) == {node.name for node in lab.topology.nodes}
        (record,) = [record for record in lab_record.labs() if record.lab == lab_name]
        assert record.phase is Phase.UP
        assert record.settings == FabricSettings(spec=SMALL, seed=7, dilation=1000)
        memory = Path(f"/dev/shm/uetemu.{lab_name}.h0g0")
        memory.write_bytes(b"gradients")
        (lab.directory / "notes").write_text("x")
        sleeper = lab.popen("h0g0", ["sleep", "600"])
    assert nothing_left(lab_name)
    assert not memory.exists()
    assert sleeper.wait(timeout=10) < 0


def test_an_exception_in_the_block_takes_the_lab_down(lab_name: str) -> None:
    with pytest.raises(ZeroDivisionError), create(lab_name):
        _ = 1 / 0
    assert nothing_left(lab_name)


def test_a_process_that_forgets_to_close_still_leaves_nothing(lab_name: str) -> None:
    maker = python(MAKE.format(name=lab_name, spec=SMALL, after="pass", settings=""))
    assert maker.communicate(timeout=60)[1] == ""
    assert maker.returncode == 0
    assert nothing_left(lab_name)


MAKE = """
import os, signal, sys
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from topologies import catalogue
settings = FabricSettings(spec={spec!r}, seed=1, dilation=1000{settings})
lab = Lab.create({name!r}, catalogue.load({spec!r}), settings)
{after}
"""


def test_progress_ends_at_its_total(lab_name: str) -> None:
    seen: list[tuple[int, int]] = []
    create(lab_name, progress=lambda done, total, _: seen.append((done, total))).close()
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == 2 * 8 + 8


# --- names -------------------------------------------------------------------------------------


def test_a_name_is_given_once(lab: LabFactory) -> None:
    name = lab().name
    with pytest.raises(UserError, match=f"lab {name} is in use by process {os.getpid()}"):
        create(name)
    assert set(namespaces.of_lab(name))  # and the first is unharmed


@pytest.mark.parametrize("name", ["", "Demo", "a.b", "-a", "x" * 25, "a b", "../up"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name of a lab"):
        create(name)


@pytest.mark.parametrize("dilation", [0, -1, float("nan"), 1e9])
def test_dilations_that_cannot_be(lab_name: str, dilation: float) -> None:
    with pytest.raises(UserError, match="dilation"):
        create(lab_name, dilation=dilation)


def test_namespaces_without_a_record_are_pointed_out(lab_name: str) -> None:
    subprocess.run(["ip", "netns", "add", f"uetemu.{lab_name}.h0g0"], check=True)
    with pytest.raises(UserError, match=f"uetemu clean {lab_name}"):
        create(lab_name)
    assert "1 namespaces" in uetemu("clean", lab_name).stdout
    assert nothing_left(lab_name)


def test_of_two_that_race_for_a_name_one_wins(lab_name: str) -> None:
    after = "print('won', flush=True); sys.stdin.read()"
    source = MAKE.format(name=lab_name, spec=SMALL, after=after, settings="")
    makers = [python(source, stdin=subprocess.PIPE) for _ in range(4)]
    try:
        within(60, lambda: sum(m.poll() is not None for m in makers) == 3, "three gave up")
        within(60, lambda: len(namespaces.of_lab(lab_name)) == 8, "the fourth has built all nodes")
    finally:
        answers = [maker.communicate("", timeout=60) for maker in makers]
    assert sorted(maker.returncode for maker in makers) == [0, 1, 1, 1]
    assert sum("won" in out for out, _ in answers) == 1
    assert sum("UserError" in err and "in use" in err for _, err in answers) == 3
    assert nothing_left(lab_name)


def test_only_root_can(readable_sources: Path) -> None:
    for argv in (["up"], ["down", "x"], ["exec", "h0g0", "--", "true"], ["clean"]):
        answer = subprocess.run(
            [sys.executable, "-c", "from emulator.cli.main import main; main()", *argv],
            cwd=readable_sources,
            user=65534,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 1
        assert "only root can" in answer.stderr
        assert "run as root" in answer.stderr
        assert len(answer.stderr.splitlines()) == 1


# --- from another process ----------------------------------------------------------------------


def test_attach_sees_the_same_lab(lab: LabFactory) -> None:
    made = lab()
    found = Lab.attach(made.name)
    assert found.topology == made.topology
    assert found.interface_indices() == made.interface_indices()
    made.exec("h0g0", ["ping", "-c3", "-i0.01", "10.0.1.3"])
    with found:
        assert found.counters() == made.counters()
        assert found.counters()["h0g0:eth0"].tx_packets == 3
        assert found.exec("h0g0", ["cat"]).returncode == 0
    assert namespaces.of_lab(made.name)  # leaving an attached lab does not end it


def test_attach_to_nothing_lists_what_runs(lab: LabFactory) -> None:
    name = lab().name
    with pytest.raises(UserError, match=rf"there is no lab 'nosuch'; running: .*{name}"):
        Lab.attach("nosuch")


def test_work_inside_a_node_happens_there(lab: LabFactory) -> None:
    made = lab()
    outside = os.stat("/proc/thread-self/ns/net").st_ino
    with made.enter("h0g0") as path:
        assert os.stat("/proc/thread-self/ns/net").st_ino == path.stat().st_ino
    assert os.stat("/proc/thread-self/ns/net").st_ino == outside
    seen = made.inside("rail1", lambda: os.stat("/proc/thread-self/ns/net").st_ino)
    assert seen == made.netns("rail1").stat().st_ino
    with pytest.raises(ZeroDivisionError):
        made.inside("rail1", lambda: 1 / 0)
    assert made.exec("h0g0", ["sh", "-c", "exit 4"]).returncode == 4
    with pytest.raises(subprocess.TimeoutExpired):
        made.exec("h0g0", ["sleep", "600"], timeout=0.05)


def test_a_topology_survives_its_file() -> None:
    for spec in (SMALL, REFERENCE):
        topology = catalogue.load(spec)
        assert from_json(to_json(topology)) == topology


# --- the command line --------------------------------------------------------------------------


def test_up_status_exec_down(lab_name: str) -> None:
    up = uetemu("up", SMALL, "--name", lab_name, "--dilation", "500", "--seed", "3")
    assert (up.returncode, up.stderr) == (0, "")
    assert f"lab {lab_name} is up: 4 GPUs, 4 switches, 8 links" in up.stdout

    again = uetemu("up", SMALL, "--name", lab_name)
    assert again.returncode == 1
    assert f"uetemu down {lab_name}" in again.stderr

    listed = json.loads(uetemu("status", "--format", "json").stdout)
    (row,) = [row for row in listed if row["lab"] == lab_name]
    assert (row["state"], row["nodes"], row["dilation"], row["seed"]) == ("up", 8, 500, 3)
    assert lab_name in uetemu("status").stdout

    detail = json.loads(uetemu("status", lab_name, "--format", "json").stdout)
    assert len(detail["nodes"]) == 8
    assert sum(len(node["ports"]) for node in detail["nodes"]) == 16
    assert "rail1:down0" in uetemu("status", lab_name).stdout

    ran = uetemu("exec", f"{lab_name}:h0g0", "--", "ping", "-c1", "-W5", "10.0.2.3")
    assert ran.returncode == 0
    assert "1 received" in ran.stdout
    assert uetemu("exec", "--lab", lab_name, "h0g0", "--", "sh", "-c", "exit 9").returncode == 9
    lost = uetemu("exec", f"{lab_name}:h0g9", "--", "true")
    assert lost.returncode == 1
    assert "did you mean h0g" in lost.stderr
    assert uetemu("exec", f"{lab_name}:h0g0", "--", "nosuchthing").returncode == 1

    assert lab_name not in cleanup.leftovers()
    assert uetemu("down", lab_name).returncode == 0
    assert nothing_left(lab_name)
    assert uetemu("down", lab_name).returncode == 1


def test_a_lab_in_use_is_not_taken_from_its_user(lab_name: str) -> None:
    after = "print('up', flush=True); sys.stdin.read()"
    maker = python(
        MAKE.format(name=lab_name, spec=SMALL, after=after, settings=""), stdin=subprocess.PIPE
    )
    assert maker.stdout is not None
    assert maker.stdout.readline() == "up\n"
    refused = uetemu("down", lab_name)
    assert refused.returncode == 1
    assert f"in use by process {maker.pid}" in refused.stderr
    assert len(namespaces.of_lab(lab_name)) == 8
    forced = uetemu("clean", "--force", lab_name)
    assert (forced.returncode, forced.stderr) == (0, "")
    assert maker.wait(timeout=10) == -signal.SIGTERM
    maker.communicate()
    assert nothing_left(lab_name)


# --- sudden death ------------------------------------------------------------------------------

AT_STEP = """
import os, signal, sys
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from topologies import catalogue
def at(done, total, label):
    if done >= {step}:
        os.kill(os.getpid(), {signal})
settings = FabricSettings(spec={spec!r}, seed=1, dilation=1000, persistent=True)
Lab.create({name!r}, catalogue.load({spec!r}), settings, progress=at)
"""


@pytest.mark.parametrize("step", sorted(random.Random(20).sample(range(1, STEPS), 6)))
def test_killed_while_building(lab_name: str, step: int) -> None:
    source = AT_STEP.format(step=step, signal=int(signal.SIGKILL), name=lab_name, spec=REFERENCE)
    maker = python(source)
    maker.communicate(timeout=60)
    assert maker.returncode == -signal.SIGKILL
    (row,) = [
        row
        for row in json.loads(uetemu("status", "--format", "json").stdout)
        if row["lab"] == lab_name
    ]
    assert row["state"] == "abandoned"
    with pytest.raises(UserError, match=f"uetemu clean {lab_name}"):
        create(lab_name)
    cleaned = uetemu("clean", lab_name)
    assert (cleaned.returncode, cleaned.stderr) == (0, "")
    assert nothing_left(lab_name)


@pytest.mark.parametrize("step", [1, 40, 90, STEPS])
def test_interrupted_while_building(lab_name: str, step: int) -> None:
    source = AT_STEP.format(step=step, signal=int(signal.SIGINT), name=lab_name, spec=REFERENCE)
    maker = python(source)
    err = maker.communicate(timeout=60)[1]
    assert "KeyboardInterrupt" in err
    assert nothing_left(lab_name)


def test_an_impatient_second_interrupt_does_not_stop_the_removal(lab_name: str) -> None:
    source = """
from emulator.dataplane.kernel import namespaces
remove = namespaces.remove
def and_again(path):
    os.kill(os.getpid(), signal.SIGINT)
    remove(path)
namespaces.remove = and_again
"""
    making = AT_STEP.format(step=12, signal=int(signal.SIGINT), name=lab_name, spec=SMALL)
    making = making.replace("def at(", source + "def at(", 1)
    maker = python(making)
    assert "KeyboardInterrupt" in maker.communicate(timeout=60)[1]
    assert nothing_left(lab_name)


@pytest.mark.parametrize("delay_ms", [0, 5, 15, 30, 45, 60, 100, 150, 220, 320])
def test_killed_at_any_moment_of_up(lab_name: str, delay_ms: int) -> None:
    up = subprocess.Popen([*COMMAND, "up", REFERENCE, "--name", lab_name], cwd=CHECKOUT)
    kill_after(up, lab_record.directory_of(lab_name).exists, delay_ms)
    if cleanup.exists(lab_name):
        assert uetemu("clean", lab_name).returncode == 0
    assert nothing_left(lab_name)


@pytest.mark.parametrize("delay_ms", [0, 10, 30, 60, 120])
def test_killed_at_any_moment_of_down(lab_name: str, delay_ms: int) -> None:
    create(lab_name, REFERENCE, persistent=True).close()

    def going() -> bool:
        record = lab_record.load(lab_name)
        return record is None or record.phase is Phase.DOWN

    down = subprocess.Popen([*COMMAND, "down", lab_name], cwd=CHECKOUT)
    kill_after(down, going, delay_ms)
    if cleanup.exists(lab_name):
        assert lab_name in cleanup.leftovers()
        assert uetemu("clean", lab_name).returncode == 0
    assert nothing_left(lab_name)


def kill_after(process: subprocess.Popen[bytes], begun: Callable[[], bool], delay_ms: int) -> None:
    """SIGKILL ``process`` so long after ``begun()`` turns true, if it still runs then."""
    within(60, lambda: begun() or process.poll() is not None, "the work began")
    try:
        process.wait(timeout=delay_ms / 1000)
    except subprocess.TimeoutExpired:
        process.kill()
    process.wait()


def test_clean_finds_labs_whose_maker_died(lab_name: str) -> None:
    after = f"""
child = lab.popen("h0g1", ["sleep", "600"])
open("/dev/shm/uetemu.{lab_name}.h0g1", "w").write("x")
os.kill(os.getpid(), signal.SIGKILL)
"""
    maker = python(MAKE.format(name=lab_name, spec=SMALL, after=after, settings=""))
    maker.wait(timeout=60)
    for stream in (maker.stdout, maker.stderr):
        assert stream is not None
        stream.close()
    assert lab_name in cleanup.leftovers()
    removed = cleanup.take_down(lab_name)
    assert (removed.namespaces, removed.processes, removed.memory) == (8, 1, 1)
    assert nothing_left(lab_name)


def test_removal_touches_nothing_else(lab: LabFactory, lab_name: str) -> None:
    other = lab()
    bystander = other.popen("h0g0", ["sleep", "600"])
    similar = f"uetemu.{lab_name}x.h0g0"
    subprocess.run(["ip", "netns", "add", similar], check=True)
    memory = Path(f"/dev/shm/uetemu.{lab_name}x.h0g0")
    memory.write_text("x")
    try:
        create(lab_name).close()
        assert bystander.poll() is None
        assert memory.exists()
        assert Path("/run/netns", similar).exists()
        assert len(namespaces.of_lab(other.name)) == 8
    finally:
        memory.unlink()
        subprocess.run(["ip", "netns", "del", similar], check=True)
        bystander.kill()
        bystander.wait()


def test_helpers_on_record_end_with_the_lab_but_not_their_namesakes(lab_name: str) -> None:
    helper = subprocess.Popen(["sleep", "600"])
    namesake = subprocess.Popen(["sleep", "600"])
    try:
        with create(lab_name) as lab:
            lab_record.add_process(lab_name, helper.pid)
            started = Process.of(namesake.pid)
            assert started is not None
            # the pid of a process that started earlier, and has been given to another since
            entry = lab.directory / "processes" / str(namesake.pid)
            entry.write_text(str(started.start - 1))
        assert helper.wait(timeout=10) < 0
        assert namesake.poll() is None
    finally:
        for process in (helper, namesake):
            process.kill()
            process.wait()


def test_a_process_that_ignores_sigterm_is_killed(lab_name: str) -> None:
    with create(lab_name) as lab:
        source = "trap '' TERM; echo deaf; while :; do sleep 1; done"
        deaf = lab.popen("h0g0", ["sh", "-c", source], stdout=subprocess.PIPE)
        assert deaf.stdout is not None
        assert deaf.stdout.readline() == b"deaf\n"
    assert deaf.wait(timeout=10) == -signal.SIGKILL
    deaf.stdout.close()
    assert nothing_left(lab_name)


def test_a_forked_child_does_not_take_the_lab_down(lab_name: str) -> None:
    after = """
pid = os.fork()
if pid == 0:
    lab.close()
    os._exit(0)
os.waitpid(pid, 0)
print(len(os.listdir("/run/netns")) > 0 and os.path.exists({path!r}), flush=True)
""".format(path=f"/run/netns/uetemu.{lab_name}.h0g0")
    maker = python(MAKE.format(name=lab_name, spec=SMALL, after=after, settings=""))
    out, err = maker.communicate(timeout=60)
    assert (out, err) == ("True\n", "")
    assert nothing_left(lab_name)


def test_what_has_no_record_but_is_in_use_is_no_leftover(lab_name: str) -> None:
    memory = Path(f"/dev/shm/uetemu.{lab_name}.h0g0")
    memory.write_bytes(bytes(4096))
    with memory.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert lab_name not in cleanup.leftovers()
    assert lab_name in cleanup.leftovers()
    subprocess.run(["ip", "netns", "add", f"uetemu.{lab_name}.h0g0"], check=True)
    inhabitant = subprocess.Popen(
        ["ip", "netns", "exec", f"uetemu.{lab_name}.h0g0", "sh", "-c", "echo in; exec sleep 600"],
        stdout=subprocess.PIPE,
    )
    assert inhabitant.stdout is not None
    assert inhabitant.stdout.readline() == b"in\n"
    assert lab_name not in cleanup.leftovers()
    removed = cleanup.take_down(lab_name)  # by name it can be removed all the same
    assert (removed.namespaces, removed.processes, removed.memory) == (1, 1, 1)
    assert inhabitant.wait(timeout=10) < 0
    inhabitant.stdout.close()


def test_half_made_state_directories_are_cleaned() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    stale = lab_record.STATE / f".new-t{secrets.token_hex(4)}-{gone.pid}-1"
    stale.mkdir(parents=True)
    ours = lab_record.STATE / f".new-t{secrets.token_hex(4)}-{os.getpid()}-1"
    ours.mkdir()
    lab_record.erase_unfinished()
    assert not stale.exists()
    assert ours.exists()
    ours.rmdir()


def test_a_name_without_a_namespace_is_removed_too(lab_name: str) -> None:
    """Death between making the name and binding the namespace leaves a plain file."""
    namespaces.share_directory()
    namespaces.path_of(lab_name, "h0g0").touch()
    assert cleanup.take_down(lab_name).namespaces == 1
    assert nothing_left(lab_name)
