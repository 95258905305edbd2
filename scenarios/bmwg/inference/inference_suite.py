"""The suite of draft-calabria-bmwg-ai-fabric-inference-bench, in the order of its sections."""

from __future__ import annotations

from emulator.suite.suite_model import Suite
from scenarios.bmwg.inference import (
    expert_tests,
    kv_transfer_tests,
    operation_tests,
    serving_tests,
    traffic_tests,
)
from scenarios.bmwg.trial_estimate import estimated_s

SUITE = Suite(
    name="inference",
    document="draft-calabria-bmwg-ai-fabric-inference-bench-05",
    terminology="draft-calabria-bmwg-ai-fabric-terminology, after -05",
    tests=(
        *kv_transfer_tests.TESTS,
        *serving_tests.SERVING_TESTS,
        *expert_tests.TESTS,
        *traffic_tests.CONGESTION_TESTS,
        *traffic_tests.ROUTING_TESTS,
        *serving_tests.LATENCY_TESTS,
        *operation_tests.TESTS,
    ),
    estimate_s=estimated_s,
)
