"""The run folder: everything that a run leaves behind, and the schema of ``result.json``.

====================  ============================================================================
``result.json``       what was measured (below); written anew after each row, and until the run has
                      ended its ``errors`` state it
``events.jsonl``      one JSON object per line, flushed as things happen: what was finished before
                      a crash is there; for each row also what every port saw of it, how long its
                      messages took, and what endpoints counted (:mod:`emulator.run_files`)
``fabric.json``       the topology as built
``environment.json``  machine, kernel, versions, seed, dilation and how it was chosen
``timeline.json``     one iteration of the largest size in Chrome's trace format
``nccl-tests.json``   of collectives: their rows in nccl-tests' form
                      (:mod:`emulator.nccl_tests.json_report`)
``frame_latency.csv``  with ``--frame-latency``: times of frames between NICs
                      (:mod:`emulator.run.measures.frame_latency`)
``capture.pcapng``    packets of the chosen ports (with a virtual clock:
                      :mod:`emulator.sim.port_capture`)
``telemetry.csv``     queues and counts over time of every switch port that has the ASIC
                      (:mod:`emulator.dataplane.switch.telemetry`); a row's ``began_us`` is when, on
                      the same clock, each of its iterations began, and ``time_us`` how long they
                      took
``line_telemetry.csv``  of a virtual clock: what NICs send and how long pauses stop each port, over
                      time (:mod:`emulator.sim.line_telemetry`)
====================  ============================================================================

Keys of ``result.json`` are explained in :mod:`emulator.result_keys`.  Keys may be added under
the same schema number; a key that changes its meaning or goes away raises it.
"""

from __future__ import annotations

import json
import mmap
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from emulator.errors import UserError
from emulator.metrics import described
from emulator.run_files import EVENTS, SCHEMA, UNITS
from emulator.sim.endpoint.operations.gpu_memory import memory_path
from emulator.whole_file import MEND, whole_file
from emulator.workers.division import Processes

_MEND = f"{MEND} with --output"
#: The nodes of a run's fabric: namespaces of the kernel, or a model of them in the run's process.
FabricKind = Literal["kernel", "model"]
ROW_KEYS = (
    "transport",
    "switch",
    "collective",
    "size_bytes",
    "time_us",
    "ideal_us",
    "algbw_gbps",
    "busbw_gbps",
    "wrong",
)


@dataclass
class Result:
    """``result.json`` while it grows."""

    scenario: str
    topology: str
    transport: str
    ranks: int
    seed: int
    seeds: int = 1
    switch: str | None = None
    fabric: FabricKind = "kernel"
    dilation: float | None = None
    homing: Mapping[str, object] | None = None
    parameters: Mapping[str, object] = field(default_factory=dict)
    rows: list[dict[str, object]] = field(default_factory=list)
    summary: list[dict[str, object]] = field(default_factory=list)
    endpoints: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    ports: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    fidelity: Mapping[str, object] = field(
        default_factory=lambda: {
            "verdict": "unknown",
            "reasons": ["the run ended before fidelity could be judged"],
            "inputs": [],
        }
    )
    digest: str | None = None
    unfinished: Mapping[str, object] | None = None
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add_row(self, row: Mapping[str, object]) -> dict[str, object]:
        """Append ``row`` with every obligatory key present; returns it as appended."""
        complete = {**dict.fromkeys(ROW_KEYS), **row}
        self.rows.append(complete)
        return complete

    @property
    def succeeded(self) -> bool:
        """Rows exist, none is wrong, nothing failed."""
        return (
            bool(self.rows)
            and not self.errors
            and all(row["wrong"] in (0, None) for row in self.rows)
        )

    def as_dict(self) -> dict[str, object]:
        """All of it under its names; what these hold is not copied."""
        own = described()
        more = {"metrics": own} if own else {}
        return {"schema": SCHEMA, **vars(self), "units": UNITS, **more}


