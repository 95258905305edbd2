"""Keepers: each outlives the process that started it, and runs a program if that one was killed.

A process that is killed removes nothing.  Its keeper sleeps in a session of its own, where neither
a launcher nor a terminal sends signals, and is nobody's child.  It holds no stream of its starter.
Until there is something to do it is a Python that has imported nothing of this package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import emulator
from emulator.dataplane.kernel.launcher import without_launcher

#: Set for a process whose lab is to have a keeper.
VARIABLE = "UETEMU_KEPT"
#: The name of the process, while it waits.
NAME = "uetemu-keeper"
#: Where the packages are that the program imports: those of this process.
_PACKAGES = Path(emulator.__file__).parents[1]
#: Its arguments: a handle of the process (pidfd), and the program's words.  Standard input has an
#: octet once all is removed.  Whoever waits for the first process knows that the second one waits.
_CODE = f"""\
import os, select, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
with open("/proc/self/comm", "w") as name:
    name.write({NAME!r})
if os.fork():
    os._exit(0)
handle, *words = sys.argv[1:]
poll = select.poll()
poll.register(0, select.POLLIN)
poll.register(int(handle), select.POLLIN)
while True:
    ready = [descriptor for descriptor, _ in poll.poll()]
    if 0 in ready:
        if os.read(0, 1):
            os._exit(0)
        poll.unregister(0)
    elif ready:
        break
os.dup2(1, 0)
os.execv(words[0], words)
"""


@contextmanager
def kept(code: str, *arguments: str) -> Iterator[None]:
    """Have Python run ``code`` with ``arguments`` if this process is killed during the block."""
    handle = os.pidfd_open(os.getpid())
    try:
        keeper = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", "-c", _CODE, str(handle)),
                *(sys.executable, "-P", "-c", code, *arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=without_launcher() | {"PYTHONPATH": str(_PACKAGES)},
            pass_fds=(handle,),
            start_new_session=True,
        )
    finally:
        os.close(handle)
    assert keeper.stdin is not None
    line = keeper.stdin.fileno()
    keeper.wait()
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # somebody has killed it
            os.write(line, b"\0")
        keeper.stdin.close()
