"""Whole training scripts: each transport, and gloo, trains the same model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.emulator.torch_backend.scripts import printed, result, torchrun_file

pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'uetemu[torch]')")

EXAMPLES = CHECKOUT / "tests" / "examples"
GPT, MOE = str(EXAMPLES / "gpt_training.py"), str(EXAMPLES / "moe_training.py")


def _lines(folder: Path, ranks: str = "ranks") -> list[list[str]]:
    """Return what each rank printed: losses, digests of gradients, and that of parameters."""
    return [printed(folder, rank, ranks) for rank in range(4)]


def _train(folder: Path, *script: str) -> list[list[str]]:
    """Train over UET and RoCEv2, which agree to the bit; return what the ranks printed."""
    ended = torchrun_file(folder, "--transport", "uet,rocev2:nccl", *script)
    assert ended.returncode == 0, ended.stderr
    lines = _lines(folder)
    assert lines == _lines(folder, "ranks-2")
    assert all(one[-1].startswith("parameters ") for one in lines)
    return lines


def _losses(lines: list[list[str]]) -> list[list[float]]:
    return [[float(line.split()[3]) for line in of_rank[:-1]] for of_rank in lines]


def test_experts_get_the_tokens_that_their_router_sends(tmp_path: Path) -> None:
    lines = _train(tmp_path, MOE, "--steps", "1")
    sent = [line[0].partition("sent ")[2] for line in lines]
    assert len(set(sent)) == 4  # no two ranks send the same
    kinds = {one["kind"] for one in result(tmp_path)["rows"][0]["call_sites"]}
    assert kinds == {"alltoall", "allreduce"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "script",
    [(MOE,), *((GPT, "--parallel", kind) for kind in ("ddp", "fsdp", "tensor", "pipeline"))],
    ids=["moe", "ddp", "fsdp", "tensor", "pipeline"],
)
def test_a_model_trains_over_a_fabric_as_it_does_over_gloo(
    tmp_path: Path, script: tuple[str, ...]
) -> None:
    lines = _train(tmp_path / "fabric", *script)
    ended = torchrun_file(tmp_path / "gloo", *script, fabric="none")
    assert ended.returncode == 0, ended.stderr
    for found, wanted in zip(_losses(lines), _losses(_lines(tmp_path / "gloo")), strict=True):
        assert found == pytest.approx(wanted, rel=1e-4)  # gloo sums in another order
    if script[-1] == "ddp":
        assert len({of_rank[-1] for of_rank in lines}) == 1
