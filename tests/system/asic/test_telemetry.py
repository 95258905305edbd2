"""The time series of all switch ports of a lab."""

import csv
import errno
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from emulator.dataplane.kernel.programs import bpf_syscall as kernel
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.layout import Queue, TrafficClass
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.switch_counters import read, read_all
from emulator.dataplane.switch.telemetry import (
    COLUMNS,
    FILE,
    SETTINGS,
    STATE,
    Telemetry,
)
from emulator.dataplane.switch.telemetry import _depths as depths_at
from tests.harness.asic.port_bench import NEAR, Bench, profile, udp, within
from tests.harness.lab.traffic import blast
from topologies import catalogue
from topologies.addressing import gpu_address

pytestmark = pytest.mark.root

SPEC = "rail_clos:hosts=3,gpus_per_host=2,mtu=4200"
DILATION, SIZE, COUNT = 20_000, 4000, 100
#: At which a queue of 80 KB takes 160 ms to drain: samples are 5 ms apart, more on a busy machine.
SLOW = 100_000
LAST = "rail0:down2"

Rows = list[dict[str, str]]


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    dilation = getattr(request, "param", DILATION)
    name, switch = f"t{secrets.token_hex(5)}", parse("shallow:data.trim_bytes=80KB")
    topology = catalogue.load(SPEC)
    with Lab.create(
        name, topology, FabricSettings(dilation=dilation, seed=1, spec=SPEC, switch=switch)
    ) as made:
        yield made


def asic_of(lab: Lab) -> FabricAsic:
    assert lab.asic is not None
    return lab.asic


def looking(telemetry: Telemetry) -> Callable[[], None]:
    """Return what takes a sample now."""
    return lambda: telemetry.sample(time.monotonic_ns())


def rows_of(path: Path) -> Rows:
    with path.open() as file:
        return list(csv.DictReader(file))


def burst(lab: Lab, *nodes: str, look: Callable[[], object] = lambda: None) -> None:
    """From each node a number of packets to h2g0; returns when all are beyond the switches.

    ``look`` is called again and again meanwhile.
    """
    asic = asic_of(lab)
    before = asic.counters()[LAST].classes[TrafficClass.DATA]
    to = str(gpu_address(lab.topology.node("h2g0")).ip)
    senders = [blast(lab, node, to, size=SIZE, count=COUNT) for node in nodes]
    for sender in senders:
        sender.wait()
        assert sender.stdout is not None
        sender.stdout.close()

    def over() -> bool:
        look()
        seen = asic.counters()[LAST]
        data = seen.classes[TrafficClass.DATA]
        arrived = data.packets + data.trimmed - before.packets - before.trimmed
        return arrived == COUNT * len(nodes) and not any(q.bytes for q in seen.queues.values())

    within(over, "all packets through")


@pytest.mark.parametrize("lab", [SLOW], indirect=True)
def test_the_series_is_that_of_the_counters(lab: Lab, tmp_path: Path) -> None:
    asic, path = asic_of(lab), tmp_path / FILE
    with Telemetry(asic, path) as telemetry:
        look = looking(telemetry)
        burst(lab, "h0g0", "h1g0", "h0g1", look=look)
        look()
        idle = telemetry.lines
        look()
    assert telemetry.error is None
    assert telemetry.lines == idle
    rows = rows_of(path)
    assert tuple(rows[0]) == COLUMNS
    assert [row["port"] for row in rows[: len(asic.ports)]] == list(asic.ports)
    times = [float(row["t_us"]) for row in rows]
    assert times == sorted(times)
    seen = asic.counters()
    for name, final in {row["port"]: row for row in rows}.items():
        classes = seen[name].classes.values()
        assert int(final["tx_packets"]) == sum(row.packets for row in classes)
        assert int(final["tx_bytes"]) == sum(row.bytes for row in classes)
        assert int(final["marked"]) == sum(row.marked for row in classes)
        assert int(final["trimmed"]) == sum(row.trimmed for row in classes)
        assert int(final["dropped"]) == sum(row.dropped for row in classes)
        assert int(final["queue_bytes"]) == int(final["control_queue_bytes"]) == 0
    last = [row for row in rows if row["port"] == LAST]
    low = seen[LAST].queues[Queue.LOW]
    peaks = [int(row["peak_bytes"]) for row in last]
    assert seen[LAST].classes[TrafficClass.DATA].trimmed > 0
    assert max(peaks) == low.max_bytes
    assert len({row["queue_bytes"] for row in last}) > 3  # it was looked at while it drained
    assert all(int(row["queue_bytes"]) <= low.max_bytes for row in last)


