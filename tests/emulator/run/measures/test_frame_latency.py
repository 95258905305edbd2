"""Departures and arrivals of tagged frames become latencies; what is uncertain is left out."""

from pathlib import Path

import pytest

from emulator.errors import UserError
from emulator.run.measures.frame_latency import (
    FrameTimes,
    LatencyFile,
    TimedFrame,
    frames_by_row,
    statistics,
)
from emulator.sim.frame_taps import TaggedFrame


def seen(*moments: tuple[int, str, bytes]) -> FrameTimes:
    """Return the times of frames that are seen at times of ps: ``out`` of port 0, ``in`` at 1."""
    return FrameTimes.of(
        [TaggedFrame(when, way == "in", tag, int(way == "in"), 100) for when, way, tag in moments]
    )


def test_each_arrival_belongs_to_the_departure_of_its_tag() -> None:
    # in the order of two workers, not of time
    times = seen((5, "out", b"a"), (7, "out", b"b"), (30, "in", b"b"), (31, "in", b"a"))
    assert [(one.sent_ps, one.latency_ps, one.destination) for one in times.frames] == [
        (7, 23, 1),
        (5, 26, 1),
    ]
    assert (times.tagged, times.ambiguous) == (2, 0)


def test_a_frame_that_never_arrives_is_tagged_and_not_timed() -> None:
    assert seen((5, "out", b"a")).row()["frames_tagged"] == 1
    assert seen((5, "out", b"a")).row()["frames_timed"] == 0
    assert seen((5, "out", b"a")).row()["frame_max_us"] is None


def test_an_equal_frame_after_the_first_has_arrived_is_another_one() -> None:
    times = seen((0, "out", b"a"), (10, "in", b"a"), (50, "out", b"a"), (70, "in", b"a"))
    assert [one.latency_ps for one in times.frames] == [10, 20]


@pytest.mark.parametrize("arrivals", [1, 2])
def test_a_repeat_while_the_first_may_be_under_way_is_left_out(arrivals: int) -> None:
    moments = [(0, "out", b"a"), (50, "out", b"a"), (70, "in", b"a"), (80, "in", b"a")]
    times = seen(*moments[: 2 + arrivals])
    assert (times.frames, times.tagged, times.ambiguous) == ([], 2, 1)


def test_an_arrival_that_left_before_the_row_is_none_of_it() -> None:
    assert seen((3, "in", b"a"), (4, "out", b"a"), (9, "in", b"a")).frames[0].latency_ps == 5


def test_percentiles_are_by_nearest_rank() -> None:
    found = statistics([step * 10**6 for step in range(1000, 0, -1)])
    assert found == {
        "frame_min_us": 1, "frame_mean_us": 500.5, "frame_p50_us": 500, "frame_p95_us": 950,
        "frame_p99_us": 990, "frame_p999_us": 999, "frame_max_us": 1000,
    }  # fmt: skip


def test_the_file_has_every_frame_of_each_row(tmp_path: Path) -> None:
    file = LatencyFile(tmp_path / "f.csv", ["h0g0:eth0", "h1g0:eth0"])
    file.add(1, seen((1_500_000, "out", b"a"), (4_000_001, "in", b"a")))
    file.add(3, seen((0, "out", b"a"), (7, "in", b"a"), (9, "out", b"b"), (10, "in", b"b")))
    assert (tmp_path / "f.csv").read_text().splitlines()[1] == (
        "1,1.500000,h0g0:eth0,h1g0:eth0,100,2500001"
    )
    assert frames_by_row(tmp_path / "f.csv") == {
        1: [TimedFrame(100, 2_500_001)],
        3: [TimedFrame(100, 7), TimedFrame(100, 1)],
    }


@pytest.mark.parametrize("text", ["", "row,octets\n1,2\n", "row,octets,latency_ps\n1,x,3\n"])
def test_a_damaged_file_has_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.csv").write_text(text)
    if not text:
        (tmp_path / "f.csv").unlink()
    with pytest.raises(UserError, match="repeat the run with --frame-latency"):
        frames_by_row(tmp_path / "f.csv")