class RunFolder:
    """One directory; ``event`` appends and flushes, ``write`` replaces a file in one step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._events = (path / EVENTS).open("a", encoding="utf-8")

    @classmethod
    def create(cls, scenario: str, output: Path | None = None) -> RunFolder:
        """``output`` if given, which must be new or empty, else ``runs/<scenario>-<UTC>``."""
        if output is not None:
            try:
                output.mkdir(parents=True, exist_ok=True)
                taken = any(output.iterdir())
            except OSError as error:
                raise UserError(
                    f"cannot use {output} as the run folder: {error.strerror}; "
                    "choose another with --output"
                ) from None
            if taken:
                raise UserError(
                    f"{output} is not empty; choose a new directory with --output, so that no "
                    "earlier run is mixed with this one"
                )
            return cls(output)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        number = 1
        while True:
            suffix = f"-{number}" if number > 1 else ""
            path = Path("runs") / f"{scenario}-{stamp}{suffix}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:  # another run started in this second
                number += 1
                continue
            except OSError as error:
                raise UserError(
                    f"cannot make the run folder {path}: {error.strerror}; "
                    "choose another place with --output"
                ) from None
            return cls(path)

    def event(self, kind: str, **details: object) -> None:
        """Append one line to ``events.jsonl`` and hand it to the kernel at once."""
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        with self._written(self.path / EVENTS):
            self._events.write(json.dumps({"time": now, "event": kind, **details}) + "\n")
            self._events.flush()

    def write(self, name: str, content: object) -> Path:
        """Write ``content`` as JSON, so that a reader sees the old file or the new one."""
        path = self.path / name
        with whole_file(path, _MEND) as fresh, fresh.open("w", encoding="utf-8") as stream:
            stream.writelines(_json_lines(content))
        return path

    @contextmanager
    def _written(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; {_MEND}") from error

    def close(self) -> None:
        with self._written(self.path / EVENTS):
            self._events.close()


class PartFolder(RunFolder):
    """The folder of a process that has a part of the run: the first process writes the results.

    ``path`` has this process's own files.  It lies with the memory of the GPUs of ``lab`` and is
    removed with it. So ``uetemu clean`` finds it, whatever has become of this process.
    """

    def __init__(self, lab: str) -> None:
        self.path = memory_path(lab, ".files")  # no node has this name
        try:
            self.path.mkdir()
            # As with memory: whoever has it mapped is alive (emulator.dataplane.cleanup).
            held = self.path / "held"
            held.write_bytes(b"\0")
            with held.open("rb") as file:
                self._held = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
        except OSError as error:
            raise UserError(
                f"cannot make {self.path} for a process's files: {error.strerror}; make room there"
            ) from error

    def event(self, kind: str, **details: object) -> None:
        """Write nothing."""

    def write(self, name: str, content: object) -> Path:
        """Write nothing."""
        return self.path / name

    def close(self) -> None:
        """Remove the folder."""
        self._held.close()
        shutil.rmtree(self.path, ignore_errors=True)


def gather_files(processes: Processes, folder: Path) -> None:
    """Bring the files of all processes' ``folder`` into that of the first; all call this."""
    sending = not processes.reports and folder.is_dir()
    own = {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if sending else {}
    found: dict[str, bytes] = {}
    for files in processes.gather("event logs", own):
        found |= files
    if not processes.reports:
        return
    for name, content in found.items():
        try:
            (folder / name).write_bytes(content)
        except OSError as error:
            raise UserError(
                f"cannot write {folder / name}: {error.strerror}; make room there, or choose "
                "another place with --output"
            ) from error


#: What stands between two members of the lists that have a line for each.
_NEXT = ",\n  "


class JsonText(str):
    """Members of a list as their JSON text, which :meth:`RunFolder.write` writes as it is."""

    __slots__ = ()

    @classmethod
    def of(cls, members: Iterable[str]) -> JsonText:
        """Return the text of all ``members``, one at least."""
        return cls(_NEXT.join(members))


def _json_lines(content: object) -> Iterator[str]:
    """JSON text in pieces: each member of the outermost object, and of its members, has a line.

    One text of a timeline would take more memory, and indenting all of it twenty times as long.
    """
    if not isinstance(content, dict):
        yield f"{_dumped(content)}\n"
        return
    start = "{"
    for name, value in content.items():
        yield f"{start}\n {_dumped(str(name))}: "
        yield from _members(value)
        start = ","
    yield "\n}\n" if content else "{}\n"


def _members(value: object) -> Iterator[str]:
    start = ""
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield f"{start or '{'}\n  {_dumped(str(name))}: {_dumped(member)}"
            start = ","
        yield "\n }"
    elif isinstance(value, Iterator) or (isinstance(value, list | tuple) and value):
        for member in value:
            text = member if isinstance(member, JsonText) else _dumped(member)
            yield f"{start or '['}\n  {text}"
            start = ","
        yield "\n ]" if start else "[]"
    else:
        yield _dumped(value)


#: ``json.dumps`` with options would make one for every value.
_dumped = json.JSONEncoder(allow_nan=False).encode