def test_counting_anew_is_seen(lab: Lab, tmp_path: Path) -> None:
    asic, path = asic_of(lab), tmp_path / FILE
    with Telemetry(asic, path) as telemetry:
        look = looking(telemetry)
        burst(lab, "h0g0", "h1g0", look=look)
        look()
        asic.inject(LAST, Faults(black_hole=True))
        asic.apply(parse("deep"))
        blast(lab, "h1g0", "10.0.1.4", size=SIZE, count=3).wait()
        within(lambda: asic.counters()[LAST].classes[TrafficClass.DATA].dropped == 3, "drops")
        look()
    rows = [row for row in rows_of(path) if row["port"] == LAST]
    assert int(rows[-1]["dropped"]) == 3
    assert int(rows[-1]["tx_packets"]) == 0 < max(int(row["tx_packets"]) for row in rows)
    assert int(rows[-1]["peak_bytes"]) == 0


def test_a_disk_that_fills_up_leaves_whole_lines(lab: Lab, tmp_path: Path) -> None:
    room = 4096
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "t", tmp_path], check=True)
    try:
        path = tmp_path / FILE
        telemetry = Telemetry(asic_of(lab), path)

        def filled() -> bool:
            blast(lab, "h0g0", "10.0.1.4", size=SIZE, count=COUNT).wait()
            telemetry.sample(time.monotonic_ns())
            telemetry.flush()
            return telemetry.error is not None

        with telemetry:
            within(filled, "the end of the room")
        assert telemetry.error == f"cannot write {path}: No space left on device"
        text = path.read_text()
        assert text.endswith("\n")
        assert 0 < len(text) <= room
        assert {line.count(",") for line in text.splitlines()} == {len(COLUMNS) - 1}
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_one_by_one_where_the_kernel_has_no_batches(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asic = asic_of(lab)
    burst(lab, "h0g0")
    indices = [port.index for port in asic.ports.values()]
    batched = read_all(asic.program, indices)
    real: Callable[..., int] = kernel.bpf
    refused = []

    def old(command: int, attributes: bytes, subject: str) -> int:
        if command == kernel.MAP_LOOKUP_BATCH:
            refused.append(subject)
            raise OSError(errno.EINVAL, "Invalid argument", subject)
        return real(command, attributes, subject)

    monkeypatch.setattr(kernel, "bpf", old)
    assert read_all(asic.program, indices) == batched
    assert read_all(asic.program, indices) == [read(asic.program, index) for index in indices]
    assert sorted(refused) == ["ports", "settings"]  # asked once


def test_computed_queues_drain_as_the_counters_say(program_lab: str, cache: Path) -> None:
    with ExitStack() as stack:
        program = stack.enter_context(asic_program.load(program_lab, cache=cache))
        bench = Bench(program, stack)
        bench.configure(profile("lossless"), rate_bps=2e6)
        ports.configure(program, NEAR + 1, program.settings.get(NEAR.to_bytes(4, "little")))
        for n in range(60):
            bench.out.send(udp(SIZE, dscp=0 if n % 3 else 46))

        def state() -> np.ndarray:
            settings = np.frombuffer(program.settings.first(NEAR + 1), SETTINGS)[-1:]
            states = np.frombuffer(program.ports.first(NEAR + 1, flags=kernel.LOCKED), STATE)[-1:]
            return depths_at(settings, states, time.monotonic_ns())[0]

        found = set()

        def empty() -> bool:
            before, ours, after = read(program, NEAR), state(), read(program, NEAR)
            for queue in Queue:
                assert after.queues[queue].bytes <= ours[queue] <= before.queues[queue].bytes
            found.add(int(ours[Queue.LOW]))
            return not ours.any()

        within(empty, "empty queues")
        assert len(found) > 10
