"""Event files for TensorBoard: one folder for each training of a run, which it shows as a curve.

A file's times are fabric time in seconds since the start of the run's clock, not the machine's:
TensorBoard's axis "Relative" is fabric time, and its "Wall" counts from 1970.  Nothing of the
machine is in a file, and equal runs leave equal octets.  Values are 32-bit floats, as the format
has them.

The records are written by tensorboardX, an optional package.
"""

from __future__ import annotations

import re
from pathlib import Path

from emulator.errors import UserError
from emulator.report.run.training.training_curves import TrainingCourse, training_courses
from emulator.report.run_folder import RunRecord
from emulator.whole_file import MEND, whole_file

try:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter
except ImportError:  # an extra that was not installed
    RecordWriter = None

FOLDER = "tensorboard"
#: TensorBoard reads files whose names have "tfevents" in them.
FILE = "events.out.tfevents.uetemu"
LONGEST_NAME = 60
_VERSION = "brain.Event:2"


def write_event_files(folder: Path, output: Path | None = None) -> list[Path]:
    """Write the event files of a run folder to ``output``, else beside its files; return them.

    Raises UserError if the run has no training, or tensorboardX is not installed.
    """
    if RecordWriter is None:
        raise UserError(
            "TensorBoard's files are written by tensorboardX, which is not installed: "
            "pip install tensorboardX"
        )
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
    writer = RecordWriter(str(path))
    writer.write(Event(file_version=_VERSION).SerializeToString(deterministic=True))
    for point in course.points:
        value = Summary.Value(tag=point.tag, simple_value=point.value)
        event = Event(wall_time=point.at_us / 1e6, step=point.step, summary=Summary(value=[value]))
        writer.write(event.SerializeToString(deterministic=True))
    writer.close()
