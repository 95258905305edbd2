"""Recording of a script's ranks, as the driver of a run has it: it never imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from emulator.torch_backend.launching import RankPlace

#: What NVIDIA states for an H100 SXM in bfloat16 without sparsity, and the share of it that a
#: training reaches: 38 to 43 % for Llama 3 405B on 8,192 and 16,384 of them ("The Llama 3 Herd of
#: Models", 2024, table 4).
H100_TFLOPS, EFFICIENCY = 989, 0.4


@dataclass(frozen=True)
class Record:
    """Has a rank's notes written into ``folder`` at its end: a ``Prepare`` of a script.

    ``fake``: tensors have no values, and one rank stands for all
    (:mod:`emulator.torch_backend.other_groups`).  ``cuda_on_cpu``: the CPU stands for CUDA.
    """

    folder: str
    fake: bool = False
    cuda_on_cpu: bool = False

    def __call__(self, place: RankPlace) -> Callable[[str], None]:
        from emulator.torch_backend.recorder import begin

        return begin(place, self.folder, fake=self.fake, cuda_on_cpu=self.cuda_on_cpu)
