"""Removing a lab by its name, whatever state it is in.

What belongs to lab L: processes inside its namespaces, and those its record names; every interface
and namespace ``/run/netns/uetemu.L.*``; GPU memory, and files of an MPI rank,
``/dev/shm/uetemu.L.*``; the pins of its switch program ``/sys/fs/bpf/uetemu/L``; ``/run/uetemu/L``.
Nothing else is touched.  Removal can be cut short anywhere and done again.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from emulator.dataplane import lab_record
from emulator.dataplane.kernel import keeper, namespaces, rights
from emulator.dataplane.kernel.kernel_objects import delete_fabric_links
from emulator.dataplane.kernel.netlink import KernelRefusal, RouteSocket
from emulator.dataplane.lab_record import LabRecord, Lock, Phase, Process
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.errors import UserError
from emulator.logs import plain_logger

_log = plain_logger(__name__)

SHARED_MEMORY = Path("/dev/shm")
TERMINATE_GRACE_S = 0.5
#: A run that is to end saves its captures and removes its fabric first.
OWNER_GRACE_S = 10.0
KILL_BUDGET_S = 5.0
#: Host time (s) that a keeper waits for others to end, or to remove a lab, and between two looks.
_SETTLE_S, _LOOK_S = 60.0, 0.05
#: The program of a keeper, whose argument is a lab.
_REMOVE_LEFT = f"import sys; from {__name__} import remove_left; remove_left(sys.argv[1])"


@dataclass(frozen=True, kw_only=True)
class Removed:
    """The parts of a lab, or of all networks of a cluster, that were removed, by kind."""

    lab: str
    namespaces: int
    processes: int
    memory: int
    switch_program: bool

    def __str__(self) -> str:
        return (
            f"{self.namespaces} namespaces, {self.processes} processes, "
            f"{self.memory} shared memory segments"
            + (", the switch program" if self.switch_program else "")
        )


def leftovers() -> list[str]:
    """Names of labs that nobody is responsible for any more.

    One without a record is a leftover only if no process lives in it or has its memory mapped.
    The networks of a cluster that is one go with it and are not listed.
    """
    known = set(lab_record.recorded()) | set(namespaces.everywhere()) | _labs_with_memory()
    known |= set(asic_program.labs())
    abandoned = []
    for lab in sorted(known):
        if _is_abandoned(lab):
            abandoned.append(lab)
    together = {item.lab for lab in abandoned for item in lab_record.members(lab)}
    return [lab for lab in abandoned if lab not in together]


def _is_abandoned(lab: str) -> bool:
    record = lab_record.load(lab)
    return record.abandoned if record is not None else not _inhabited(lab)


def _inhabited(lab: str) -> bool:
    inodes = {
        inode for path in namespaces.of_lab(lab).values() if (inode := namespaces.inode(path))
    }
    if any(_inhabitants(inodes)):
        return True
    memory = [str(path) for path in _memory_of(lab)]
    if not memory:
        return False
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if any(path in text for path in memory):
            return True
    return False


def check_unused(lab: str) -> None:
    """Raise UserError if namespaces carry the lab's name, and no record says why."""
    if namespaces.of_lab(lab) and lab_record.load(lab) is None:
        raise UserError(
            f"network namespaces of a lab {lab} are left from an earlier run: "
            f"remove them with uetemu clean {lab}"
        )


def exists(lab: str) -> bool:
    """Return whether anything carries the lab's name."""
    return (
        lab_record.directory_of(lab).exists()
        or bool(namespaces.of_lab(lab))
        or bool(_memory_of(lab))
        or asic_program.pins_of(lab).exists()
    )


