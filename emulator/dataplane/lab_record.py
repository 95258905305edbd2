"""The record of a lab: what it is, who owns it, how far it got.

``/run/uetemu/<lab>/`` appears complete, in one rename, before the kernel is touched, and goes last
when the lab is removed.  So at every moment whatever a lab has made can be found by its name, and
the name is taken by at most one lab.

``lab.json`` holds a :class:`LabRecord`, and ``topology.json`` the topology (see
:mod:`emulator.topology_file`). ``processes/<pid>`` has the start time of helper processes that do
not live in a namespace of the lab. ``faults.json`` has the faults in force
(:mod:`emulator.run.faults.fault_injector`).  ``run.json`` names the folder of the run whose lab it
is.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from emulator.dataplane.settings import FabricSettings, Membership
from emulator.dataplane.switch import switch_choice
from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.errors import UserError
from emulator.topology_file import from_json, to_json
from emulator.whole_file import write_whole
from topologies.model import Topology

STATE = Path("/run/uetemu")
SCHEMA = "uetemu.lab/1"
RUN_FILE = "run.json"
LAB_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,23}")
UNFINISHED = ".new-"  # directories that are being filled; never a lab's name


class Phase(enum.StrEnum):
    BUILDING = "building"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True)
class Process:
    """A process, distinguished from a later one of its number by its start (ticks after boot)."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has ``pid`` now."""
        try:
            state, start = _state_and_start(pid)
        except OSError:
            return None
        return None if state in "ZX" else cls(pid, start)

    @property
    def alive(self) -> bool:
        return Process.of(self.pid) == self


@dataclass(frozen=True, kw_only=True)
class LabRecord:
    """``identity`` distinguishes this lab from another of the same name.

    ``nodes`` are those that are on this machine.
    """

    lab: str
    identity: str
    phase: Phase
    settings: FabricSettings
    owner: Process
    created: str
    nodes: tuple[str, ...]
    schema: str = SCHEMA

    @property
    def switch(self) -> str | None:
        """Return what the ASICs of switches do, as users write it; None: there are none."""
        choice = self.settings.switch
        return None if choice is None else choice.spec

    def as_dict(self) -> dict[str, object]:
        """Return the record as it is written, without namespaces of other networks."""
        plain = asdict(replace(self, settings=replace(self.settings, switch=None, shared={})))
        settings: dict[str, object] = plain.pop("settings")
        del settings["shared"]
        settings["topology_spec"] = settings.pop("spec")
        return {**plain, **settings, "switch": self.switch}

    @property
    def abandoned(self) -> bool:
        """Nobody will take this lab down: its owner died while it was responsible for it."""
        member = self.settings.membership
        settled = self._settled
        if settled and member is not None and load(member.cluster) is None:
            settled = False  # its cluster is gone, or never came to be
        return not settled and not self.owner.alive

    @property
    def in_use(self) -> bool:
        """A living process is responsible for this lab."""
        return not self._settled and self.owner.alive

    @property
    def _settled(self) -> bool:
        return self.settings.persistent and self.phase is Phase.UP


def directory_of(lab: str) -> Path:
    return STATE / lab


def check_name(lab: str) -> str:
    if not LAB_NAME.fullmatch(lab):
        raise UserError(
            f"{lab!r} cannot be the name of a lab: use at most 24 of a-z, 0-9 and '-', "
            "the first no '-'"
        )
    return lab


def this_process() -> Process:
    _, start = _state_and_start(os.getpid())
    return Process(os.getpid(), start)


