"""Test what lines note for samples: octets of NICs, pauses, in memory that workers share."""

import os
from pathlib import Path

import pytest

from emulator.errors import UserError
from emulator.sim.event_queue import PS, EventQueue
from emulator.sim.line import LOW, MAC_CONTROL, Line
from emulator.sim.line_record import LineRecord
from emulator.sim.line_telemetry import COLUMNS, LineTelemetry
from topologies.model import CableEnd

NIC, PORT = CableEnd("h0g0", "eth0"), CableEnd("rail0", "down0")


@pytest.fixture
def record() -> LineRecord:
    return LineRecord([NIC, PORT])


def line(events: EventQueue, record: LineRecord) -> Line:
    """A line of 8 Gb/s from the NIC: an octet takes a ns."""
    made = Line(events, 1, NIC, rate_bps=8_000_000_000, delay_ns=10)
    made.far = lambda frame: None
    made.leaves = record.sent(made)
    return made


def test_what_a_nic_has_sent_counts_when_it_has_left(record: LineRecord) -> None:
    events = EventQueue()
    nic = line(events, record)
    nic.enqueue(bytes(976), LOW)
    nic.enqueue(bytes(60), MAC_CONTROL)
    assert record.values(0).tolist() == [[0, 0], [0, 0]]
    events.run()
    assert record.values(events.now).tolist() == [[1000, 0], [0, 0]]


def test_what_a_pulled_cable_loses_is_not_sent(record: LineRecord) -> None:
    events = EventQueue()
    nic = line(events, record)
    for _ in range(3):
        nic.enqueue(bytes(976), LOW)
    nic.pull()
    events.run()
    assert record.values(events.now).tolist() == [[0, 0], [0, 0]]


def test_a_pause_that_goes_on_counts_up_to_now(record: LineRecord) -> None:
    events = EventQueue()
    stop = record.stop(PORT, events)
    for when, stopped in ((100, True), (250, False), (300, False), (400, True)):
        events.now = when * PS
        stop(stopped)
    assert record.values(400 * PS).tolist() == [[0, 0], [0, 150]]
    assert record.values(470 * PS).tolist() == [[0, 0], [0, 220]]


def test_the_driver_sees_what_a_forked_worker_notes(record: LineRecord) -> None:
    child = os.fork()
    if child == 0:
        events = EventQueue()
        events.now = 5 * PS
        record.stop(NIC, events)(True)
        os._exit(0)
    os.waitpid(child, 0)
    assert record.values(8 * PS).tolist() == [[0, 3], [0, 0]]


def test_a_port_has_a_line_at_the_start_and_whenever_it_changed(
    record: LineRecord, tmp_path: Path
) -> None:
    events = EventQueue()
    telemetry = LineTelemetry(record, tmp_path / "lines.csv")
    telemetry.sample(0)
    telemetry.sample(1_000)
    events.now = 1_500 * PS
    record.stop(PORT, events)(True)
    telemetry.sample(2_000)
    telemetry.stop()
    assert (tmp_path / "lines.csv").read_text().splitlines() == [
        ",".join(COLUMNS),
        "0.000,h0g0:eth0,0,0",
        "0.000,rail0:down0,0,0",
        "2.000,rail0:down0,0,500",
    ]


def test_a_full_disk_ends_the_series_with_its_reason(record: LineRecord) -> None:
    telemetry = LineTelemetry(record, Path("/dev/full"))
    telemetry.sample(0)
    telemetry.stop()
    assert telemetry.error == "cannot write /dev/full: No space left on device"


def test_a_file_that_cannot_be_made_is_refused(record: LineRecord, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*missing/lines\.csv: No such file"):
        LineTelemetry(record, tmp_path / "missing" / "lines.csv")
