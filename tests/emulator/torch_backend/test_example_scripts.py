"""Whole training scripts: each transport, and gloo, trains the same model."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests import CHECKOUT
from tests.emulator.torch_backend.scripts import NEEDS_TORCH, printed, result, torchrun_file

pytestmark = NEEDS_TORCH

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


@pytest.mark.nightly
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


#: The folder of nanoGPT, whose script is somebody else's (emulator/torch_backend/README.md).
NANOGPT = os.environ.get("UETEMU_NANOGPT", "")
NANOGPT_SIZES = {
    "dataset": "readme",
    "compile": False,
    "max_iters": 3,
    "eval_iters": 1,
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 32,
    "block_size": 32,
    "batch_size": 2,
    "gradient_accumulation_steps": 8,
}


@pytest.mark.nightly
@pytest.mark.skipif(not NANOGPT, reason="UETEMU_NANOGPT names no folder of karpathy/nanoGPT")
def test_a_script_for_cuda_of_somebody_else_trains_the_same_over_both_transports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train.py", "model.py", "configurator.py"):
        shutil.copy(Path(NANOGPT) / name, tmp_path)
    text = (Path(NANOGPT) / "README.md").read_text()
    letters = sorted(set(text))
    data = tmp_path / "data" / "readme"
    data.mkdir(parents=True)
    tokens = np.array([letters.index(one) for one in text], np.uint16)
    for name, part in (("train", tokens[:-2000]), ("val", tokens[-2000:])):
        part.tofile(data / f"{name}.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(letters)}))
    monkeypatch.chdir(tmp_path)
    words = ["--map-cuda", "train.py", *(f"--{name}={it}" for name, it in NANOGPT_SIZES.items())]
    ended = torchrun_file(tmp_path, "--transport", "uet,rocev2:nccl", *words)
    assert ended.returncode == 0, ended.stderr
    losses = []
    for ranks in ("ranks", "ranks-2"):
        lines = [one for one in printed(tmp_path, 0, ranks) if "loss" in one]
        losses.append([one.partition(", time")[0] for one in lines])
    assert losses[0] == losses[1]
    assert len(losses[0]) == 5  # an evaluation, and four steps
