"""A running lab, watched interval by interval, with the run in it, until it goes.

:class:`LabWatch` looks; who serves what it found keeps the last :class:`Watched`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from emulator.dataplane import lab_record
from emulator.dataplane.lab import Lab
from emulator.dataplane.lab_record import LabRecord
from emulator.dataplane.switch.cable_counters import PauseCounters
from emulator.errors import UserError
from emulator.lab.live.sampler import LabGone, LabSample, LabSampler, Sample
from emulator.lab.monitoring.run_progress import RunProgress
from topologies.model import Topology

#: A lab that cannot be read may be going; its record says so within this time (s).
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A lab at ``at_s`` (seconds since 1970 of the machine), and what it did before.

    ``ended`` is why nothing newer will come, and ``ended_s`` when that was seen; None while the lab
    runs.  ``picture`` is None until the first interval is over; ``run`` is None in a lab without a
    run.
    """

    record: LabRecord
    topology: Topology
    at_s: float
    sample: Sample
    pauses: Mapping[str, PauseCounters]
    picture: LabSample | None = None
    run: RunProgress | None = None
    ended: str | None = None
    ended_s: float | None = None


class LabWatch:
    """Looks at ``lab`` with each call of :meth:`look`; a context that lets go of it."""

    def __init__(self, name: str) -> None:
        self._stack = ExitStack()
        self._lab = self._stack.enter_context(Lab.attach(name))
        self._sampler = LabSampler(self._lab)
        self._folder = lab_record.run_folder(name)
        self._run: RunProgress | None = None
        self._before: Sample | None = None
        self._failing_s: float | None = None
        self.latest: Watched | None = None

    def __enter__(self) -> LabWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the lab; what is known of it stays."""
        self._stack.close()

    def look(self) -> Watched:
        """Return the lab as it is now; when it has gone, as it was, with the reason.

        Raises LabGone only if the lab has gone before the first look, and UserError if it cannot be
        read, at the first look or for :data:`PATIENCE_S`.
        """
        try:
            sample, pauses = self._sampler.sample(), self._sampler.pauses()
        except LabGone as gone:
            if self.latest is None:
                raise
            ended_s = self.latest.ended_s or time.time()
            self.latest = replace(
                self.latest, run=self._progress(), ended=str(gone), ended_s=ended_s
            )
            return self.latest
        except UserError:  # a lab goes node by node before its record says so
            now = time.monotonic()
            self._failing_s = now if self._failing_s is None else self._failing_s
            if self.latest is None or now - self._failing_s > PATIENCE_S:
                raise
            return self.latest
        self._failing_s = None
        picture = None if self.latest is None else self.latest.picture
        if self._before is not None and sample.at_ns == self._before.at_ns:
            # A virtual clock stood still: the same interval goes on.  Nothing has moved, but a lab
            # that goes loses its ports one by one.
            sample = replace(self._before, record=sample.record)
        elif self._before is not None:
            picture = self._sampler.between(self._before, sample)
        self._before = sample
        self.latest = Watched(
            record=sample.record,
            topology=self._lab.topology,
            at_s=time.time(),
            sample=sample,
            pauses=pauses,
            picture=picture,
            run=self._progress(),
        )
        return self.latest

    def _progress(self) -> RunProgress | None:
        """Return what the run of the lab has finished up to now."""
        self._folder = self._folder or lab_record.run_folder(self._lab.name)
        if self._folder is None:
            return None
        if self._run is None:
            self._run = RunProgress(Path(self._folder))
        self._run.read()
        return self._run
