"""The switch ASICs of a lab with a virtual clock, as an engine asks them."""

import csv
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from emulator.dataplane import lab_record
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.lab_record import LabRecord, Phase
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.layout import PAUSE, PORT_KEY, Queue, unpack
from emulator.dataplane.switch.cable_counters import PauseCounters, write
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.switch_fitting import fit
from emulator.dataplane.switch.telemetry import (
    COLUMNS,
    FILE,
    LINES_AT_ONCE,
    VALUES,
    Series,
    Telemetry,
)
from emulator.dataplane.switch.virtual_state import DEPTH, PEAK, PORT_WORDS
from emulator.dataplane.wires import Wires
from emulator.errors import UserError
from topologies import catalogue
from topologies.model import CableEnd, Topology

pytestmark = pytest.mark.root

SPEC = "rail_clos:hosts=2,gpus_per_host=2,nic_rate=3.2T,uplink_rate=3.2T,buffer=8MB"
SWITCH = "lossless"
SETTINGS = FabricSettings(spec=SPEC, seed=1, clock="virtual")


def no_kernel(node: str) -> RouteSocket:
    raise AssertionError(f"a virtual clock shapes nothing, and asks for the kernel of {node}")


def made(lab: str, topology: Topology, spec: str = SWITCH) -> FabricAsic:
    fitted = fit(parse(spec), topology, 1.0, clock="virtual")
    return FabricAsic.load(fitted, lab, Wires.of(topology), SETTINGS, kernels=no_kernel)


@pytest.fixture
def asic(program_lab: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FabricAsic]:
    """Return the ASIC of a lab that is on record, but of which nothing else is there."""
    monkeypatch.setattr(lab_record, "STATE", tmp_path)
    topology = catalogue.load(SPEC)
    record = LabRecord(
        lab=program_lab,
        identity=uuid.uuid4().hex,
        phase=Phase.UP,
        settings=replace(SETTINGS, switch=parse(SWITCH)),
        owner=lab_record.this_process(),
        created=lab_record.now(),
        nodes=tuple(node.name for node in topology.nodes),
    )
    lock = lab_record.register(record, topology)
    loaded = made(program_lab, topology)
    yield loaded
    loaded.close()
    lock.release()


def test_links_may_have_any_rate(asic: FabricAsic) -> None:
    with pytest.raises(UserError, match="outside of the rates"):
        fit(parse(SWITCH), asic.topology, 1.0)
    assert asic.virtual is not None
    assert asic.pauses.on


def test_faults_of_rate_and_storms_are_for_the_engine(asic: FabricAsic) -> None:
    assert asic.rate_share("rail0:down0") == asic.nic_rate_share("h0g0:eth0") == 1.0
    asic.inject("rail0:down0", Faults(rate=0.3, arriving=True))
    asic.inject("rail0:up0", Faults(rate=1e-9))
    assert asic.rate_share("rail0:down0") == asic.nic_rate_share("h0g0:eth0") == 0.3
    assert asic.rate_share("rail0:up0") == 1e-9
    assert asic.rate_share("rail1:up0") == asic.nic_rate_share("h1g0:eth0") == 1.0
    asic.inject("rail0:down0", Faults(rate=0.5, pause_storm=True))
    assert asic.nic_rate_share("h0g0:eth0") == 1.0
    assert asic.storming("h0g0:eth0")
    assert not asic.storming("h1g0:eth0")
    asic.inject("rail0:down0", NONE)
    assert asic.rate_share("rail0:down0") == 1.0
    assert not asic.storming("h0g0:eth0")


def test_no_process_is_started(asic: FabricAsic) -> None:
    asic.pauses.start()
    asic.pauses.restart()
    assert not any(row.pauses for row in asic.pauses.counters().values())
    asic.pauses.end()
    assert lab_record.processes(asic.lab) == []


