"""A script's calls in namespaces of the kernel."""

from pathlib import Path

import pytest

from tests.emulator.torch_backend.scripts import NEEDS_TORCH, printed, result, torchrun

pytestmark = NEEDS_TORCH


TEXT = """
tensor = torch.arange(20000.0)
work = dist.all_reduce(tensor, async_op=True)
dist.all_gather_object([None] * size, "x" * rank)
work.wait()
print(dist.get_backend(), tensor.sum().item())
"""


def _digest(folder: Path, *words: str, fabric: str) -> str:
    folder.mkdir()
    ended = torchrun(folder, TEXT, *words, fabric=fabric)
    assert ended.returncode == 0, ended.stderr
    assert printed(folder, 0) == [f"uetemu {4 * 19999 * 10000:.1f}"]
    digest: str = result(folder)["digest"]
    return digest


@pytest.mark.root
def test_a_script_takes_the_same_time_in_the_kernel_as_on_the_model(tmp_path: Path) -> None:
    fabrics = "kernel", "model"
    assert len({_digest(tmp_path / one, fabric=one) for one in fabrics}) == 1


@pytest.mark.root
@pytest.mark.nightly
def test_a_script_takes_the_same_time_with_two_workers(tmp_path: Path) -> None:
    digests = {
        _digest(tmp_path / f"{fabric}{workers}", "--workers", workers, fabric=fabric)
        for fabric in ("kernel", "model")
        for workers in ("1", "2")
    }
    assert len(digests) == 1
