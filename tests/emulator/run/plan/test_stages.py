"""Test what a row runs on: the user's transport and switch, and the trial's own."""

from dataclasses import replace

import pytest

from emulator.errors import UserError
from emulator.run.plan.stages import merged, stages
from emulator.scenario import Trial

PLAIN = Trial(
    collective="c",
    size_bytes=4,
    compile=list,
    inputs=lambda rank: {},
    expected=lambda rank: {},
)


@pytest.mark.parametrize(
    ("asked", "own", "result"),
    [
        (None, "", "uet"),
        ("uet:cc=none", "", "uet:cc=none"),
        (None, "spray=reps", "uet:spray=reps"),
        (None, ":spray=reps", "uet:spray=reps"),
        ("uet:cc=none", "spray=reps", "uet:cc=none,spray=reps"),
        ("uet:cc=none", "uet:spray=reps,crc=on", "uet:cc=none,spray=reps,crc=on"),
        ("uet:spray=reps", "spray=reps", "uet:spray=reps"),  # they agree
        (None, "rocev2", "rocev2"),
        ("rocev2", "", "rocev2"),
    ],
)
def test_what_the_trial_leaves_open_is_the_users(asked: str | None, own: str, result: str) -> None:
    assert merged("--transport", asked, own, "uet") == result


@pytest.mark.parametrize(
    ("asked", "own", "words"),
    [
        ("uet:spray=reps", "spray=oblivious", "spray=reps .* with spray=oblivious; leave spray"),
        ("deep", "shallow:trim=off", "says deep .* with shallow; leave deep"),
        (" ", "", "--transport is empty; leave it out, or write for example uet"),
    ],
)
def test_contradictions_are_refused(asked: str, own: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        merged("--transport", asked, own, "uet")


def test_trials_in_a_row_share_a_stage() -> None:
    trials = [
        PLAIN,
        PLAIN,
        replace(PLAIN, switch="deep"),
        replace(PLAIN, switch="deep", transport="cc=none"),
        replace(PLAIN, transport="cc=none"),
    ]
    found = stages(trials, transport="uet:crc=on", switch=None)
    assert [(stage.transport, stage.switch, stage.trials) for stage in found] == [
        ("uet:crc=on", "shallow", (0, 1)),
        ("uet:crc=on", "deep", (2,)),
        ("uet:crc=on,cc=none", "deep", (3,)),
        ("uet:crc=on,cc=none", "shallow", (4,)),
    ]


def test_thresholds_of_a_transport_know_the_latency_that_is_asked_for() -> None:
    reported: list[tuple[str, int]] = []

    def usual(transport: str, latency_ns: int) -> str:
        reported.append((transport, latency_ns))
        return "lossless"

    trials = [PLAIN, replace(PLAIN, switch="latency=2us")]
    stages(trials, transport="rocev2", switch=None, default_switch=usual)
    stages(trials[:1], transport=None, switch="latency=1us", default_switch=usual)
    stages(trials[:1], transport=None, switch=None, named="latency=3us", default_switch=usual)
    assert reported == [("rocev2", 0), ("rocev2", 2000), ("uet", 1000), ("uet", 3000)]


def test_a_transports_own_thresholds_give_way_to_another_profile_and_to_the_user() -> None:
    trials = [
        replace(PLAIN, switch=switch)
        for switch in ("", "lossless", "lossless:pfc_watchdog=50us", "lossless:xoff=5", "deep")
    ]

    def run_on(trials: list[Trial], asked: str | None) -> list[str]:
        found = stages(
            trials,
            transport=None,
            switch=asked,
            default_switch=lambda *_: "lossless:xoff=9,pmax=1",
        )
        return [stage.switch for stage in found]

    assert run_on(trials, None) == [
        "lossless:xoff=9,pmax=1",  # of two trials
        "lossless:pfc_watchdog=50us,xoff=9,pmax=1",
        "lossless:xoff=5,pmax=1",
        "deep",
    ]
    assert run_on(trials[:3], "lossless:xoff=7") == [
        "lossless:xoff=7",
        "lossless:xoff=7,pfc_watchdog=50us",
    ]
