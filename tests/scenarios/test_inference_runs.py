"""Disaggregated serving over real fabrics, over either transport."""

from collections.abc import Callable

import pytest

from emulator.pytest_plugin.runs import RunProcess
from tests.harness.runs.processes import ended

FEW = (
    *("--capture", "none", "--param", "arrivals=0us,0us,0us", "--param", "output=3"),
    *("--param", "scale=8192", "--param", "prefill_gpus=2", "--param", "prefill=2"),
    *("--param", "slots=2"),
)


@pytest.mark.parametrize("transport", ["uet", "rocev2"])
def test_the_first_token_needs_prefill_transfer_and_a_step(
    start: Callable[..., RunProcess], transport: str
) -> None:
    run = start(*FEW, "--param", "models=8b", "--transport", transport, scenario="inference")
    output = ended(run)
    assert "# Out of bounds values : 0 OK" in output
    whole, layers = run.result["rows"]
    for row in (whole, layers):
        assert row["wrong"] == 0
        assert row["fabric_bytes"] == row["fabric_bytes_derived"] == 3 * row["size_bytes"]
        parts = ("wait_us", "prefill_us", "transfer_us", "decode_init_us")
        assert row["ttft_us"] == pytest.approx(sum(row[part] for part in parts))
        assert row["itl_p50_us"] > row["step_us"]
        assert len(row["request_times"]) == 3
        assert row["request_times"][-1]["tokens_us"][-1] == pytest.approx(row["time_us"])
    assert 0 < layers["ttft_fabric_share"] < whole["ttft_fabric_share"] < 1
    # the third is computed where the first was, and decoded when the first is done
    first, _, third = whole["request_times"]
    assert third["prefill_us"][0] == first["prefill_us"][1]
    assert third["tokens_us"][0] > first["tokens_us"][-1]


def test_experts_over_two_hosts_share_the_fabric_with_caches(
    start: Callable[..., RunProcess],
) -> None:
    experts = ("--param", "decode_by=experts", "--param", "decode_gpus=8")
    run = start(*FEW, "--param", "models=8x7b", *experts, scenario="inference")
    ended(run)
    for row in run.result["rows"]:
        assert row["wrong"] == 0
        assert row["fabric_bytes"] > 3 * row["size_bytes"]
        assert row["itl_exchange_us"] > 0
