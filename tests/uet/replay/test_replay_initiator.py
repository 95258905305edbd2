"""Our endpoint in the place of the captured initiator, one test for each capture.

It posts what the captured one did, and hears the captured target's answers; what ours requests is
what the captured initiator requested, packet for packet, and every operation ends as it did.
"""

import pytest
from _pytest.mark import ParameterSet

from tests.harness.replay.capture import NAMES
from tests.harness.replay.cases import CASES, PROVEN_BY_INITIATOR
from tests.harness.replay.departures import OF_INITIATOR, departed
from tests.harness.replay.initiator_role import CONTROL, REQUEST, replay
from tests.harness.replay.outcomes import completions_of_initiator, results


def marked(name: str) -> ParameterSet:
    proven = PROVEN_BY_INITIATOR.get(name)
    return pytest.param(name, marks=pytest.mark.conformance(*proven) if proven else (), id=name)


def test_departures_are_of_captures() -> None:
    assert set(OF_INITIATOR) | set(PROVEN_BY_INITIATOR) <= set(NAMES)


@pytest.mark.parametrize("name", [marked(name) for name in NAMES])
def test_ours_requests_as_the_captured_initiator(name: str) -> None:
    case, ours = CASES[name], replay(name)
    expected = dict(ours.expected)
    expected[REQUEST] = departed(expected[REQUEST], OF_INITIATOR.get(name, ()))
    for kind in (REQUEST, CONTROL):
        sent = ours.sent[kind]
        for number, (packet, requested) in enumerate(zip(sent, expected[kind], strict=False)):
            assert packet == requested, f"{kind} {number}"
        assert len(sent) == len(expected[kind])
    assert ours.completions == completions_of_initiator(name)
    assert [bytes(memory) for memory in ours.returned] == results(case)
    assert ours.open_messages == 0
    assert ours.is_closed == case.closes
    assert ours.next_start == (1 if name == "tss_cluster_close" else None)
    assert {k: v for k, v in ours.counters.items() if "drop" in k and v} == {}
    assert {k: v for k, v in ours.counters.items() if k.startswith("tss_") and v} == {}
