"""The trainings of a run: losses, times of steps, shares of communication; and TensorBoard's files.

Values are those of the run folder.  A step is an epoch where a network is trained with real
numbers, and an iteration where a training step of a transformer is replayed:

===========================  ===================================================================
``loss``                     of each epoch, which the run compared to the bit; a replayed step has
                             synthetic contents and no loss
``time/step_us``             fabric time from the end of the step before to the end of this one
``time/mean_step_us``        time of the whole training over its epochs
``share/not_computing``      of an epoch: share of that time in which a GPU does not compute, the
                             mean over the GPUs; communication, and the bubble of a pipeline
``share/communication``      of a replayed step: share in which a GPU waits for an exchange
``share/compute``, ``...``   of a replayed step: where its time went, as its row has it
===========================  ===================================================================

Times and shares of single epochs are those of the iteration that ``timeline.json`` holds: the row
that it belongs to has them.  The losses of the others all stand at the end of their training.

TensorBoard gets one folder for each training of a run, which it shows as a curve.  A file's times
are fabric time in seconds since the start of the run's clock, not the machine's: TensorBoard's axis
"Relative" is fabric time, and its "Wall" counts from 1970.  Nothing of the machine is in a file,
and equal runs leave equal octets.  Values are 32-bit floats, as the format has them.  The records
are written by tensorboardX, an optional package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.errors import UserError
from emulator.report.run_folder import Row, RunRecord
from emulator.whole_file import MEND, whole_file

_EPOCH = re.compile(r"epoch (\d{1,9})\b")
_SHARES = {
    "exposed": "share/communication",
    "compute_share": "share/compute",
    "bubble_share": "share/bubble",
    "tp_share": "share/wait for TP",
    "cp_share": "share/wait for CP",
    "ep_share": "share/wait for EP",
    "dp_share": "share/wait for DP",
    "pp_share": "share/wait for PP",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPoint:
    """One value: ``at_us`` is fabric time of the run's clock, at the end of ``step``."""

    tag: str
    step: int
    value: float
    at_us: float


@dataclass(frozen=True, kw_only=True)
class TrainingCourse:
    """The training of one row, which ``label`` names; ``points`` in the order of time."""

    row: int
    label: str
    points: Sequence[TrainingPoint]


def training_courses(record: RunRecord) -> list[TrainingCourse]:
    """Return the course of each row that is a training; none for other scenarios."""
    found = []
    for number, (row, label) in enumerate(zip(record.rows, record.labels, strict=True), start=1):
        points = list(_epochs(record, number, row)) or list(_steps(record, number, row))
        if points:
            points.sort(key=lambda one: (one.at_us, one.step, one.tag))
            found.append(TrainingCourse(row=number, label=label, points=points))
    return found


def _epochs(record: RunRecord, number: int, row: Row) -> Iterator[TrainingPoint]:
    losses = [loss for loss in _list(row.get("losses")) if isinstance(loss, int | float)]
    began = record.began_us(number)
    if not losses or not began:
        return
    end = began[-1] + float(row.get("time_us") or 0)
    steps = _timed(record, number)
    ends = {step: began[-1] + found.end_us for step, found in steps.items()}
    for epoch, loss in enumerate(losses, start=1):
        yield TrainingPoint(tag="loss", step=epoch, value=loss, at_us=ends.get(epoch, end))
    mean = float(row.get("time_us") or 0) / len(losses)
    yield TrainingPoint(tag="time/mean_step_us", step=len(losses), value=mean, at_us=end)
    before = 0.0
    for epoch, found in sorted(steps.items()):
        span, at_us = found.end_us - before, ends[epoch]
        before = found.end_us
        yield TrainingPoint(tag="time/step_us", step=epoch, value=span, at_us=at_us)
        if span > 0:
            share = max(0.0, 1 - found.mean_computing_us / span)
            yield TrainingPoint(tag="share/not_computing", step=epoch, value=share, at_us=at_us)


