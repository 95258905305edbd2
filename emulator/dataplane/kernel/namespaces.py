"""Named network namespaces: make, enter, list, remove.

Names are ``uetemu.<lab>.<node>`` under ``/run/netns``, where ``ip netns`` looks too.  Entering
is a matter of one thread: work inside a namespace is done by a thread made for it, so that an
interrupt never leaves the main thread in a foreign namespace.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

DIRECTORY = Path("/run/netns")
PREFIX = "uetemu"
OWN = "/proc/thread-self/ns/net"  # of the calling thread; /proc/self is the main thread's

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x20000, 0x4000000, 0x40000000
MS_BIND, MS_REC, MNT_DETACH = 4096, 16384, 2
MS_PRIVATE, MS_SLAVE, MS_SHARED = 1 << 18, 1 << 19, 1 << 20
MOUNTS = Path("/proc/thread-self/mountinfo")

#: Threads in namespaces at a time.
MOST_VISITORS = 64

_libc = ctypes.CDLL(None, use_errno=True)


def name_of(lab: str, node: str) -> str:
    return f"{PREFIX}.{lab}.{node}"


def path_of(lab: str, node: str) -> Path:
    return DIRECTORY / name_of(lab, node)


def of_lab(lab: str) -> dict[str, Path]:
    """Node name -> path of every namespace that exists under the lab's name."""
    return dict(sorted(everywhere().get(lab, {}).items()))


def everywhere() -> Mapping[str, dict[str, Path]]:
    """Lab name -> (node name -> path), of every lab that has a namespace."""
    found: dict[str, dict[str, Path]] = {}
    try:
        names = os.listdir(DIRECTORY)
    except FileNotFoundError:
        return found
    for name in names:
        prefix, _, rest = name.partition(".")
        lab, _, node = rest.partition(".")
        if prefix == PREFIX and lab and node:
            found.setdefault(lab, {})[node] = DIRECTORY / name
    return found


def share_directory() -> None:
    """Make ``/run/netns`` a shared mount, so that other mount namespaces see what is put there.

    Idempotent; takes the lock that ``ip netns add`` takes.
    """
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    lock = os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = os.fsencode(DIRECTORY)
        if _mount(b"none", directory, MS_SHARED | MS_REC) == errno.EINVAL:
            _check(_mount(directory, directory, MS_BIND | MS_REC), DIRECTORY)
            _check(_mount(b"none", directory, MS_SHARED | MS_REC), DIRECTORY)
    finally:
        os.close(lock)


def make(path: Path) -> None:
    """Move the calling thread into a new network namespace and give it a name.

    Call :func:`share_directory` before.  Raises FileExistsError when the name is taken.
    """
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    leave_for_unnamed()
    _check(_mount(OWN.encode(), os.fsencode(path), MS_BIND), path)


