"""A run says so where the kernel's own hash chose paths, as another kernel's may differ."""

from types import SimpleNamespace
from typing import cast

import pytest

from emulator.dataplane.switch.switch_choice import requested
from emulator.run.plan.run_plan import RunPlan
from emulator.run.virtual_time import _kernel_hash
from topologies import catalogue

CHOICE = "rail_clos:hosts=1,gpus_per_host=2,spines=2"
NO_CHOICE = "rail_clos:hosts=2,gpus_per_host=1,spines=1,uplinks_per_spine=1"


@pytest.mark.parametrize(
    ("spec", "switches", "decides"),
    [
        (CHOICE, ["shallow"], False),
        (CHOICE, ["shallow:balance=kernel"], True),
        (CHOICE, ["shallow", "none"], True),
        (NO_CHOICE, ["shallow:balance=kernel"], False),
    ],
)
def test_the_kernel_decides_where_nobody_else_does_and_there_is_a_choice(
    spec: str, switches: list[str], decides: bool
) -> None:
    stages = [SimpleNamespace(switch=requested(switch)) for switch in switches]
    plan = SimpleNamespace(stages=stages, topology=catalogue.load(spec))
    assert _kernel_hash(cast(RunPlan, plan)) == decides
