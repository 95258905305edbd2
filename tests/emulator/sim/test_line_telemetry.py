"""Test when the switches are sampled in virtual time, and that nobody waits for it."""

from dataclasses import dataclass, field
from typing import cast

import pytest

from emulator.dataplane.switch.telemetry import Telemetry
from emulator.sim.event_queue import PS, EventQueue, Source
from emulator.sim.line_telemetry import Sampling

INTERVAL_NS = 100


@dataclass
class Notes:
    """Stands for the telemetry: the times (ns) at which it was asked."""

    interval_ns: int = INTERVAL_NS
    at: list[int] = field(default_factory=list)

    def sample(self, now_ns: int) -> None:
        self.at.append(now_ns)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def events(notes: Notes) -> EventQueue:
    made = EventQueue()
    made.sampler = Sampling(cast(Telemetry, notes))
    return made


def post(events: EventQueue, notes: Notes, *times_ns: int) -> list[tuple[int, int]]:
    """Events at ``times_ns``; what is returned grows by their times and the samples until then."""
    seen: list[tuple[int, int]] = []
    source = Source()
    for at in times_ns:
        events.at(at * PS, source.next(), lambda at: seen.append((at, len(notes.at))), at)
    return seen


def test_samples_come_at_each_multiple_before_the_events_of_the_instant(
    events: EventQueue, notes: Notes
) -> None:
    seen = post(events, notes, 50, 100, 150, 201, 299, 300, 301)
    events.run()
    assert notes.at == [100, 200, 300]
    assert seen == [(50, 0), (100, 1), (150, 1), (201, 2), (299, 2), (300, 3), (301, 3)]
    assert events.now == 301 * PS  # that of the last event: no sample keeps a run alive
    assert not events.heap


def test_idle_time_is_left_out_but_for_the_sample_that_ends_the_peaks(
    events: EventQueue, notes: Notes
) -> None:
    post(events, notes, 50, 1_000_000_030, 1_000_000_130)
    events.run()
    assert notes.at == [100, 200, 1_000_000_100]


def test_the_end_of_an_execution_is_sampled(events: EventQueue, notes: Notes) -> None:
    post(events, notes, 120, 180)
    events.at(150 * PS, 1 << 60, lambda _: events.stop(), None)
    assert events.run()
    assert notes.at == [100, 150]
    assert not events.run()
    assert events.now == 180 * PS
    assert notes.at == [100, 150]


def test_the_grid_stays_over_several_runs(events: EventQueue, notes: Notes) -> None:
    post(events, notes, 120)
    events.run(until=555 * PS)
    assert (events.now, notes.at) == (555 * PS, [100])
    post(events, notes, 580, 620)
    events.run(until=1000 * PS)
    assert notes.at == [100, 600]
    assert events.now == 1000 * PS


def test_a_limit_is_kept(events: EventQueue, notes: Notes) -> None:
    seen = post(events, notes, 90, 250)
    events.run(until=240 * PS)
    assert (events.now, [at for at, _ in seen], notes.at) == (240 * PS, [90], [100, 200])
