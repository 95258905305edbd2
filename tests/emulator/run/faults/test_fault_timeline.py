"""Faults are applied when they are due, healed afterwards, and what went wrong is told."""

from __future__ import annotations

import threading

import pytest

from emulator.asic.port_faults import NONE, Faults
from emulator.endpoint.clock import Clock
from emulator.errors import UserError
from emulator.faults.condition import Condition
from emulator.faults.grammar import timeline
from emulator.run.faults.fault_timeline import FaultPlayer
from emulator.scenario import FaultAt
from topologies.catalogue import load

TOPOLOGY = load("rail_clos:hosts=2,gpus_per_host=2,spines=1")
BLACK = Faults(black_hole=True)
BUDGET_S = 20.0


class Switch:
    """Takes faults, and lets others wait until it has so many."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, Faults]] = []
        self.changed = threading.Condition()

    def inject(self, port: str, faults: Faults) -> None:
        with self.changed:
            self.reported.append((port, faults))
            self.changed.notify_all()

    def await_count(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.reported) >= count, BUDGET_S)


def player(switch: Switch, clock: Clock, *timeline: FaultAt) -> tuple[FaultPlayer, list[dict]]:
    events: list[dict] = []
    notify = lambda kind, **details: events.append({"event": kind, **details})  # noqa: E731
    return FaultPlayer(timeline, TOPOLOGY, inject=switch.inject, clock=clock, notify=notify), events


def test_in_order_of_time_on_both_ends_and_healed() -> None:
    switch, clock = Switch(), Clock.start(1000)
    faults, events = player(
        switch,
        clock,
        FaultAt(at_ns=2000, port="rail0:up1", faults=Faults(rate=0.25)),
        FaultAt(at_ns=1000, port="rail0:up0", faults=BLACK, both_ways=True),
    )
    faults.begin(clock.now())
    switch.await_count(3)
    faults.end()
    assert switch.reported[:3] == [
        ("rail0:up0", BLACK),
        ("spine0:down0", BLACK),
        ("rail0:up1", Faults(rate=0.25)),
    ]
    assert sorted(switch.reported[3:]) == sorted(
        (port, NONE) for port in ("rail0:up0", "rail0:up1", "spine0:down0")
    )
    assert [event["at_us"] for event in events] == [1.0, 2.0]
    assert [event["faults"] for event in events] == [{"black_hole": True}, {"rate": 0.25}]
    assert all(event["late_us"] >= 0 for event in events)
    assert faults.late_ns == max(round(1000 * event["late_us"]) for event in events)
    assert faults.missed == 0


@pytest.mark.parametrize("at_ns", [10**12, 10**27])
def test_an_iteration_that_ends_first_misses_the_fault(at_ns: int) -> None:
    switch, clock = Switch(), Clock.start(1000)
    faults, events = player(switch, clock, FaultAt(at_ns=at_ns, port="rail0:up0", faults=BLACK))
    faults.begin(clock.now())
    faults.end()
    assert (faults.missed, events) == (1, [])
    assert switch.reported == [("rail0:up0", NONE)]


def test_lateness_is_measured() -> None:
    switch, clock = Switch(), Clock.start(1)
    faults, _ = player(switch, clock, FaultAt(at_ns=0, port="rail0:up0", faults=BLACK))
    faults.begin(clock.now() - 5_000_000)
    switch.await_count(1)
    faults.end()
    assert faults.late_ns >= 5_000_000


def test_what_fails_in_the_thread_is_raised_by_the_runner() -> None:
    def refuse(port: str, faults: Faults) -> None:
        refused.set()
        if faults != NONE:
            raise OSError("no such port")

    refused = threading.Event()
    clock = Clock.start(1)
    faults = FaultPlayer(
        [FaultAt(at_ns=0, port="rail0:up0", faults=BLACK)],
        TOPOLOGY,
        inject=refuse,
        clock=clock,
        notify=lambda *_, **__: None,
    )
    faults.begin(clock.now())
    assert refused.wait(BUDGET_S)
    with pytest.raises(OSError, match="no such port"):
        faults.end()


def test_what_the_user_said_is_applied_beside_and_healed_as_a_whole() -> None:
    switch, clock, faulted = Switch(), Clock.start(1000), []

    def apply_fault(condition: Condition) -> None:
        with switch.changed:
            faulted.append(condition.words())
            switch.changed.notify_all()

    faults = FaultPlayer(
        [FaultAt(at_ns=1500, port="rail0:up0", faults=BLACK)],
        TOPOLOGY,
        inject=switch.inject,
        clock=clock,
        notify=lambda *_, **__: None,
        moments=timeline(["t=1us link rail0:up1 down; t=2us up; t=1s down"], TOPOLOGY),
        apply_fault=apply_fault,
    )
    faults.begin(clock.now())
    with switch.changed:
        assert switch.changed.wait_for(lambda: len(faulted) == 2, BUDGET_S)
    faults.end()
    assert switch.reported == [("rail0:up0", BLACK), ("rail0:up0", NONE)]
    assert faulted == [["link rail0:up1 down"], [], []]
    ((first, second),) = faults.applied
    assert (first.moment.text, second.moment.text) == (
        "t=1us link rail0:up1 down",
        "t=2us link rail0:up1 up",
    )
    assert second.at_ns >= first.at_ns >= 1000
    assert faults.missed == 1


def test_nothing_to_do() -> None:
    switch, clock = Switch(), Clock.start(1)
    faults, _ = player(switch, clock)
    faults.begin(clock.now())
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
def test_a_fault_that_cannot_be_is_told_when_it_is_made(
    fields: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        FaultAt(**{"at_ns": 0, "port": "rail0:up0", "faults": BLACK} | fields)  # type: ignore[arg-type]
