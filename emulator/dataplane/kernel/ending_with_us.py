"""Programs that end with the thread that started them, without ``setpriv``: machines may lack it.

The kernel signals a program whose parent has ended (``PR_SET_PDEATHSIG``).  The program has to ask
for that itself, so a small Python does, and replaces itself by the program: the process stays the
same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from signal import Signals

#: Its arguments: the signal, the process that must still be the parent, and the program's words.
#: Python ignores two signals that programs are used to end by; 1 is ``PR_SET_PDEATHSIG``.
_CODE = """\
import ctypes, os, signal, sys
number, parent, *words = sys.argv[1:]
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(ignored, signal.SIG_DFL)
ctypes.CDLL(None).prctl(1, int(number))
if os.getppid() != int(parent):
    sys.exit(f"{words[0]}: the program that started it has ended")
try:
    os.execvp(words[0], words)
except OSError as failure:
    sys.exit(f"{words[0]}: {failure.strerror}")
"""


def ending_with_us(number: Signals, words: Sequence[str]) -> list[str]:
    """Return the command that runs ``words`` and gets the signal ``number`` once this one ends.

    It does so at the end of the thread that starts it.
    """
    code = [sys.executable, "-I", "-S", "-c", _CODE]
    return [*code, str(int(number)), str(os.getpid()), *words]
