"""Small training steps of transformers, divided in each of the ways there are."""

import dataclasses
from fractions import Fraction
from typing import Any

from scenarios.workloads.transformer.shape import SHAPES, ParallelLayout, StepShape
from scenarios.workloads.transformer.step_trial import StepJob, StepRun
from scenarios.workloads.transformer.streams import StepScale
from scenarios.workloads.transformer.training_step import Handover, StepChoices
from topologies.catalogue import load

FABRIC = "rail_clos:hosts=2,gpus_per_host=4,spines=1"
SMALL = 2**20


def run(
    layers: int = 2,
    model: str = "8b",
    scale: int = SMALL,
    fabric: str = FABRIC,
    choices: StepChoices | None = None,
    given_to: tuple[Handover, ...] = (),
    **given: Any,
) -> StepRun:
    ways = {key: given.pop(key) for key in ("tp", "cp", "ep", "dp", "pp") if key in given}
    layout = ParallelLayout(**ways)
    shape = dataclasses.replace(SHAPES[model], layers=layers)
    step = StepShape(model=shape, layout=layout, **given)
    job = StepJob(step=step, gpus=tuple(range(layout.ranks)), handovers=given_to)
    return StepRun(load(fabric), [job], StepScale(scale, 400e3), choices or StepChoices())


CASES: dict[str, dict[str, Any]] = {
    "3d": {"tp": 2, "pp": 2, "dp": 2, "micro_batches": 2},
    "gpipe, sharded, late": {
        **{"tp": 1, "pp": 2, "dp": 2, "micro_batches": 2, "zero": 1},
        "choices": StepChoices(order="gpipe", overlap=False),
    },
    "sequence parallel": {"tp": 2, "dp": 2, "layers": 1, "sequence_parallel": True, "zero": 2},
    "fsdp": {"dp": 4, "micro_batches": 2, "zero": 3},
    "largest gradients": {"tp": 2, "dp": 2, "gradient_share": Fraction(1, 100)},
    "fsdp, not ahead": {
        **{"dp": 4, "micro_batches": 1, "zero": 3},
        "choices": StepChoices(overlap=False),
    },
    "context": {"tp": 2, "cp": 2, "layers": 1, "micro_batches": 2, "sequence_parallel": True},
    "experts": {
        **{"model": "8x7b", "tp": 2, "dp": 4, "ep": 2, "layers": 1, "zero": 1},
        "sequence_parallel": True,
    },
    "first layers without experts": {"model": "deepseek-v3", "dp": 4, "ep": 4, "layers": 4},
    "fsdp of experts": {"model": "8x7b", "dp": 4, "ep": 2, "layers": 1, "zero": 3},
    "interleaved": {"pp": 2, "interleave": 2, "layers": 4, "micro_batches": 4},
    "tensor ranks in two hosts": {
        "fabric": "rail_clos:hosts=2,gpus_per_host=2,spines=1",
        **{"tp": 4, "layers": 1},
    },
    "three of a kind": {"tp": 1, "dp": 3, "micro_batches": 2},
    "one GPU": {},
}
