"""Test that a drawing fits, and leaves out what matters least."""

from typing import Any

import pytest
from rich.text import Text

from emulator.cli.labs.top_verb import Room, TopColumn, duration, lay, view
from emulator.dataplane.lab_record import LabRecord, Phase, this_process
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch.switch_choice import parse
from emulator.lab.live.rates import Activity, Sort, directions, tiers
from emulator.lab.live.sampler import LabSample, QueueLimits
from topologies import catalogue

TOPOLOGY = catalogue.load("rail_clos")
BUSY = "rail0:down5"


def picture(switch: str | None = "shallow") -> LabSample:
    """Nothing going on but at one port, of a queue that is at 276.5 of 553.2 KB."""
    record = LabRecord(
        lab="demo",
        identity="1",
        phase=Phase.UP,
        settings=FabricSettings(
            spec="rail_clos",
            seed=1,
            dilation=20000,
            switch=None if switch is None else parse(switch),
            persistent=True,
        ),
        owner=this_process(),
        created="2026-01-01T00:00:00+00:00",
        nodes=(),
    )
    found = []
    for direction in directions(TOPOLOGY):
        busy = direction.port == BUSY
        counts = dict.fromkeys(("marked", "trimmed", "total_marked", "total_trimmed"))
        if switch is not None and not direction.port.startswith("h"):
            counts = {
                "marked": 301 * busy,
                "trimmed": 641 * busy,
                "total_marked": 8582 * busy,
                "total_trimmed": 18171 * busy,
            }
        found.append(
            Activity(
                direction=direction,
                rate_bps=direction.rate_bps * busy,
                utilisation=float(busy),
                queue_bytes=138_300 * busy,
                peak_bytes=None if counts["marked"] is None else 276_500 * busy,
                control_queue_bytes=0,
                dropped=0,
                total_dropped=1_234_567 * busy,
                **counts,
            )
        )
    limits = QueueLimits(limit_bytes=553_200, kmin_bytes=55_320, kmax_bytes=221_280)
    return LabSample(
        record=record,
        interval_us=25,
        up_us=1234,
        activities=tuple(found),
        limits={direction.port: limits for direction in directions(TOPOLOGY)},
        tiers=tiers(TOPOLOGY),
    )


def drawn(room: Room, **choice: Any) -> list[str]:
    return [line.plain.rstrip() for line in view(picture(**choice), Sort.UTILISATION, room)]


def test_the_important_columns_stay() -> None:
    columns = [
        TopColumn("name", [Text("a")], left=True),
        TopColumn("least", [Text("1")], 2),
        TopColumn("more", [Text("2")], 1),
    ]
    for width, heading in ((17, "name  least  more"), (16, "name  more"), (9, "name"), (1, "name")):
        assert lay(columns, width)[0].plain == heading
    assert lay(columns, 17)[1].plain == "a" + "1".rjust(10) + "2".rjust(6)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 240])
@pytest.mark.parametrize("height", [20, 24, 50])
def test_everything_fits_the_screen(width: int, height: int) -> None:
    lines = drawn(Room(width=width, height=height))
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert any(line.startswith(BUSY) and "100.0" in line for line in lines)
    # where the screen is large, so is what it shows
    assert not any(line.endswith("…") for line in lines) or width < 80


def test_more_room_shows_more() -> None:
    narrow, wide = (drawn(Room(width=width, height=40)) for width in (80, 200))
    assert not any("18171" in line for line in narrow)
    (row,) = [line for line in wide if line.startswith(BUSY)]
    for value in ("h5g0:eth0", "400.0", "138.3", "276.5", "301", "8582", "641", "18171", "1.23M"):
        assert value in row.split()


def test_bars_tell_the_queue_and_its_deepest_of_the_limit() -> None:
    # of 12 columns: a quarter thick, from there to a half thin
    (row,) = [line for line in drawn(Room(width=200)) if line.startswith(BUSY)]
    assert "━━━" + "───" + "······" in row
    (row,) = [line for line in drawn(Room(width=200, ascii_only=True)) if line.startswith(BUSY)]
    assert "############" in row
    assert "###---......" in row
    assert row.isascii()


def test_rows_can_be_fewer_than_fit() -> None:
    lines = drawn(Room(width=120, height=50, rows=2))
    assert lines[-1] == "2 of 96 link directions by utilisation"
    assert lines[-3].startswith(BUSY)


def test_without_asic_nobody_speaks_of_marks() -> None:
    text = "\n".join(drawn(Room(width=300), switch=None))
    assert "switch none" in text
    assert "marks" not in text
    assert "trims" not in text
    assert "drops" in text


def test_rails_and_tiers_are_summed_up() -> None:
    lines = drawn(Room(width=300, bars=False))
    rows = [" ".join(line.split()) for line in lines]
    # one of 24 links is full, and one of the six of its rail
    assert "rail to gpu 24 4.2 100.0 24.00 276.5 301 641 0" in rows
    assert "rail 0 0 / 0 0 / 0 0 / 0 17 / 100" in rows


def test_durations_have_three_digits() -> None:
    assert [duration(us) for us in (0.5, 25.41, 1234, 2.5e6)] == [
        "0.5 us",
        "25.4 us",
        "1.23 ms",
        "2.5 s",
    ]