def take_down(lab: str, *, force: bool = False) -> Removed:
    """Remove ``lab``, unless a living process is responsible for it.

    With ``force`` that process is ended too.  Raises UserError if there is no such lab, if it is
    in use, if this is not root, or if something resists.
    """
    require_root("remove a lab")
    lab_record.check_name(lab)
    if not exists(lab):
        raise UserError(f"there is no lab {lab!r}; uetemu status lists those that run")
    record = lab_record.load(lab)
    if record is not None and record.settings.membership is not None and not record.abandoned:
        cluster = record.settings.membership.cluster
        if lab_record.load(cluster) is not None:
            raise UserError(
                f"lab {lab} is a network of cluster {cluster}, whose machines it shares: take the "
                f"whole down with uetemu down {cluster}"
            )
    extra: tuple[Process, ...] = ()
    if record is not None and record.in_use and record.owner.pid != os.getpid():
        if not force:
            raise UserError(
                f"lab {lab} is in use by process {record.owner.pid}: "
                f"end that first, or remove both with uetemu clean --force {lab}"
            )
        end_processes({record.owner}, grace_s=OWNER_GRACE_S)
        extra = (record.owner,)
    members = [member.lab for member in lab_record.members(lab)]
    paths = [path for name in (*members, lab) for path in namespaces.of_lab(name).values()]
    # A machine is one in all networks of a cluster.
    count = len({namespaces.inode(path) or path for path in paths})
    parts = [_remove_locked(name) for name in members]
    parts.append(own := _remove_locked(lab, ended=len(extra)))
    return replace(
        own,
        namespaces=count,
        processes=sum(part.processes for part in parts),
        memory=sum(part.memory for part in parts),
    )


@contextmanager
def kept(lab: str) -> Iterator[None]:
    """If this process is killed during the block, a keeper removes its ``lab``."""
    with keeper.kept(_REMOVE_LEFT, lab):
        yield


def remove_left(lab: str) -> None:
    """Remove what a process that has ended has left of its ``lab``, as far as this user may.

    A lab of that name that is another one's stays.  Returns when nobody else removes it any more.
    """
    give_up = time.monotonic() + _SETTLE_S
    while _is_going(lab) and time.monotonic() < give_up:
        time.sleep(_LOOK_S)
    lab_record.erase_unfinished()
    if not (exists(lab) and _is_abandoned(lab)):
        return
    with suppress(UserError):
        if os.geteuid() == 0:
            take_down(lab)
        else:
            remove_memory(lab)


def _is_going(lab: str) -> bool:
    """Return whether somebody removes ``lab``, or has yet to end, who has its memory mapped."""
    record = lab_record.load(lab)
    if record is None:
        return exists(lab) and _inhabited(lab)
    return record.phase is Phase.DOWN and record.owner.alive


def _remove_locked(lab: str, *, ended: int = 0) -> Removed:
    """Remove ``lab`` under its lock; ``ended`` processes have been ended for that already."""
    known = lab_record.load(lab)
    try:
        lock = Lock(lab_record.directory_of(lab))
    except FileNotFoundError:
        return remove(lab, ended=ended)
    try:
        found = lab_record.load(lab)
        if known is not None and found is not None and found.identity != known.identity:
            raise UserError(f"lab {lab} has been removed, and there is another one of that name")
        return remove(lab, ended=ended)
    finally:
        lock.release()


def announce(lab: str) -> LabRecord | None:
    """Have whoever looks at ``lab`` know that it goes, and return its record."""
    record = lab_record.load(lab)
    return None if record is None else lab_record.advance(record, Phase.DOWN)


def remove(lab: str, *, ended: int = 0) -> Removed:
    """Remove everything of ``lab``.  The caller holds its lock.  Interrupts wait until the end."""
    with uninterrupted():
        namespaces.visitor().settle()  # an interrupted builder may be making one right now
        record = announce(lab)
        paths = namespaces.of_lab(lab)
        ended += _end_inhabitants(lab, list(paths.values()))
        _delete_links(paths, record)
        for path in paths.values():
            namespaces.remove(path)
        memory = remove_memory(lab)
        pinned = asic_program.remove(lab)
        if namespaces.of_lab(lab) or _memory_of(lab):
            raise UserError(
                f"something keeps making objects of lab {lab}: "
                f"find it with lsns -t net and run uetemu clean {lab} again"
            )
        lab_record.erase(lab)
        removed = Removed(
            lab=lab,
            namespaces=len(paths),
            processes=ended,
            memory=memory,
            switch_program=pinned,
        )
        _log.info("removed lab %s: %s", lab, removed)
        return removed


