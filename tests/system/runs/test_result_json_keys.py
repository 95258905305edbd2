"""Keys of a real ``result.json`` are in the manual, whatever ran."""

from collections.abc import Callable

import pytest

from emulator import result_keys
from emulator.metrics import meanings
from emulator.pytest_plugin.runs import RunProcess
from emulator.rocev2 import counters
from tests.harness.runs.processes import ended
from uet import counter_meanings

pytestmark = pytest.mark.root

TINY = ("--topology", "rail_clos:hosts=3,gpus_per_host=1,spines=1", "--capture", "none")
COUNTERS = {"uet": counter_meanings.COUNTERS, "rocev2": counters.COUNTERS}


@pytest.mark.parametrize("transport", COUNTERS)
@pytest.mark.parametrize(
    ("scenario", "own", "options"),
    [
        ("allreduce", meanings("collective"), ("--sizes", "16KiB")),
        (
            "incast",
            {**meanings("traffic"), "senders": "", "placement": "", **meanings("fault")},
            ("--param", "size=64KiB", "--param", "senders=2",
             "--fault", "t=5us link rail0:down1 loss=5%"),
        ),
    ],
    ids=["collective", "traffic"],
)  # fmt: skip
def test_every_key_has_a_meaning(
    start: Callable[..., RunProcess],
    scenario: str,
    own: dict[str, str],
    options: tuple[str, ...],
    transport: str,
) -> None:
    run = start(*TINY, "--transport", transport, *options, scenario=scenario)
    ended(run)
    result = run.result
    assert set(result) == set(result_keys.RESULT) - {"metrics"}
    for row in result["rows"]:
        assert set(row) <= {*meanings("every"), *own}
    stack = {f"transport.{name}" for name in COUNTERS[transport]}
    for counted in result["endpoints"].values():
        assert set(counted) <= stack | set(result_keys.ENDPOINT)
    for port in result["ports"].values():
        assert {name for name in port if name not in ("control", "data", "asic", "pfc")} <= set(
            result_keys.PORT
        )
        for counted in port.get("asic", {}).get("classes", {}).values():
            assert set(counted) == set(result_keys.SWITCH_CLASS)
        assert set(port.get("pfc", {})) <= set(result_keys.PAUSE)
