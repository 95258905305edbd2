"""The capture of a run in virtual time: what is in it, exactly when, and that it comes again."""

import csv
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from scapy.utils import RawPcapNgReader

from emulator.cli.decode.decode_source import read_frames
from emulator.dataplane.capture.pcapng import INBOUND, OUTBOUND
from emulator.dataplane.switch import telemetry
from emulator.pytest_plugin.runs import RunProcess
from emulator.sim.line import octets_on_wire
from emulator.sim.virtual_clock import EPOCH
from tests.harness.runs.processes import SMALL, begun, ended, forked, spawned, until

#: Four senders fill a queue until packets are marked and trimmed.
INCAST = ("--param", "senders=4", "--param", "size=128KiB", "--param", "warmups=0")
EPOCH_NS = int(EPOCH.timestamp()) * 10**9


@dataclass(frozen=True)
class Seen:
    """A frame as it stands in the file; ``at`` is ns of the virtual clock."""

    port: str
    direction: int
    at: int
    octets: bytes
    length: int
    comment: str


def read(path: Path) -> list[Seen]:
    seen: list[Seen] = []
    with RawPcapNgReader(str(path)) as reader:
        for octets, meta in reader:
            assert meta.tsresol == 10**9
            at = ((meta.tshigh << 32) | meta.tslow) - EPOCH_NS
            comment = b"".join(meta.comments or []).decode()
            seen.append(
                Seen(meta.ifname.decode(), meta.direction, at, octets, meta.wirelen, comment)
            )
    return seen


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunProcess]]:
    runs: list[RunProcess] = []

    def start(*arguments: str, scenario: str) -> RunProcess:
        folder = tmp_path_factory.mktemp("runs")
        runs.append(begun(folder, *arguments, scenario=scenario))
        return runs[-1]

    yield start
    for run in runs:
        assert not run.leftovers()


@pytest.fixture(scope="module")
def incast(begin: Callable[..., RunProcess]) -> RunProcess:
    run = begin(*INCAST, "--capture", "all", scenario="incast")
    ended(run)
    return run


@pytest.fixture(scope="module")
def seen(incast: RunProcess) -> list[Seen]:
    return read(incast.folder / "capture.pcapng")


@pytest.mark.root
def test_both_ends_of_a_cable_see_each_frame_when_it_is_there(
    incast: RunProcess, seen: list[Seen]
) -> None:
    """From the start of transmission to the last octet: serialisation, and the cable's delay."""
    fabric = json.loads((incast.folder / "fabric.json").read_text())
    assert seen
    assert [one.at for one in seen] == sorted(one.at for one in seen)
    for link in fabric["links"]:
        names = [f"{link[end]['node']}:{link[end]['port']}" for end in ("a", "b")]
        for a, b in (names, names[::-1]):
            sent = [one for one in seen if (one.port, one.direction) == (a, OUTBOUND)]
            came = [one for one in seen if (one.port, one.direction) == (b, INBOUND)]
            assert len(sent) == len(came)
            for out, into in zip(sent, came, strict=True):
                assert (out.octets, out.length) == (into.octets, into.length)
                octets = octets_on_wire(bytes(out.length))
                took = octets * 8e9 / link["rate_bps"] + link["delay_ns"]
                assert 0 <= into.at - out.at - int(took) <= 1  # each is rounded down to the ns


@pytest.mark.root
def test_every_frame_of_the_account_is_there(incast: RunProcess, seen: list[Seen]) -> None:
    """Frames that switches and GPUs took in, of which the engine keeps the account."""
    came = sum(one.direction == INBOUND for one in seen)
    left_gpus = sum(one.direction == OUTBOUND and one.port.startswith("h") for one in seen)
    assert came + left_gpus == incast.result["fidelity"]["account"]["injected"]
    assert {len(one.octets) for one in seen if one.length > 192} == {192}
    assert {len(one.octets) - one.length for one in seen if one.length <= 192} == {0}


@pytest.mark.root
def test_comments_say_which_frames_the_port_marked_and_trimmed(
    incast: RunProcess, seen: list[Seen]
) -> None:
    comments = Counter((one.port, one.comment.split(" by ")[0]) for one in seen if one.comment)
    counted: Counter[tuple[str, str]] = Counter()
    for port, counters in incast.result["ports"].items():
        for of_class in counters.get("asic", {}).get("classes", {}).values():
            counted[port, "marked CE"] += of_class["marked"]
            counted[port, "trimmed"] += of_class["trimmed"]
    assert comments == +counted
    assert {what for _, what in comments} == {"marked CE", "trimmed"}
    assert all(one.direction == OUTBOUND for one in seen if one.comment)


@pytest.mark.root
def test_telemetry_has_the_octets_that_had_left_at_its_times(
    incast: RunProcess, seen: list[Seen]
) -> None:
    """A frame has left when its last octet has; capture times are rounded down to the ns."""
    rate = 400e9
    ends = [
        (one.at + octets_on_wire(bytes(one.length)) * 8e9 / rate, one.length)
        for one in seen
        if (one.port, one.direction) == ("rail0:down0", OUTBOUND)
    ]
    rows = list(csv.DictReader((incast.folder / telemetry.FILE).open()))
    rows = [row for row in rows if row["port"] == "rail0:down0"]
    assert len(rows) > 4
    for row in rows:
        now = float(row["t_us"]) * 1000
        queued = int(row["queue_bytes"]) + int(row["control_queue_bytes"])
        left = int(row["tx_bytes"]) - queued
        surely, perhaps = (
            sum(octets_on_wire(bytes(length)) for end, length in ends if end < now + slack)
            for slack in (-1, 1)
        )
        assert surely <= left <= perhaps
        assert int(row["peak_bytes"]) >= int(row["queue_bytes"])
    assert (
        max(int(row["peak_bytes"]) for row in rows) == incast.result["rows"][0]["max_queue_bytes"]
    )


@pytest.mark.root
def test_equal_runs_leave_equal_captures(
    incast: RunProcess, begin: Callable[..., RunProcess]
) -> None:
    again = begin(*INCAST, "--capture", "all", scenario="incast")
    assert again.communicate()[0] == 0
    one, other = (run.folder / "capture.pcapng" for run in (incast, again))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.root
def test_a_killed_run_leaves_whole_blocks(tmp_path: Path) -> None:
    """A capture is stopped before, as the kernel cuts short what a killed process just writes."""
    run = spawned(
        tmp_path,
        *(*SMALL, "--capture", "all", "--snaplen", "full"),
        *("--sizes", "256KiB", "--iterations", "1000"),
    )
    capture = run.folder / "capture.pcapng"
    until(lambda: {} if capture.exists() and capture.stat().st_size > 4 << 20 else None)
    run.process.send_signal(signal.SIGSTOP)
    until(lambda: {} if stopped(run.process.pid) else None)
    run.process.kill()
    run.process.communicate()
    forked("clean", run.lab).communicate()
    assert not run.leftovers()
    assert len(list(read_frames(str(capture)))) > 1000  # which complains of a block that is cut


def stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED
