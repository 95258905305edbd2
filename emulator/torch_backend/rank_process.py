"""The process of a rank: the script as its main program, and how it ends."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path

from emulator.torch_backend.launching import RankPlace, Script


def run_script(script: Script, place: RankPlace) -> int:
    """Run the script as ``__main__``; return the exit status that Python would have."""
    sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115
    sys.argv = [script.path, *script.arguments]
    os.environ.update(place.variables(int(script.environment.get("MASTER_PORT", "0"))))
    status = 0
    try:
        for prepare in script.prepare:
            prepare(place)
        if script.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(script.path, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(script.path).resolve().parent))
            runpy.run_path(script.path, run_name="__main__")
    except SystemExit as end:
        status = _status_of(end)
    except BaseException as error:  # noqa: BLE001 (whatever the script raises)
        status = 1
        traceback.print_exception(_without_ours(error))
    finally:
        try:
            threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 (as Python's end)
            atexit._run_exitfuncs()  # noqa: SLF001
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    return status


def _status_of(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)  # noqa: T201 (as Python does)
    return 1


def _without_ours(error: BaseException) -> BaseException:
    """Return ``error`` without the frames that lie before the script's own."""
    trace = error.__traceback__
    here = {__file__, runpy.__file__}
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in here
        or trace.tb_frame.f_code.co_filename.startswith("<frozen runpy")
    ):
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)