def _steps(record: RunRecord, number: int, row: Row) -> Iterator[TrainingPoint]:
    if not isinstance(row.get("exposed"), int | float):
        return
    times, began = record.times_us(number), record.began_us(number)
    end = 0.0
    for step, (start, time_us) in enumerate(zip(began, times, strict=False), start=1):
        end = start + time_us
        yield TrainingPoint(tag="time/step_us", step=step, value=time_us, at_us=end)
    for key, tag in _SHARES.items():
        value = row.get(key)
        if isinstance(value, int | float):
            yield TrainingPoint(tag=tag, step=max(1, len(times)), value=value, at_us=end)


@dataclass
class _Epoch:
    end_us: float
    computing_us: dict[int, float]

    @property
    def mean_computing_us(self) -> float:
        return sum(self.computing_us.values()) / len(self.computing_us)


def _timed(record: RunRecord, number: int) -> Mapping[int, _Epoch]:
    """Return what the timeline has of each epoch of a row; nothing for another row's."""
    timeline = record.timeline or {}
    stated = timeline.get("otherData")
    events = timeline.get("traceEvents")
    if not isinstance(stated, Mapping) or stated.get("row") != number or "gpus" in stated:
        return {}
    slices = [one for one in _list(events) if _is_operation(one)]
    gpus = {one["pid"] for one in slices}
    found: dict[int, _Epoch] = {}
    for one in slices:
        if (named := _EPOCH.match(one["name"])) is None:
            continue
        epoch = found.setdefault(int(named[1]), _Epoch(0.0, dict.fromkeys(gpus, 0.0)))
        epoch.end_us = max(epoch.end_us, one["ts"] + one["dur"])
        if one["cat"] == "compute":
            epoch.computing_us[one["pid"]] += one["dur"]
    return found


def _is_operation(one: object) -> bool:
    """Return whether an event is an operation of a GPU; another version may have others."""
    return (
        isinstance(one, Mapping)
        and one.get("ph") == "X"
        and one.get("cat") in ("compute", "NIC", "NVLink")
        and isinstance(one.get("name"), str)
        and isinstance(one.get("pid"), int)
        and all(isinstance(one.get(key), int | float) for key in ("ts", "dur"))
    )


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []


FOLDER = "tensorboard"
#: TensorBoard reads files whose names have "tfevents" in them.
FILE = "events.out.tfevents.uetemu"
LONGEST_NAME = 60
_VERSION = "brain.Event:2"


def write_event_files(folder: Path, output: Path | None = None) -> list[Path]:
    """Write the event files of a run folder to ``output``, else beside its files; return them.

    Raises UserError if the run has no training, or tensorboardX is not installed.
    """
    try:
        import tensorboardX  # noqa: F401  an extra; it takes seconds where PyTorch is installed
    except ImportError:
        raise UserError(
            "TensorBoard's files are written by tensorboardX, which is not installed: "
            "pip install tensorboardX"
        ) from None
    record = RunRecord.read(folder)
    courses = training_courses(record)
    if not courses:
        raise UserError(
            f"{folder} has no training: rows of a neural training (data_parallel, ...) or of a "
            "training step (llm) have a course"
        )
    place = output or folder / FOLDER
    return [_written(place / _name(course), course) for course in courses]


def _name(course: TrainingCourse) -> str:
    text = re.sub(r"[^A-Za-z0-9._=-]+", "-", course.label.removeprefix(f"{course.row}: "))
    return f"row-{course.row}-{text.strip('-.')[:LONGEST_NAME]}".rstrip("-.")


def _written(folder: Path, course: TrainingCourse) -> Path:
    path = folder / FILE
    with whole_file(path, f"{MEND} with --output", parents=True) as fresh:
        _write(fresh, course)
    return path


def _write(path: Path, course: TrainingCourse) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter

    writer = RecordWriter(str(path))
    writer.write(Event(file_version=_VERSION).SerializeToString(deterministic=True))
    for point in course.points:
        value = Summary.Value(tag=point.tag, simple_value=point.value)
        event = Event(wall_time=point.at_us / 1e6, step=point.step, summary=Summary(value=[value]))
        writer.write(event.SerializeToString(deterministic=True))
    writer.close()
