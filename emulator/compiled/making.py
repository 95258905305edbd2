"""Compiling: mypyc writes C, and as many compilers as there are processors compile it at once."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import importlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from sysconfig import get_config_var, get_path
from tempfile import TemporaryDirectory

from mypyc.build import mypycify
from setuptools import Extension

from emulator.compiled.builds import (
    BUILDS,
    GROUP,
    LIBRARY,
    RECORD,
    ROOT,
    SUFFIX,
    Build,
    Source,
    builds,
    current,
    described,
    fitting,
    folder_of,
    module_of,
    mypy_version,
)
from emulator.compiled.finder import PURE, CompiledFinder
from emulator.compiled.hot_modules import HOT
from emulator.errors import UserError

#: More than -O1 takes several times as long to compile; -g0: no debugger reads generated C.
OPTIMISATION, DEBUGGING = "1", "0"
#: Hidden functions call each other without a look at a table of names.
FLAGS = ("-Wno-error", "-fvisibility=hidden")
#: What Debian calls what compiles.
PACKAGES = "Debian has it in gcc, and Python's headers in libpython3-dev"
#: How many builds stay: whoever changes branches finds that of the other one.
KEPT = 3
#: mypy reads what it finds of these two, which have no types, and it takes long.
CONFIGURATION = """\
[mypy]
ignore_missing_imports = True
[mypy-scapy.*,setuptools.*]
follow_imports = skip
"""


def sources() -> list[str]:
    """Return what compiled modules depend on: themselves, and all that they import of this tree."""
    found: set[str] = {str(path.relative_to(ROOT)) for path in Path(__file__).parent.glob("*.py")}
    pending = list(HOT)
    while pending:
        source = pending.pop()
        if source in found:
            continue
        found.add(source)
        tree = ast.parse((ROOT / source).read_bytes())
        pending += {path for name in _imported(tree) for path in _files_of(name)}
    return sorted(found)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files_of(name: str) -> Iterator[str]:
    """Yield the files of ``name``, of the packages above it, or of the module that has it."""
    if name.partition(".")[0] not in {source.partition("/")[0] for source in HOT} | {"topologies"}:
        return
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        path = "/".join(parts[:count])
        for file in (f"{path}.py", f"{path}/__init__.py"):
            if (ROOT / file).is_file():
                yield file


def make() -> Build:
    """Compile the modules, unless a build of them is there, and return it.

    Raises UserError if the machine cannot.
    """
    try:
        BUILDS.mkdir(exist_ok=True)
        with _held(BUILDS):
            return current() or _made()
    except OSError as error:
        raise UserError(f"the modules cannot be compiled into {BUILDS}: {error}") from error


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keep another call from working in ``folder``: it waits."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _made() -> Build:
    for left in BUILDS.glob("making-*"):  # by a call that was killed
        shutil.rmtree(left)
    known = {source: described(source) for source in sources()}
    with TemporaryDirectory(prefix="making-", dir=BUILDS) as made:
        work, result = Path(made, "work"), Path(made, "result")
        result.mkdir()
        _compile(work, result)
        _try_out(result)
        if {source: described(source) for source in sources()} != known:
            raise UserError("sources changed while they were compiled; compile them again")
        record = {"mypy": mypy_version(), "modules": [*map(module_of, HOT)], "sources": known}
        (result / RECORD).write_text(json.dumps(record) + "\n")
        folder = folder_of(_key(known))
        shutil.rmtree(folder, ignore_errors=True)  # one that is not whole
        result.rename(folder)
    for old in builds()[KEPT:]:
        shutil.rmtree(old)
    build = fitting()
    assert isinstance(build, Build), build
    return build


def _key(known: dict[str, Source]) -> str:
    facts = [SUFFIX, mypy_version(), sorted((name, each.sha256) for name, each in known.items())]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _compile(work: Path, result: Path) -> None:
    """Compile all modules into ``result``, with generated C in ``work``."""
    _report(f"compiling {len(HOT)} modules: mypyc reads them and writes C")
    library, *shims = _written_c(work)
    objects = {source: f"{source}.o" for source in library.sources}
    by_size = sorted(objects, key=os.path.getsize, reverse=True)
    calls = [_compiler(library, "-c", source, "-o", objects[source]) for source in by_size]
    for shim in shims:
        place = result / (shim.name.replace(".", "/") + SUFFIX)
        place.parent.mkdir(parents=True, exist_ok=True)
        calls.append(_compiler(shim, *shim.sources, "-shared", "-o", str(place)))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        pending = [pool.submit(_call, call) for call in calls]
        try:
            for number, done in enumerate(as_completed(pending), 1):
                done.result()
                _report(f"compiling {len(HOT)} modules: {number} of {len(calls)} files of C")
        finally:
            pool.shutdown(cancel_futures=True)
    _call(_compiler(library, *objects.values(), "-shared", "-o", f"{result}/{LIBRARY}{SUFFIX}"))


def _try_out(result: Path) -> None:
    """Import all that was compiled into ``result``, as only that shows whether it can be."""
    code = f"from emulator.compiled import making; making.import_all({str(result)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {PURE: "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        problem = (done.stderr.splitlines() or ["no reason given"])[-1]
        raise UserError(f"the modules are compiled, but cannot be imported ({problem})")


def import_all(result: str) -> None:
    """Import the modules that were compiled into ``result``, where none of them is."""
    modules = tuple(map(module_of, HOT))
    sys.meta_path.insert(0, CompiledFinder(Build(Path(result), modules, "")))
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] in {name.partition(".")[0] for name in modules}:
                raise
            return  # pip builds without the packages that modules need


def _written_c(work: Path) -> list[Extension]:
    """Have mypyc write C into ``work``; return the library of all modules, and what loads each."""
    said = io.StringIO()
    configuration = work / "mypy.ini"
    work.mkdir()
    configuration.write_text(CONFIGURATION)
    try:
        with contextlib.chdir(ROOT), contextlib.redirect_stdout(said):
            written: list[Extension] = mypycify(
                [f"--config-file={configuration}", f"--cache-dir={os.devnull}", *HOT],
                opt_level=OPTIMISATION,
                debug_level=DEBUGGING,
                multi_file=True,
                target_dir=str(work),
                group_name=GROUP,
            )
    except SystemExit:
        problem = next((line for line in said.getvalue().splitlines() if "error:" in line), "")
        raise UserError(f"mypyc does not compile the modules: {problem}") from None
    return written


def _compiler(extension: Extension, *arguments: str) -> list[str]:
    """Return the call of Python's own C compiler; the environment's CFLAGS come last."""
    words = " ".join(get_config_var(name) or "" for name in ("CC", "CFLAGS", "CCSHARED"))
    folders = [get_path("include"), get_path("platinclude"), *extension.include_dirs]
    flags = [*extension.extra_compile_args, *FLAGS, *(f"-I{folder}" for folder in folders)]
    more = os.environ.get("CFLAGS", "")
    return [*shlex.split(words), *flags, *shlex.split(more), *arguments]


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UserError(f"there is no C compiler {command[0]}; {PACKAGES}") from None
    if done.returncode:
        problem = next((line for line in done.stderr.splitlines() if "error" in line), "no reason")
        raise UserError(f"the C compiler failed ({problem.strip()}); {PACKAGES}")


def _report(text: str) -> None:
    """Replace the line of progress on a terminal; elsewhere write a line."""
    before, after = ("\r\033[K", "") if sys.stderr.isatty() else ("", "\n")
    print(before + text, end=after, file=sys.stderr, flush=True)  # noqa: T201
