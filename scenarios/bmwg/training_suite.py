"""The suite of draft-calabria-bmwg-ai-fabric-training-bench, in the order of its sections."""

from __future__ import annotations

from emulator.suite.suite_model import Suite
from scenarios.bmwg import (
    balancing_tests,
    baseline,
    collective_tests,
    congestion_tests,
    failure_tests,
    job_tests,
    uet_services,
)
from scenarios.bmwg.trial_estimate import estimated_s

SUITE = Suite(
    name="training",
    document="draft-calabria-bmwg-ai-fabric-training-bench, text of October 2026",
    terminology="draft-calabria-bmwg-ai-fabric-terminology, after -05",
    tests=(
        *baseline.TESTS,
        *uet_services.TESTS,
        *congestion_tests.TESTS,
        *balancing_tests.TESTS,
        *collective_tests.TESTS,
        *job_tests.TESTS,
        *failure_tests.TESTS,
        *job_tests.LONG_TESTS,
    ),
    estimate_s=estimated_s,
)
