"""Scripts that do not end well: who is named, and that nothing is left."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.emulator.torch_backend.scripts import HEAD, NEEDS_TORCH, SMALL, printed, result, torchrun

pytestmark = NEEDS_TORCH

ENDS = {
    "other kinds": (
        "if rank == 1:\n    dist.broadcast(torch.ones(4), 0)\nelse:\n"
        "    dist.all_reduce(torch.ones(4))\n",
        "ranks of group '0' do not agree on its call number 2: rank 0's allreduce of 16 B "
        "(float32, sum) at train.py:11, but rank 1's broadcast of 16 B at train.py:9",
    ),
    "a rank that does not call": (
        "if rank != 2:\n    dist.all_reduce(torch.ones(4))\n",
        "nothing will ever happen again: rank 0's allreduce of 16 B (float32, sum) at train.py:9 "
        "waits for rank 2, which has not called it and has ended",
    ),
    "a circle": (
        "tensor = torch.ones(4)\nif rank < 2:\n    dist.recv(tensor, 1 - rank)\n",
        "rank 0's recv of 16 B at train.py:10 waits for rank 1, which has not called it and waits "
        "at train.py:10",
    ),
    "an exception": (
        "if rank == 3:\n    raise KeyError('weights')\ndist.all_reduce(torch.ones(4))\n",
        "rank 3 raised KeyError at train.py:9: 'weights', which ended all ranks",
    ),
    "two exceptions": (  # and the host comes to the first one last
        "import time\nif rank == 0:\n    torch.ones(1024, 1024) @ torch.ones(1024, 1024)\n"
        "    raise KeyError\n"
        "if rank == 3:\n    time.sleep(0.5)\n    raise ValueError('early')\n"
        "dist.all_reduce(torch.ones(4))\n",
        "rank 3 raised ValueError at train.py:14: early, which ended all ranks; what it printed",
    ),
    "two threads": (
        "import threading\nother = threading.Thread(target=dist.barrier, name='saver')\n"
        "other.start()\nother.join()\ndist.barrier()\n",
        "calls torch.distributed beside MainThread, and the host would decide",
    ),
    "a kill": (
        "import os\nif rank == 3:\n    os.kill(os.getpid(), 9)\ndist.all_reduce(torch.ones(4))\n",
        "was killed by signal 9 (SIGKILL; has the machine run out of memory?), which ended all",
    ),
    "CUDA": ("torch.ones(3).cuda()\n", "asks for CUDA at train.py:8, which is not here"),
}


#: In the usual run, where each costs seconds.
_USUAL = ("other kinds", "a rank that does not call", "two exceptions")


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[] if one in _USUAL else [pytest.mark.nightly]) for one in ENDS],
)
def test_a_script_that_cannot_go_on_is_explained_in_one_sentence(tmp_path: Path, name: str) -> None:
    text, sentence = ENDS[name]
    ended = torchrun(tmp_path, "dist.all_reduce(torch.ones(1)); print('once')\n" + text)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("uetemu: ")
    assert sentence in last
    assert sentence in result(tmp_path)["errors"][0]
    assert printed(tmp_path, 0) == ["once"]
    assert not list(Path("/dev/shm").glob("uetemu.torchrun-tests-ends.*"))


#: One rank is busy in Python, one in C, and the others wait for them.
BUSY = """
import subprocess
if rank == 0:
    print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    while True:
        pass
if rank == 1:
    torch.ones(5000, 5000) @ torch.ones(5000, 5000)
dist.all_reduce(torch.ones(1))
"""


def test_an_interrupt_ends_all_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + BUSY)
    words = ["--fabric", "model", "--topology", SMALL, "--output", str(tmp_path / "run")]
    code = "from emulator.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "torchrun", *words, str(tmp_path / "train.py")],
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        began = tmp_path / "run" / "ranks" / "0.stdout"
        while not began.exists() or not began.read_text():
            assert run.poll() is None
            time.sleep(0.1)
        run.send_signal(signal.SIGINT)
        _, words_of_end = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "interrupted by SIGINT; the fabric has been removed" in words_of_end
    assert result(tmp_path)["errors"] == ["interrupted by SIGINT"]
    child = Path("/proc") / printed(tmp_path, 0)[0] / "stat"
    assert not child.exists() or " (sleep) Z " in child.read_text()


MAPPED = """
torch.cuda.set_device(0)
device = torch.device("cuda", 0)
model = nn.Linear(4, 1).to(device)
parallel = nn.parallel.DistributedDataParallel(model, device_ids=[0])
tensor = torch.ones(2, 4, device="cuda").cuda()
parallel(tensor.to(device, non_blocking=True)).sum().backward()
torch.cuda.synchronize()
print(tensor.device, model.weight.grad.tolist(), torch.cuda.is_available())
there = torch.accelerator.current_accelerator()
mesh = dist.device_mesh.init_device_mesh(there.type, (size,))
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
with torch.cuda.device(0), torch.autocast(there.type, torch.bfloat16):
    dtype = model.to(0)(tensor.to(0)).dtype
end.record()
print(mesh.device_type, dtype, 0 <= begin.elapsed_time(end) < 1e6)
pinned = torch.utils.data.DataLoader(torch.ones(2, 1), pin_memory=True, num_workers=1)
print([one.item() for one in pinned])
"""


def test_cuda_of_a_script_can_be_the_cpu(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, MAPPED, "--map-cuda")
    assert ended.returncode == 0, ended.stderr
    assert printed(tmp_path, 1) == [
        "cpu [[2.0, 2.0, 2.0, 2.0]] True",
        "cpu torch.bfloat16 True",
        "[1.0, 1.0]",
    ]


COMPUTES = """
weight = torch.ones(64, 64)
for _ in range(2):
    weight = weight @ weight  # 524,288 FLOPs
    dist.all_reduce(weight)
    weight /= weight.max()
"""


def _time_us(folder: Path, *words: str) -> float:
    folder.mkdir()
    ended = torchrun(folder, COMPUTES, *words)
    assert ended.returncode == 0, ended.stderr
    time_us: float = result(folder)["rows"][0]["time_us"]
    return time_us


@pytest.mark.nightly
def test_computing_takes_its_flops_over_the_rate_or_what_is_stated(tmp_path: Path) -> None:
    none = _time_us(tmp_path / "none", "--compute", "none")
    flops = _time_us(tmp_path / "flops", "--tflops", "0.01")
    fixed = _time_us(tmp_path / "fixed", "--compute", "fixed:20us")
    assert flops - none == pytest.approx(2 * 524288 / 1e4, abs=0.01)
    assert fixed - none == pytest.approx(40, abs=0.01)
    times = tmp_path / "times.csv"
    times.write_text("rank,compute_us\n" + "".join(f"{rank},5\n" for rank in range(4)))
    stated = _time_us(tmp_path / "csv", "--compute", f"csv:{times}")
    assert stated - none == pytest.approx(5, abs=0.01)
