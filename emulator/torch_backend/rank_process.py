"""The process of a rank: the script as its main program, and how it ends."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from emulator.torch_backend.launching import RankPlace, Script
from emulator.torch_backend.spawning import part_of_spawned


def run_script(script: Script, place: RankPlace) -> int:
    """Run the script as ``__main__``; return the exit status that Python would have."""
    sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115
    sys.argv = [script.path, *script.arguments]
    os.environ.update(place.variables(int(script.environment.get("MASTER_PORT", "0"))))
    status, failure, own = 0, "", os.getpid()
    finishing: list[Callable[[str], None]] = []
    try:
        part_of_spawned(place)
        for prepare in script.prepare:
            if (finish := prepare(place)) is not None:
                finishing.append(finish)
        if script.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(script.path, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(script.path).resolve().parent))
            runpy.run_path(script.path, run_name="__main__")
    except SystemExit as end:
        status = _status_of(end)
        words = f": {end.code}" if isinstance(end.code, str) else ""
        failure = f"rank {place.rank} ended with status {status}{words}" if status else ""
    except BaseException as error:  # noqa: BLE001 (whatever the script raises)
        status = 1
        shown = _without_ours(error)
        traceback.print_exception(shown)
        failure = _sentence(shown, place.rank)
    finally:
        if os.getpid() != own:  # a process that the script has forked: the rank's end is not its
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        try:
            threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 (as Python's end)
            atexit._run_exitfuncs()  # noqa: SLF001
            for finish in finishing:
                finish(failure)
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


def _sentence(error: BaseException, rank: int) -> str:
    """Return the sentence on ``error``, with the script's line that raised it."""
    trace = error.__traceback__
    lines = [] if trace is None else traceback.extract_tb(trace)
    torchs = ("site-packages", str(Path(__file__).parent))
    own = [one for one in lines if not any(part in one.filename for part in torchs)] or lines
    where = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    words = str(error).strip().splitlines() or [""]
    if isinstance(error, SyntaxError):
        where, words = f" at {Path(error.filename or '?').name}:{error.lineno}", [error.msg]
    if "cuda" in words[0].lower():
        return (
            f"rank {rank} asks for CUDA{where}, which is not here ({words[0]}); --map-cuda has the "
            "CPU stand for it"
        )
    said = f": {words[0].rstrip('.:')}" if words[0] else ""
    return f"rank {rank} raised {type(error).__name__}{where}{said}"


def _without_ours(error: BaseException) -> BaseException:
    """Return ``error`` without the frames that lie before the script's own."""
    trace = error.__traceback__
    here = {__file__, runpy.__file__}
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in here
        or trace.tb_frame.f_code.co_filename.startswith("<frozen runpy")
    ):
        trace = trace.tb_next
    return error.with_traceback(trace)
