"""Which line of the script calls."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType

import torch

_PASSED_OVER = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent),
    sysconfig.get_path("stdlib") + os.sep,
    "<",
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def script_line() -> str:
    """Return the line that is being carried out, as ``train.py:12``; empty if there is none.

    It is that of an installed library only if no line outside of these is.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    installed = ""
    while frame is not None:
        file = frame.f_code.co_filename
        own = not any(part in file for part in _INSTALLED)
        if not file.startswith(_PASSED_OVER) and (own or not installed):
            line = f"{os.path.basename(file)}:{frame.f_lineno}"
            if own:
                return line
            installed = line
        frame = frame.f_back
    return installed
