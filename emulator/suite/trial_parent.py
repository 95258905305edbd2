"""The process that all trials of this machine are forked from: what they need is imported once.

It runs none itself and has one thread, so that a trial begins as one in a process of its own does.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Octets of a process's words that ps shows, at most.
SHOWN = 4096
#: The longest message (octets): the words of a trial.
_LONGEST = 1 << 17
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class _Trial(NamedTuple):
    """A trial that runs, and the socket that takes its exit status."""

    pid: int
    handle: int  # a pidfd
    answer: socket.socket

    def report(self) -> None:
        """Send the exit status, as soon as there is one."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with suppress(OSError):  # whoever asked has ended
            self.answer.send(str(status).encode())
        self.close()

    def close(self) -> None:
        """Let go of it."""
        os.close(self.handle)
        self.answer.close()


def next_trial() -> None:
    """Fork a child for each trial that is asked for; return in the children, and nowhere else.

    The arguments of this process name modules, which it imports first.  Standard input is a socket.
    A message has the words of a trial, with NUL between them, and the descriptors of its standard
    error and of a socket that takes its exit status.  When the other end is closed, trials that run
    are interrupted, and this process ends after the last of them.
    """
    for module in sys.argv[1:]:
        with suppress(ModuleNotFoundError):  # Mininet, say: a trial that needs it says so
            importlib.import_module(module)
    gc.freeze()  # else the first collection in a child would copy every page that is shared
    asker, parent = socket.socket(fileno=os.dup(0)), os.getpid()
    running: dict[int, _Trial] = {}
    while True:
        ready, _, _ = select.select([asker.fileno(), *running], [], [])
        for handle in running.keys() & set(ready):
            running.pop(handle).report()
        if asker.fileno() not in ready:
            continue
        words, descriptors, _, _ = socket.recv_fds(asker, _LONGEST, 2)
        if not words:
            break
        errors, answer = descriptors[0], socket.socket(fileno=descriptors[1])
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        pid = _fork(errors)
        if pid == 0:
            asker.close()
            answer.close()
            for other in running.values():
                other.close()
            _become(os.fsdecode(words).split("\0"), errors, parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(errors)
        if pid is None:
            answer.send(b"1")
            answer.close()
        else:
            handle = os.pidfd_open(pid)
            running[handle] = _Trial(pid, handle, answer)
    for trial in running.values():
        os.kill(trial.pid, signal.SIGINT)
    for trial in running.values():
        trial.report()
    os._exit(0)


def _fork(errors: int) -> int | None:
    """Fork; None where there is no room for a process, which ``errors`` gets as a sentence."""
    try:
        return os.fork()
    except OSError as error:
        os.write(errors, f"uetemu: it could not be started: {error.strerror}\n".encode())
        return None


def _become(words: list[str], errors: int, parent: int) -> None:
    """Be a trial, which ends with its ``parent``, and which Ctrl-C at a terminal does not reach."""
    os.setpgid(0, 0)
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT))
    if os.getppid() != parent:
        os._exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, stream in ((nothing, 0), (errors, 2)):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    sys.argv[1:] = words
    _show(["uetemu", *words])


def _show(words: list[str]) -> None:
    """Have ps list this process by ``words``, in place of those that it was started with.

    The kernel takes them for one text, up to a NUL, where the last octet of their room is none.
    """
    after_name = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    begin, end = map(int, after_name[45:47])  # arg_start and arg_end in proc_pid_stat(5)
    text = os.fsencode(" ".join(words))[: end - begin - 2]
    ctypes.memmove(begin, text.ljust(end - begin - 1, b"\0") + b".", end - begin)
