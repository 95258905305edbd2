"""A script's calls in namespaces of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.torch_backend.scripts import printed, result, torchrun

pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'uetemu[torch]')")


@pytest.mark.root
def test_a_script_takes_the_same_time_in_the_kernel_as_on_the_model(tmp_path: Path) -> None:
    text = "dist.all_reduce(torch.arange(20000.0))\nprint(dist.get_backend())\n"
    digests = []
    for fabric in ("kernel", "model"):
        folder = tmp_path / fabric
        folder.mkdir()
        ended = torchrun(folder, text, fabric=fabric)
        assert ended.returncode == 0, ended.stderr
        assert printed(folder, 0) == ["uetemu"]
        digests.append(result(folder)["digest"])
    assert digests[0] == digests[1]