def test_queues_by_code_point(asic: FabricAsic) -> None:
    queues = asic.queue_of_code_point("rail0:up0")
    assert len(queues) == 64
    assert {point for point in range(64) if queues[point] == Queue.HIGH} == {10, 12, 46, 48}


def test_new_choice_needs_no_kernel(asic: FabricAsic) -> None:
    asic.apply(parse("shallow:trimmed_queue=medium,balance=least-loaded"))
    queues = asic.queue_of_code_point("rail0:up0")
    assert {point for point in range(64) if queues[point] == Queue.MEDIUM} == {10, 12}
    assert not asic.pauses.on


def test_queues_of_a_pulled_cable_are_empty(asic: FabricAsic) -> None:
    assert asic.virtual is not None
    at = asic.ports["rail0:up0"].index * PORT_WORDS + DEPTH
    asic.virtual.ports[at + Queue.LOW] = 9000
    asic.virtual.ports[at + Queue.HIGH] = 84
    assert asic.counters()["rail0:up0"].queues[Queue.LOW].bytes == 9000
    asic.empty("rail0:up0")
    assert list(asic.virtual.ports[at : at + 3]) == [0, 0, 0]
    lost = [row.lost_bytes for row in asic.counters()["rail0:up0"].classes.values()]
    assert sum(lost) == 9000


def test_other_process_shares_the_tables(asic: FabricAsic) -> None:
    other = FabricAsic.open(asic.lab, Wires.of(asic.topology), SETTINGS, no_kernel)
    assert other.virtual is not None
    assert asic.virtual is not None
    asic.virtual.switches[0] = 77
    assert other.virtual.switches[0] == 77
    other.close()


def test_removed_with_its_lab(asic: FabricAsic) -> None:
    assert asic_program.remove(asic.lab)
    assert asic.lab not in asic_program.labs()


class Keeper:
    """Counts how often it is asked, as an engine would write what it has counted."""

    def __init__(self, asic: FabricAsic) -> None:
        self._asic = asic
        self.published = self.restarted = 0
        self.storms: list[tuple[str, bool]] = []

    def publish(self) -> None:
        self.published += 1
        index = self._asic.ports["rail0:up0"].index
        write(self._asic.program, index, PauseCounters(pauses=self.published))

    def restart(self) -> None:
        self.restarted += 1

    def storm(self, nic: CableEnd, on: bool) -> None:
        self.storms.append((str(nic), on))


def test_engine_keeps_the_counters_of_pauses(asic: FabricAsic) -> None:
    keeper = Keeper(asic)
    asic.pauses.engine = keeper
    assert asic.pauses.counters()["rail0:up0"].pauses == 1
    assert asic.pauses.counters()["rail0:up0"].pauses == 2
    asic.pauses.restart()
    assert (keeper.published, keeper.restarted) == (2, 1)
    asic.inject("rail0:down0", Faults(pause_storm=True))
    asic.inject("rail0:down0", NONE)
    assert keeper.storms == [("h0g0:eth0", True), ("h0g0:eth0", False)]


def test_watchdogs_guard_switches_against_nics(asic: FabricAsic) -> None:
    asic.apply(parse("lossless:pfc_watchdog=50us,pfc_response=100ns"))
    times = {}
    for name in ("rail0:down0", "rail0:up0", "h0g0:eth0"):
        node, _, port = name.partition(":")
        rules = asic.pause_rules(CableEnd(node, port))
        assert rules is not None
        assert rules.reaction_ns == 100  # the cable delays the frame itself
        times[name] = rules.watchdog_ns
    assert times == {"rail0:down0": 50_000, "rail0:up0": 0, "h0g0:eth0": 0}


