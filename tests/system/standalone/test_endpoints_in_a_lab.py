"""Endpoints as processes in a lab, by the machine's clock, against the same work in virtual time.

Virtual time is what a lab comes close to: there, every wake-up, shaper and pause is a little late.
So it takes as long or a little longer, and counts about as much.
"""

import select
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from emulator.dataplane.lab import Lab
from emulator.dataplane.switch.bpf.layout import TrafficClass
from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.dataplane.switch.switch_choice import parse
from emulator.pytest_plugin.runs import RunProcess
from tests.harness.lab.endpoint_process import Endpoint, serving
from tests.system.conftest import LabFactory

pytestmark = [pytest.mark.root, pytest.mark.slow]

SPEC = "rail_clos:hosts=5,gpus_per_host=2,spines=2"
#: One second of the fabric lasts so many of this machine's.
DILATION = 200_000
#: The least and the most that the lab may take of virtual time.
SHORTEST, LONGEST = 0.98, 1.12
#: How far counts may be apart: this share, and so many beside.
SHARE, FEW = 0.3, 12
#: Where senders contend for a port, chance decides whose packets are trimmed: the spread of seeds
#: is that of chance alone.
SEEDS = ("--seeds", "8")
#: A port that is paused from 10 to 40 us after the start: most of what is sent meets it.
STORM_NS = (10_000, 40_000)
Rows = Sequence[Mapping[str, Any]]
SCENARIO = """
from dataclasses import dataclass
from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.run.report import traffic
from emulator.scenario import FaultAt, parameter
from topologies.parts.design_parameters import COUNT
from scenarios.workloads.flows import WARMUPS, Flow, Traffic, TrafficParameters

@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    warmups: int = parameter(0, WARMUPS, help="none")
    senders: int = parameter(1, COUNT, help="GPUs that write to the first one")
    storm: str = parameter("off", choices=("off", "on"), help="whether its NIC pauses for a while")

def topology(parameters):
    return "{spec}"

def schedules(parameters, topology, seed):
    flows = tuple(
        Flow(source=2 * n + 1, destination=0, length=parameters.size)
        for n in range(1, parameters.senders + 1)
    )
    pattern = Traffic(topology, flows, parameters.message, parameters.in_flight, seed)
    faults = [FaultAt(at_ns=at, port="rail0:down0", faults=each)
              for at, each in zip({storm}, (Faults(pause_storm=True), NONE))]
    return [pattern.trial("work", parameters, faults=faults if parameters.storm == "on" else ())]

def measures(parameters, topology, trial, outcome):
    return traffic.measured(topology, outcome)
"""


@pytest.fixture
def virtual(start: Callable[..., RunProcess], tmp_path: Path) -> Callable[..., Rows]:
    """Return the rows of the work in virtual time."""
    scenario = tmp_path / "work.py"
    scenario.write_text(SCENARIO.format(spec=SPEC, storm=STORM_NS))

    def rows(*arguments: str) -> Rows:
        run = start(*arguments, "--fabric", "model", "--capture", "none", scenario=str(scenario))
        status, _, errors = run.communicate()
        assert status == 0, errors
        return list(run.result["rows"])

    return rows


def wait_until(when: float) -> None:
    while (left := when - time.time()) > 0:
        select.select((), (), (), left)


def write(
    verb: str, lab: Lab, senders: int, octets: int, at: Callable[[float], None] | None = None
) -> tuple[float, list[Endpoint]]:
    """Write from each sender to h0g0; the time (us of the fabric) it took, and the senders.

    ``at`` is called with the time (s since 1970) at which they begin.
    """
    begin = time.time() + 1.5
    peer = "--peer" if verb == "fep" else "--connect"
    running = [
        Endpoint(
            verb, "initiator", "--gpu", f"{lab.name}:h{number}g1", peer, "h0g0",
            *("--start-at", f"{begin:.3f}", "--in-flight", "0", f"write:64k,count={octets >> 16}"),
        )
        for number in range(1, senders + 1)
    ]  # fmt: skip
    if at is not None:
        at(begin)
    for sender in running:
        assert sender.end() == 0, (sender.events, sender.error)
    return max(sender.completions()[-1]["elapsed_us"] for sender in running), running


def assert_alike(took: float, senders: list[Endpoint], lab: Lab, rows: Rows) -> None:
    times, row = [each["time_us"] for each in rows], rows[0]
    assert SHORTEST * min(times) <= took <= LONGEST * max(times)
    assert lab.asic is not None
    classes = [port.classes[TrafficClass.DATA] for port in lab.asic.counters().values()]
    counted = {
        "data_packets": total(senders, "tx_data_packets"),
        "retransmitted_packets": total(senders, "tx_retransmitted_packets"),
        "marked_packets": sum(each.marked for each in classes),
        "trimmed_packets": sum(each.trimmed for each in classes),
        "dropped_packets": sum(sum(each.drops.values()) for each in classes),
    }
    assert counted["data_packets"] == row["data_packets"]
    for name, there in counted.items():
        if name == "marked_packets" and row["pauses"]:
            continue  # the paused queue just reaches where marks begin: a few draws decide
        assert there == pytest.approx(row[name], rel=SHARE, abs=FEW), name


def total(endpoints: list[Endpoint], counter: str) -> int:
    return sum(one.counters.get(counter, 0) for one in endpoints)


@pytest.mark.alone
def test_an_incast_takes_as_long(lab: LabFactory, virtual: Callable[..., Rows]) -> None:
    rows = virtual("--param", "senders=4", "--param", "size=256KiB", *SEEDS)
    built = lab(SPEC, dilation=DILATION, switch=parse("shallow"))
    with serving("fep", built, "h0g0"):
        took, senders = write("fep", built, 4, 256 << 10)
    assert rows[0]["trimmed_packets"] > 0
    assert_alike(took, senders, built, rows)


@pytest.mark.nightly
@pytest.mark.alone
def test_a_pause_storm_takes_as_long(lab: LabFactory, virtual: Callable[..., Rows]) -> None:
    words = ("--param", "storm=on", "--param", "size=2MiB", "--transport", "rocev2")
    rows = virtual(*words, "--switch", "lossless")
    built = lab(SPEC, dilation=DILATION, switch=parse("lossless"))
    asic = built.asic
    assert asic is not None

    def storm(begin: float) -> None:
        for at, faults in zip(STORM_NS, (Faults(pause_storm=True), NONE), strict=True):
            wait_until(begin + at * 1e-9 * DILATION)
            asic.inject("rail0:down0", faults)

    with serving("hca", built, "h0g0"):
        took, senders = write("hca", built, 1, 2 << 20, storm)
    assert rows[0]["pauses"] > 0
    assert_alike(took, senders, built, rows)


def test_a_gpu_says_the_port(lab: LabFactory) -> None:
    built = lab(SPEC)
    for words, stated in (
        (("--gpu", f"{built.name}:h9g0"), "has no GPU 'h9g0'"),
        (("--gpu", f"{built.name}:h0g0", "-i", "eth0"), "leave -i, -n, -a, -4 and -6 out"),
        ((), "say which port"),
    ):
        target = Endpoint("fep", "target", *words)
        assert target.end() == 1
        assert stated in target.error


def test_operations_that_were_to_begin_are_refused(lab: LabFactory) -> None:
    built = lab(SPEC)
    own, peer = f"{built.name}:h1g0", "h0g0"
    late = Endpoint("fep", "initiator", "--gpu", own, "-p", peer, "--start-at", "10", "write:1")
    assert late.end() == 1
    assert "choose a later time" in late.error
