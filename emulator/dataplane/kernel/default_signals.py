"""Default signals for programs that this process starts.

A shell without job control starts what it puts in the background with SIGINT and SIGQUIT ignored
(POSIX, Shell Command Language, 2.11). That is ``&`` in a script, as some CI systems have it, and
every program inherits it: one that is ended by SIGINT would never end.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

_IGNORED_IN_BACKGROUND = (signal.SIGINT, signal.SIGQUIT)


def popen_options() -> Mapping[str, Any]:
    """Return options of :class:`subprocess.Popen` that give the program default signals.

    There are none where this process ignores neither signal: what it handles, ``exec`` resets.
    """
    if any(signal.getsignal(number) is signal.SIG_IGN for number in _IGNORED_IN_BACKGROUND):
        return {"preexec_fn": _reset}
    return {}


def _reset() -> None:
    for number in _IGNORED_IN_BACKGROUND:
        signal.signal(number, signal.SIG_DFL)
