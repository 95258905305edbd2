"""Test sentences about a user's own scenario whose functions fail, or return nonsense."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator import scenario
from emulator.errors import UserError
from emulator.run.endpoint_specs import endpoint_specs
from emulator.run.measurement import check_contents
from emulator.run.plan.trial_load import TrialLoad
from emulator.scenario import Outcome, Scenario, Trial
from emulator.sim.endpoint.operations.schedule import Operation, Receive, Region, Schedule, Write
from emulator.transports import fit
from topologies.catalogue import load as load_topology

SMALL = load_topology("rail_clos:hosts=2,gpus_per_host=1")
WIRE = fit("uet", SMALL).wire
WORD = Region("b", 0, 4)

FILE = '''"""A user's own experiment."""
from dataclasses import dataclass
from emulator.scenario import Trial

@dataclass(frozen=True)
class Parameters:
    pass

def topology(parameters):
    return {topology}

def schedules(parameters, topology, seed):
    return {schedules}

def measures(parameters, topology, trial, outcome):
    return {measures}
'''
GOOD = {
    "topology": "'rail_clos'",
    "schedules": "[Trial(collective='c', size_bytes=4, "
    "compile=lambda: 1 / 0, inputs=lambda rank: [][rank], expected=lambda rank: {}[rank])]",
    "measures": "{}",
}


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., Scenario]:
    def write(**parts: str) -> Scenario:
        path = tmp_path / "mine.py"
        path.write_text(FILE.format(**GOOD | parts))
        return scenario.load(str(path))

    return write


def trial_of(mine: Scenario) -> Trial:
    (trial,) = mine.schedules(mine.parameters({}), SMALL, 1)
    return trial


def measure(mine: Scenario) -> object:
    outcome = Outcome(times_ns=(1,), ideal_ns=1, wrong=0, counters={})
    return mine.measures(mine.parameters({}), SMALL, trial_of(mine), outcome)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda trial: trial.compile(), "compile failed: ZeroDivisionError"),
        (lambda trial: trial.inputs(0), "inputs failed: IndexError"),
        (lambda trial: trial.expected(7), "expected failed: KeyError: 7"),
    ],
)
def test_what_a_trial_calls_later_fails_with_its_line(
    own: Callable[..., Scenario], call: Callable[[Trial], object], words: str
) -> None:
    with pytest.raises(UserError, match=rf"mine\.py, line 13: {words}"):
        call(trial_of(own()))


@pytest.mark.parametrize("returned", ["None", "['a']", "7"])
def test_schedules_returns_trials(own: Callable[..., Scenario], returned: str) -> None:
    with pytest.raises(UserError, match="return a list of Trial"):
        trial_of(own(schedules=returned))


def test_topology_returns_a_fabric(own: Callable[..., Scenario]) -> None:
    mine = own(topology="42")
    with pytest.raises(UserError, match="topology returned int"):
        mine.topology(mine.parameters({}))


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("None", "measures returned NoneType"),
        ("{'rate': float('nan')}", "rate = nan"),
        ("{'what': object()}", "what = "),
    ],
)
def test_measures_returns_what_json_can_hold(
    own: Callable[..., Scenario], returned: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        measure(own(measures=returned))


def test_a_file_that_exits_does_not_take_the_program_along(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(UserError, match=r"mine\.py, line 2: import failed: SystemExit"):
        scenario.load(str(path))


def trial(schedules: Sequence[Schedule]) -> Trial:
    return Trial(
        collective="c",
        size_bytes=4,
        compile=lambda: schedules,
        inputs=lambda rank: {},
        expected=lambda rank: {},
    )


def pair(*operations: tuple[Operation, ...]) -> list[Schedule]:
    return [
        Schedule(rank=rank, buffers={"b": 4}, operations=those)
        for rank, those in enumerate(operations)
    ]


def send(peer: int, **more: Any) -> Write:
    return replace(Write(peer=peer, tag=0, local=WORD, remote=WORD), **more)


def receive(peer: int) -> Receive:
    return Receive(peer=peer, tag=0, into=WORD)


@pytest.mark.parametrize(
    ("schedules", "words"),
    [
        (pair((send(1),)), "1 schedules and the fabric 2 GPUs"),
        (list(reversed(pair((), ()))), "in rank order"),
        (pair((receive(1),), ()), "rank 0's operation 0 .* no rank sends"),
        (pair((send(7),), ()), "rank 0's operation 0 .* the fabric does not have"),
        (
            pair((receive(1), send(1, after=(0,))), (receive(0), send(0, after=(0,)))),
            "in a circle",
        ),
    ],
)
def test_schedules_that_cannot_end_are_refused_before_anything_is_built(
    schedules: list[Schedule], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        TrialLoad.of(trial(schedules), SMALL, WIRE)


def test_contents_fill_the_buffers_of_the_schedule() -> None:
    (schedule,) = pair(())
    check_contents(schedule, "inputs", {"b": np.zeros(1, np.float32)})
    with pytest.raises(UserError, match=r"inputs\(0\) .* 8 octets for buffer 'b' of 4"):
        check_contents(schedule, "inputs", {"b": np.zeros(2, np.float32)})
    with pytest.raises(UserError, match=r"expected\(0\) .* buffer 'c' .* its buffers are b"):
        check_contents(schedule, "expected", {"c": np.zeros(1, np.float32)})


def test_a_nic_does_not_overrun_a_small_queue_of_its_own() -> None:
    """The kernel would refuse the frames, and the run would be called limited by the host."""
    for buffer, frames in (("1MiB", 8), ("32KiB", 7), ("10KiB", 2)):
        topology = load_topology(f"rail_clos:hosts=2,gpus_per_host=1,buffer={buffer}")
        specs = endpoint_specs(
            topology,
            fit("uet", topology),
            namespace=str,
            nic_delays=True,
            seed=1,
            memory_octets=4096,
        )
        assert {spec.send_queue_frames for spec in specs} == {frames}