def require_root(purpose: str, *, model: str = "") -> None:
    """Raise UserError unless this is root, and not one that a container took its rights from.

    ``model`` is the verb's option that takes a model instead of the kernel, if it has one.
    """
    instead = f", or take {model}, which any user can" if model else ""
    if os.geteuid() != 0:
        raise UserError(f"only root can {purpose}: run as root{instead}")
    if (lacking := rights.withheld()) is not None:
        raise UserError(f"this process cannot {purpose}: {lacking}{instead}")


def end_processes(processes: Collection[Process], *, grace_s: float = TERMINATE_GRACE_S) -> None:
    """Terminate the processes, then kill those that remain; return when they are gone.

    Raises UserError for one that outlives SIGKILL by more than the budget.
    """
    for number, budget in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_BUDGET_S)):
        processes = [process for process in processes if process.alive]
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
                os.kill(process.pid, signal.SIGCONT)  # one that stands still would not get it
        _await_end(processes, budget)
    stubborn = [process.pid for process in processes if process.alive]
    if stubborn:
        raise UserError(f"process {stubborn[0]} does not die; end it and run uetemu clean again")


def _await_end(processes: Collection[Process], budget_s: float) -> None:
    deadline = time.monotonic() + budget_s
    for process in processes:
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            if process.alive:
                poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        finally:
            os.close(handle)


def _end_inhabitants(lab: str, paths: list[Path]) -> int:
    """End what lives in the namespaces or is on record; again, until nobody has slipped in."""
    inodes = {inode for path in paths if (inode := namespaces.inode(path)) is not None}
    count = 0
    for _ in range(5):
        found = {*_inhabitants(inodes), *lab_record.processes(lab)}
        found = {process for process in found if process.pid != os.getpid()}
        if not found:
            break
        end_processes(found)
        count += len(found)
    return count


def _inhabitants(inodes: set[tuple[int, int]]) -> Iterator[Process]:
    if not inodes:
        return
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            status = os.stat(f"/proc/{name}/ns/net")
        except OSError:
            continue  # ended, or a kernel thread
        if (status.st_dev, status.st_ino) in inodes:
            process = Process.of(int(name))
            if process is not None:
                yield process


def _delete_links(paths: dict[str, Path], record: LabRecord | None) -> None:
    """Delete all interfaces now: left to the end of the namespaces, they would linger a while.

    The namespace of wires comes first, which is no node, then the switches, which are last in a
    record: each takes the far ends of its cables along.
    """
    order = {node: place for place, node in enumerate(record.nodes)} if record else {}
    for node in sorted(paths, key=lambda node: -order.get(node, len(order))):
        if namespaces.inode(paths[node]) is None:
            continue  # a name whose namespace was never bound to it
        kernel = namespaces.visitor().inside(paths[node], RouteSocket)
        try:
            delete_fabric_links(kernel)
            kernel.flush()
        except KernelRefusal as refusal:
            if refusal.errno != errno.ENODEV:  # ENODEV: there is none left
                raise
        finally:
            kernel.close()


def _memory_of(lab: str) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"{namespaces.PREFIX}.{lab}.*"))


def remove_memory(lab: str) -> int:
    """Remove the GPU memory and the files of a rank of ``lab``; return how many there were."""
    memory = _memory_of(lab)
    for segment in memory:
        if segment.is_dir():  # the files of a rank
            shutil.rmtree(segment, ignore_errors=True)
        else:
            segment.unlink(missing_ok=True)
    return len(memory)


def _labs_with_memory() -> set[str]:
    return {path.name.split(".")[1] for path in SHARED_MEMORY.glob(f"{namespaces.PREFIX}.*.*")}


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP that arrive during the block take effect after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        arrived.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.signal(number, note) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if arrived:
            signal.raise_signal(arrived[0])
