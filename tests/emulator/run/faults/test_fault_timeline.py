"""Faults are applied when they are due, and healed afterwards."""

from collections.abc import Callable
from typing import Any

import pytest

from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.errors import UserError
from emulator.run.faults.condition import Condition
from emulator.run.faults.fault_timeline import FaultPlayer
from emulator.run.faults.grammar import timeline
from emulator.scenario import FaultAt
from topologies.catalogue import load

TOPOLOGY = load("rail_clos:hosts=2,gpus_per_host=2,spines=1")
BLACK = Faults(black_hole=True)


class Switch:
    """Takes faults, and lets time pass."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, Faults]] = []
        self.events: list[dict[str, object]] = []
        self._due: list[tuple[int, Callable[[], None]]] = []

    def player(self, *faults: FaultAt, **more: Any) -> FaultPlayer:
        return FaultPlayer(
            faults,
            TOPOLOGY,
            inject=lambda port, fault: self.reported.append((port, fault)),
            schedule=lambda when, act: self._due.append((when, act)),
            notify=lambda kind, **details: self.events.append({"event": kind, **details}),
            **more,
        )

    def pass_time(self, until: int) -> None:
        for when, act in sorted(self._due, key=lambda one: one[0]):
            if when <= until:
                act()
        self._due = [one for one in self._due if one[0] > until]


def test_in_order_of_time_on_both_ends_and_healed() -> None:
    switch = Switch()
    faults = switch.player(
        FaultAt(at_ns=2000, port="rail0:up1", faults=Faults(rate=0.25)),
        FaultAt(at_ns=1000, port="rail0:up0", faults=BLACK, both_ways=True),
    )
    faults.begin(500)
    switch.pass_time(2499)
    assert switch.reported == [("rail0:up0", BLACK), ("spine0:down0", BLACK)]
    switch.pass_time(3000)
    faults.end()
    assert switch.reported[2] == ("rail0:up1", Faults(rate=0.25))
    assert sorted(switch.reported[3:]) == sorted(
        (port, NONE) for port in ("rail0:up0", "rail0:up1", "spine0:down0")
    )
    assert [event["at_us"] for event in switch.events] == [1.0, 2.0]
    assert [event["faults"] for event in switch.events] == [{"black_hole": True}, {"rate": 0.25}]
    assert faults.missed == 0


def test_an_iteration_that_ends_first_misses_the_fault() -> None:
    switch = Switch()
    faults = switch.player(FaultAt(at_ns=1000, port="rail0:up0", faults=BLACK))
    faults.begin(0)
    faults.end()
    switch.pass_time(2000)
    assert (faults.missed, switch.events) == (1, [])
    assert switch.reported == [("rail0:up0", NONE)]


def test_what_the_user_said_is_applied_beside_and_healed_as_a_whole() -> None:
    switch, faulted = Switch(), []

    def apply_fault(condition: Condition) -> None:
        faulted.append(condition.words())

    faults = switch.player(
        FaultAt(at_ns=1500, port="rail0:up0", faults=BLACK),
        moments=timeline(["t=1us link rail0:up1 down; t=2us up; t=1s down"], TOPOLOGY),
        apply_fault=apply_fault,
    )
    faults.begin(0)
    switch.pass_time(10_000)
    faults.end()
    assert switch.reported == [("rail0:up0", BLACK), ("rail0:up0", NONE)]
    assert faulted == [["link rail0:up1 down"], [], []]
    ((first, second),) = faults.applied
    assert (first.moment.text, second.moment.text) == (
        "t=1us link rail0:up1 down",
        "t=2us link rail0:up1 up",
    )
    assert (first.at_ns, second.at_ns) == (1000, 2000)
    assert faults.missed == 1


def test_nothing_to_do() -> None:
    switch = Switch()
    faults = switch.player()
    faults.begin(0)
    faults.end()
    assert switch.reported == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"at_ns": -1}, "at_ns=-1; that is a whole number of ns after the start"),
        ({"at_ns": "20us"}, "at_ns='20us'"),
        ({"at_ns": float("nan")}, "at_ns=nan"),
        ({"faults": "black"}, r"are 'black'; make them with Faults"),
    ],
)
def test_a_fault_that_cannot_be_is_told_when_it_is_made(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        FaultAt(**{"at_ns": 0, "port": "rail0:up0", "faults": BLACK, **fields})