def _state_and_start(pid: int) -> tuple[str, int]:
    stat = Path(f"/proc/{pid}/stat").read_text()
    state, *rest = stat.rpartition(")")[2].split()  # the name before may hold anything
    return state, int(rest[18])


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Lock:
    """Held by whoever changes a lab.  A child process does not inherit it; death releases it."""

    def __init__(self, directory: Path) -> None:
        """Wait for the lock of the lab in ``directory``.  Raises FileNotFoundError without one."""
        while True:
            self._handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            try:
                if os.path.samestat(os.fstat(self._handle), os.stat(directory)):
                    break
            except FileNotFoundError:
                pass
            self.release()  # that lab went away while we waited; is there another?
        self._owner = os.getpid()
        os.register_at_fork(after_in_child=self._drop)

    def _drop(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def release(self) -> None:
        self._drop()


def register(record: LabRecord, topology: Topology) -> Lock:
    """Take the name ``record.lab`` and write the record.  Raises UserError if it is taken."""
    check_name(record.lab)
    try:
        STATE.mkdir(mode=0o755, exist_ok=True)
        unfinished = STATE / f"{UNFINISHED}{record.lab}-{os.getpid()}-{time.monotonic_ns()}"
        unfinished.mkdir(mode=0o755)
    except PermissionError:
        raise UserError(f"only root can build a lab: run as root ({STATE} is not ours)") from None
    except OSError as error:
        raise UserError(
            f"{STATE} cannot be written ({error.strerror}): mount a tmpfs on {STATE.parent}, or "
            "take --fabric model of uetemu run, which keeps nothing there"
        ) from error
    try:
        (unfinished / "processes").mkdir()
        (unfinished / "topology.json").write_text(to_json(topology))
        _write(unfinished / "lab.json", record)
        lock = Lock(unfinished)
        try:
            os.rename(unfinished, directory_of(record.lab))
        except OSError as error:
            lock.release()
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise UserError(_taken(record.lab)) from None
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return lock


def _taken(lab: str) -> str:
    record = load(lab)
    if record is None or record.abandoned:
        return f"lab {lab} was left behind by an earlier run: remove it with uetemu clean {lab}"
    if record.in_use:
        return (
            f"lab {lab} is in use by process {record.owner.pid}: choose another name or wait for it"
        )
    return f"lab {lab} is running: choose another name, or take it down with uetemu down {lab}"


def advance(record: LabRecord, phase: Phase) -> LabRecord:
    """Write the lab's next phase, with this process as its owner."""
    record = replace(record, phase=phase, owner=this_process())
    _write(directory_of(record.lab) / "lab.json", record)
    return record


def amend(lab: str, *, switch: SwitchChoice) -> None:
    """Write what the switches of a running lab do from now on."""
    record = load(lab)
    if record is None:
        raise UserError(f"there is no lab {lab!r}; uetemu status lists those that run")
    changed = replace(record, settings=replace(record.settings, switch=switch))
    _write(directory_of(lab) / "lab.json", changed)


def _write(path: Path, record: LabRecord) -> None:
    write_whole(path, json.dumps(record.as_dict(), indent=2) + "\n")


def load(lab: str) -> LabRecord | None:
    """The record of ``lab``; None if there is none or it cannot be read."""
    try:
        written = json.loads((directory_of(lab) / "lab.json").read_text())
        written["owner"] = Process(**written["owner"])
        written["phase"] = Phase(written["phase"])
        written["nodes"] = tuple(written["nodes"])
        if written["membership"] is not None:
            written["membership"] = Membership(**written["membership"])
        if written["switch"] is not None:
            written["switch"] = switch_choice.parse(written["switch"])
        names = {one.name for one in fields(FabricSettings)} & written.keys()
        settings = {name: written.pop(name) for name in names}
        built = FabricSettings(spec=written.pop("topology_spec"), **settings)
        return LabRecord(**written, settings=built)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def load_topology(lab: str) -> Topology:
    path = directory_of(lab) / "topology.json"
    try:
        return from_json(path.read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the topology of lab {lab} cannot be read from {path} ({error}): "
            f"remove the lab with uetemu clean {lab}"
        ) from None


def set_run_folder(lab: str, folder: Path) -> None:
    """Note where the run whose lab this is writes what it measures."""
    content = json.dumps({"folder": str(folder.resolve())}) + "\n"
    write_whole(directory_of(lab) / RUN_FILE, content)


def run_folder(lab: str) -> Path | None:
    """Return the folder of the run whose lab this is; None for a lab without a run."""
    try:
        return Path(json.loads((directory_of(lab) / RUN_FILE).read_text())["folder"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def recorded() -> list[str]:
    """Names of all labs that have a state directory."""
    with suppress(FileNotFoundError):
        return sorted(entry.name for entry in STATE.iterdir() if LAB_NAME.fullmatch(entry.name))
    return []


def labs() -> list[LabRecord]:
    """Return the records of all labs of this host, whatever their phase."""
    return [record for record in map(load, recorded()) if record is not None]


def members(cluster: str) -> list[LabRecord]:
    """Return the records of the other networks of the lab ``cluster``, by name."""
    loaded = (load(lab) for lab in recorded())
    return [
        item
        for item in loaded
        if item is not None
        and (member := item.settings.membership) is not None
        and member.cluster == cluster
    ]


def start_process(
    lab: str,
    module: str,
    log: Path,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``python -m MODULE LAB`` as a helper process, to be ended with the lab.

    Its standard error goes to the end of ``log``, not to our own: whoever reads that would wait for
    it.  ``stdin`` and ``stdout`` are as for :class:`subprocess.Popen`; None: into the log, too.
    """
    root = str(Path(__file__).parents[2])
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, lab],
            stdin=stdin,
            stdout=errors if stdout is None else stdout,
            stderr=errors,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])},
        )
    add_process(lab, process.pid)
    return process


def add_process(lab: str, pid: int) -> None:
    """Note a helper process outside the lab's namespaces, to be ended with the lab."""
    process = Process.of(pid)
    if process is not None:
        (directory_of(lab) / "processes" / str(pid)).write_text(str(process.start))


def processes(lab: str) -> list[Process]:
    """Return the helper processes of ``lab`` that still run."""
    found = []
    with suppress(FileNotFoundError):
        for entry in (directory_of(lab) / "processes").iterdir():
            with suppress(OSError, ValueError):
                found.append(Process(int(entry.name), int(entry.read_text())))
    return [process for process in found if process.alive]


def erase(lab: str) -> None:
    """Remove the state directory; the record goes last, so that an interrupt leaves it findable."""
    directory = directory_of(lab)
    with suppress(FileNotFoundError):
        for entry in directory.iterdir():
            if entry.name == "lab.json":
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        (directory / "lab.json").unlink(missing_ok=True)
    try:
        directory.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:  # the name may have been taken again since the record went
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def erase_unfinished() -> int:
    """Remove directories of labs whose maker died before they had a name."""
    count = 0
    for entry in STATE.glob(f"{UNFINISHED}*"):
        pid = entry.name.rsplit("-", 2)[1]
        if not Path(f"/proc/{pid}").exists():
            shutil.rmtree(entry, ignore_errors=True)
            count += 1
    return count
