"""Our endpoint in the place of the captured target, one test for each capture.

The captured initiator's frames arrive in their order and at their times; what ours answers is
what the captured target answered, packet for packet.
"""

import pytest
from _pytest.mark import ParameterSet

from tests.harness.replay.capture import NAMES
from tests.harness.replay.cases import CASES, PROVEN_BY_TARGET, message
from tests.harness.replay.departures import OF_TARGET, departed
from tests.harness.replay.outcomes import completions_of_target, memory_after
from tests.harness.replay.target_role import replay


def marked(name: str) -> ParameterSet:
    proven = PROVEN_BY_TARGET.get(name)
    return pytest.param(name, marks=pytest.mark.conformance(*proven) if proven else (), id=name)


def test_every_capture_has_its_case() -> None:
    assert sorted(CASES) == NAMES
    assert set(OF_TARGET) | set(PROVEN_BY_TARGET) <= set(NAMES)


@pytest.mark.parametrize("name", [marked(name) for name in NAMES])
def test_ours_answers_as_the_captured_target(name: str) -> None:
    case, ours = CASES[name], replay(name)
    expected = departed(ours.expected, OF_TARGET.get(name, ()))
    for number, (answer, requested) in enumerate(zip(ours.answers, expected, strict=False)):
        assert answer == requested, f"answer {number}"
    assert len(ours.answers) == len(expected)
    assert bytes(ours.memory) == memory_after(case)
    for index, receive in enumerate(ours.receives):
        assert bytes(receive.memory) == message(index, case.size)
    assert ours.completions == completions_of_target(name)
    assert {k: v for k, v in ours.counters.items() if "drop" in k and v} == {}
    assert {k: v for k, v in ours.counters.items() if k.startswith("tss_") and v} == {}
    pdcs = 0 if case.closes or case.delivery in ("rudi", "uud") else 1
    assert ours.open_pdcs == pdcs + (name == "rud_dsend_10000_rtr")