def name_again(path: Path, second: Path) -> None:
    """Move the calling thread into the namespace at ``path`` and give that a ``second`` name.

    It lives as long as one of its names.  Raises FileExistsError when the name is taken.
    """
    os.close(os.open(second, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    enter(path)
    _check(_mount(OWN.encode(), os.fsencode(second), MS_BIND), second)


def leave_for_unnamed() -> None:
    """Move the calling thread into a new network namespace without a name."""
    if _libc.unshare(CLONE_NEWNET) != 0:
        _check(ctypes.get_errno(), Path(OWN))


def enter(path: Path | str) -> None:
    """Move the calling thread into the namespace at ``path``."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_setns(handle), Path(path))
    finally:
        os.close(handle)


@contextmanager
def entered(path: Path) -> Iterator[None]:
    """The calling thread is inside the namespace for the duration of the block."""
    home = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(path)
        try:
            yield
        finally:
            _check(_setns(home), Path(OWN))
    finally:
        os.close(home)


def pose_as(name: str, shown: Mapping[Path, Path]) -> None:
    """Give this process the host name ``name``, and directories in others' places.

    For itself alone: it moves into a mount and a UTS namespace of its own.  ``shown`` leads from a
    place to the directory that is seen there from now on, by this process and those it starts.
    Call it in a process of one thread.
    """
    if _libc.unshare(CLONE_NEWNS | CLONE_NEWUTS) != 0:
        _check(ctypes.get_errno(), Path("/proc/self/ns/mnt"))
    socket.sethostname(name)
    propagate(MS_SLAVE)
    for place, directory in shown.items():
        _check(_mount(os.fsencode(directory), os.fsencode(place), MS_BIND), place)


def propagate(how: int) -> None:
    """Give every mount that the calling thread sees the propagation ``how``, such as MS_PRIVATE.

    In a chroot ``/`` is no mount point, and no tree to begin with: its mounts get it one by one.
    """
    code = _mount(b"none", b"/", how | MS_REC)
    if code == errno.EINVAL:
        for place in mount_points():
            code = _mount(b"none", os.fsencode(place), how)
            if code != errno.ENOENT:  # another mount hides it: nobody can get there
                _check(code, place)
    else:
        _check(code, Path("/"))


def mount_points() -> list[Path]:
    """Return where something is mounted, as the calling thread sees it (proc(5), mountinfo)."""
    places = [line.split()[4] for line in MOUNTS.read_text().splitlines()]
    # Blanks, tabs, line feeds and backslashes are octal numbers there.
    return [Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), each)) for each in places]


def remove(path: Path) -> None:
    """Take the name away.  The namespace ends when nothing is left inside or holding it."""
    # A name is unmounted until it is a plain file: mounts may have been stacked on it.
    while _libc.umount2(os.fsencode(path), MNT_DETACH) == 0:
        pass
    path.unlink(missing_ok=True)


def inode(path: Path) -> tuple[int, int] | None:
    """Return what identifies the namespace at ``path``; None if the name leads to none (yet)."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    is_namespace = status.st_dev != os.stat(path.parent).st_dev
    return (status.st_dev, status.st_ino) if is_namespace else None


class Visitor:
    """Threads that go into namespaces and come back, so that the caller's never does.

    There are as many as have work at a time, :data:`MOST_VISITORS` at most.  They are daemons: work
    can be given to them until the very end of the process.
    """

    def __init__(self) -> None:
        self._home = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
        self._waiting: deque[tuple[Callable[[], object], Future[Any]]] = deque()
        self._underway: set[Future[Any]] = set()
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0

    def run(self, work: Callable[[], T]) -> T:
        """Call ``work`` in a visiting thread; it may move that thread to any namespace.

        An interrupted caller does not interrupt the work; :meth:`settle` waits for it.
        """
        answer: Future[T] = Future()
        self._waiting.append((work, answer))
        try:
            self._call()
        except RuntimeError:  # no thread can be started
            self._waiting.remove((work, answer))
            raise
        return answer.result()

    def _call(self) -> None:
        """See to it that somebody takes what waits."""
        with self._lock:
            if self._threads < min(len(self._waiting) + len(self._underway), MOST_VISITORS):
                thread = threading.Thread(target=self._serve, name="netns", daemon=True)
                try:
                    thread.start()
                    self._threads += 1
                except RuntimeError:
                    if not self._threads:
                        raise
        self._calls.put(None)

    def inside(self, path: Path, work: Callable[[], T]) -> T:
        """Call ``work`` inside the namespace; processes that it starts live there."""

        def visit() -> T:
            enter(path)
            return work()

        return self.run(visit)

    def settle(self) -> None:
        """Return when all requests to the visitor are over."""
        while True:
            with self._lock:
                unanswered = [answer for _, answer in self._waiting] + list(self._underway)
            if not unanswered:
                return
            self._call()  # whoever was interrupted may not have done so
            wait(unanswered)

    def _serve(self) -> None:
        while True:
            self._calls.get()
            with self._lock:
                if not self._waiting:
                    continue
                work, answer = self._waiting.popleft()
                self._underway.add(answer)
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 (it is the caller's to judge)
                self._return(answer, error)
            else:
                self._return(answer, None, result)
            # the last references to what the caller has now, or dropped
            del work, answer
            result = None

    def _return(
        self, answer: Future[Any], error: BaseException | None, result: object = None
    ) -> None:
        # A thread that stayed would keep a removed namespace alive.
        code = _setns(self._home)
        if code and error is None:
            error = OSError(code, os.strerror(code), OWN)
        with self._lock:
            self._underway.discard(answer)
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)


_visitor: Visitor | None = None
_visitor_lock = threading.Lock()


def visitor() -> Visitor:
    """Return this process's visitor, made anew after a fork, which threads do not survive."""
    global _visitor
    with _visitor_lock:
        if _visitor is None:
            _visitor = Visitor()
        return _visitor


def _forget_visitor() -> None:
    global _visitor, _visitor_lock
    _visitor, _visitor_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_visitor)


def _setns(handle: int) -> int:
    return 0 if _libc.setns(handle, CLONE_NEWNET) == 0 else ctypes.get_errno()


def _mount(source: bytes, target: bytes, flags: int) -> int:
    if _libc.mount(source, target, b"none", flags, None) == 0:
        return 0
    return ctypes.get_errno()


def _check(code: int, path: Path) -> None:
    if code:
        raise OSError(code, os.strerror(code), str(path))