def test_black_holes_swallow_pauses_too(asic: FabricAsic) -> None:
    def swallowed(port: str) -> tuple[bool, bool]:
        return asic.swallows(port, arriving=False), asic.swallows(port, arriving=True)

    asic.inject("rail0:up0", Faults(black_hole=True))
    asic.inject("rail0:down0", Faults(black_hole=True, arriving=True))
    assert swallowed("rail0:up0") == (True, False)
    assert swallowed("rail0:down0") == (True, True)
    assert swallowed("rail1:up0") == swallowed("h0g0:eth0") == (False, False)


def test_watchdog_is_told_to_the_program(asic: FabricAsic) -> None:
    def dropping() -> bool:
        key = PORT_KEY.pack(asic.ports["rail0:down0"].index)
        return bool(unpack(PAUSE, asic.program.pause_rules.get(key))["dropping"])

    asic.pauses.drop("rail0:down0", True)
    assert dropping()
    assert asic.pauses.on
    asic.pauses.drop("rail0:down0", False)
    assert not dropping()


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_telemetry_is_sampled_at_virtual_times(asic: FabricAsic, tmp_path: Path) -> None:
    assert asic.virtual is not None
    at = asic.ports["rail0:up0"].index * PORT_WORDS
    words, path = asic.virtual.ports, tmp_path / FILE
    with Telemetry(asic, path) as telemetry:
        assert telemetry.interval_ns == asic.fitted.base_rtt_ns
        telemetry.sample(0)
        telemetry.sample(1_000)  # nothing has changed
        words[at + DEPTH + Queue.LOW], words[at + PEAK] = 4_066, 40_660
        words[at + DEPTH + Queue.HIGH], words[at + DEPTH + Queue.MEDIUM] = 84, 168
        telemetry.sample(1_234_567)
        telemetry.sample(2_000_000)  # the peak since the sample before is what waits
    rows = rows_of(path)
    count = len(asic.ports)
    assert tuple(rows[0]) == COLUMNS
    assert [row["t_us"] for row in rows] == ["0.000"] * count + ["1234.567", "2000.000"]
    changed, later = rows[count:]
    assert changed["port"] == later["port"] == "rail0:up0"
    names = ("queue_bytes", "peak_bytes", "control_queue_bytes")
    assert [changed[name] for name in names] == ["4066", "40660", "252"]
    assert [later[name] for name in names] == ["4066", "4066", "252"]
    assert (telemetry.samples, telemetry.lines, telemetry.error) == (4, count + 2, None)


def test_whoever_looks_beside_the_run_leaves_the_peaks_to_it(asic: FabricAsic) -> None:
    assert asic.virtual is not None
    at = asic.ports["rail0:up0"].index * PORT_WORDS
    asic.virtual.ports[at + PEAK] = 40_660
    row, peak = list(asic.ports).index("rail0:up0"), VALUES.index("peak_bytes")
    beside, own = Series(asic, anew=False), Series(asic)
    found = [series.sample(0)[row, peak] for series in (beside, beside, own, own)]
    assert found == [40_660, 40_660, 40_660, 0]


def test_long_series_is_written_while_it_grows(asic: FabricAsic, tmp_path: Path) -> None:
    assert asic.virtual is not None
    at = asic.ports["rail0:up0"].index * PORT_WORDS + DEPTH + Queue.LOW
    path = tmp_path / FILE
    with Telemetry(asic, path, interval_ns=10) as telemetry:
        for now in range(0, 10 * LINES_AT_ONCE, 10):
            asic.virtual.ports[at] = now
            telemetry.sample(now)
        assert len(rows_of(path)) >= LINES_AT_ONCE - 1  # one line names the columns
    assert len(rows_of(path)) == telemetry.lines


def test_series_ends_where_it_cannot_be_written(asic: FabricAsic, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        Telemetry(asic, tmp_path / "none" / FILE).start()
    with Telemetry(asic, Path("/dev/full")) as telemetry:
        telemetry.sample(0)
        telemetry.flush()
        telemetry.sample(1)
    assert telemetry.error == "cannot write /dev/full: No space left on device"
    assert telemetry.samples == 1
