"""The inference suite has every test of the draft; its trials can be read, its values follow."""

import pytest

from emulator.suite.suite_model import SCALES, SuiteTest
from scenarios.bmwg.inference.inference_suite import SUITE
from scenarios.bmwg.inference.serving_tests import (
    LARGEST_RATE,
    RATE_STEP,
    SLO_TTFT_MS,
    mark_pareto,
    most_tokens,
)
from scenarios.bmwg.inference.traffic_tests import worker_rates
from tests.scenarios.bmwg.test_training_suite import (
    assert_trials_can_be_read,
    choice,
    findings_of,
    outcome,
)

#: Sections of draft-calabria-bmwg-ai-fabric-inference-bench-05.
SECTIONS = {5: 4, 6: 4, 7: 4, 8: 4, 9: 4, 10: 4, 11: 3, 12: 3, 13: 3}
NUMBERS = [f"{section}.{test}" for section, last in SECTIONS.items() for test in range(1, last + 1)]


REQUEST = {"arrival_us": 0.0, "prefill_us": [0, 5], "cached_us": 9.0, "tokens_us": [10.0, 12.0]}
#: Values of a row of ``inference``.
SERVED = {"ttft_p99_us": 2000.0, "itl_p99_us": 9.0, "placement": "1P1D", "request_times": [REQUEST]}


def test_every_section_of_the_draft_has_its_test_in_order() -> None:
    assert [test.number for test in SUITE.tests] == NUMBERS


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("test", SUITE.tests, ids=lambda test: test.number)
def test_every_first_trial_can_be_read(test: SuiteTest, scale: str) -> None:
    assert_trials_can_be_read(test, scale)


@pytest.mark.parametrize("test", SUITE.tests, ids=lambda test: test.number)
def test_a_test_ends_with_tables_and_says_where_it_deviates(test: SuiteTest) -> None:
    if test.procedure is None:
        assert test.reason
        return
    found, _ = findings_of(test.procedure(choice("small")), 0, **SERVED)
    assert found.deviations
    for table in found.tables:
        assert table.rows
        keys = [column.key for column in table.columns]
        assert len(set(keys)) == len(keys)


def test_the_largest_rate_is_searched_to_its_step() -> None:
    limit = 7300
    procedure = most_tokens(choice("small"))
    trials, tried = next(procedure), 0
    while True:
        tried += len(trials)
        outcomes = []
        for trial in trials:
            late = 1000 * float(dict(trial.parameters)["rate"]) > limit
            ttft = SLO_TTFT_MS / 1.024 * (1.5 if late else 0.5)
            outcomes.append(outcome(trial, transport=trial.transport, ttft_p99_us=ttft,
                                    itl_p99_us=10.0))  # fmt: skip
        try:
            trials = procedure.send(outcomes)
        except StopIteration as end:
            found = end.value
            break
    rates = [1000 * row["most"] for row in found.tables[0].rows]
    assert len(rates) == 4
    assert all(limit - RATE_STEP < rate <= limit < LARGEST_RATE for rate in rates)
    assert tried < 50


def test_a_placement_that_another_beats_is_outside_of_the_pareto_set() -> None:
    rows = [
        {"transport": "uet", "ttft_p99_us": 5.0, "itl_p99_us": 2.0, "tokens_per_second": 9.0},
        {"transport": "uet", "ttft_p99_us": 6.0, "itl_p99_us": 2.0, "tokens_per_second": 9.0},
        {"transport": "uet", "ttft_p99_us": 7.0, "itl_p99_us": 1.0, "tokens_per_second": 9.0},
        {"transport": "rocev2", "ttft_p99_us": 8.0, "itl_p99_us": 3.0, "tokens_per_second": 1.0},
    ]
    mark_pareto(rows)
    assert [row["pareto"] for row in rows] == ["yes", "no", "yes", "yes"]


def test_rates_of_decode_workers_follow_from_their_requests() -> None:
    def request(done: float, *tokens: float) -> dict[str, object]:
        return {"arrival_us": 0.0, "prefill_us": [0.0, 10.0], "cached_us": done,
                "tokens_us": list(tokens)}  # fmt: skip

    row = {
        "placement": "2P2D",
        "size_bytes": 1000,
        "request_times": [request(12.0, 20.0, 40.0), request(14.0, 80.0)],
    }
    rates, tokens = worker_rates(row)
    assert rates == [500.0, 250.0]
    assert tokens == [2 / 40, 1 / 80]
