"""Recordings of scripts: what ranks compute and send, and what overlaps what."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.traces.format_registry import ReadOptions
from scenarios.traces.replay import in_order
from scenarios.traces.trace_loading import load_traces
from scenarios.traces.trace_model import (
    Collective,
    Trace,
    TraceCollective,
    TraceCompute,
    TraceReceive,
    TraceSend,
)
from tests.emulator.torch_backend.scripts import NEEDS_TORCH

pytestmark = [NEEDS_TORCH, pytest.mark.timeout(300)]

LLAMA = Path(__file__).parents[2] / "examples" / "llama_fsdp.py"
SMALL = [
    *("--layers=2", "--width=64", "--inner=128", "--heads=4", "--key_heads=2"),
    *("--vocabulary=100", "--length=32", "--replicas=2"),
]
UETEMU = (sys.executable, "-c", "from emulator.cli.main import main; main()")
CALLS = """\
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)), bucket_cap_mb=0.2
)
for _ in range(2):
    model(torch.ones(8, 256)).sum().backward()
pair = dist.new_group([0, 2])
square = torch.ones(64, 64)
if rank != 1:
    sums = torch.ones(100)
    work = dist.all_reduce(sums, group=pair, async_op=True)
    product = square @ square
    work.wait()
    square @ product
    dist.broadcast(torch.ones(3), 2, group=pair)
sent = torch.ones(6 + 6 * rank)
parts = [(rank + 1) * part for part in (1, 2, 3)]
dist.all_to_all_single(torch.empty((rank + 1) * 6), sent, [(k + 1) * (rank + 1) for k in range(3)],
                       parts)
"""
MESSAGES = """\
import torch, torch.distributed as dist
dist.init_process_group()
rank = dist.get_rank()
sends = dist.isend(torch.ones(5), 1 - rank)
dist.recv(torch.empty(5), 1 - rank)
sends.wait()
parts = [torch.empty(2) for _ in range(2)]
dist.all_gather(parts, torch.ones(2))
dist.gather(torch.ones(3), [torch.empty(3), torch.empty(3)] if rank == 1 else None, dst=1)
dist.scatter(torch.empty(3), [torch.ones(3), torch.ones(3)] if rank == 1 else None, src=1)
dist.reduce(torch.ones(7, dtype=torch.float64), 1)
dist.barrier()
"""


def record(folder: Path, text: str | Path, *words: str, ranks: int = 2) -> Trace:
    """Return the trace of a script, given as its text or its path."""
    script = text if isinstance(text, Path) else folder / "train.py"
    if isinstance(text, str):
        script.write_text(text)
    path = folder / "step.csv"
    given = [*words, "--ranks", str(ranks), "--record", str(path)]
    options, rest = (given, []) if not isinstance(text, Path) else (given, SMALL)
    command = [*UETEMU, "torchrun", *options, str(script), *rest]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    (trace,) = load_traces([str(path)], "", ReadOptions())
    in_order(trace)
    return trace


def test_collectives_have_sizes_groups_splits_and_what_they_wait_for(tmp_path: Path) -> None:
    trace = record(tmp_path, CALLS, "--tflops", "0.001", ranks=3)
    found = trace.operations[0]
    # The model is broadcast; in the second step a bucket leaves while others are computed.
    *model, first, _ = [one for one in found if isinstance(one, TraceCollective)
                        and one.name.startswith("train.py:9")]  # fmt: skip
    assert sum(one.octets for one in model if one.kind is Collective.ALL_REDUCE) >= 2**19
    place = found.index(first)
    beside = [one for one in found if isinstance(one, TraceCompute) and place not in one.after]
    assert any(set(one.after) & set(first.after) for one in beside)
    # 2 * 64^3 FLOPs at 10^9 a second, beside the collective and behind it
    product, behind = [one for one in found if isinstance(one, TraceCompute)][-2:]
    assert product.duration_ns == behind.duration_ns == 524_288
    (sums,) = [at for at, one in enumerate(found) if one.name == "train.py:14"]
    assert sums not in product.after
    assert set(behind.after) == {sums, found.index(product)}
    pair = found[sums]
    assert isinstance(pair, TraceCollective)
    assert (pair.octets, trace.groups[pair.group]) == (400, (0, 2))
    assert [one.name for one in trace.operations[1] if one.name == "train.py:14"] == []
    (root,) = [one for one in found if one.name == "train.py:18"]
    assert isinstance(root, TraceCollective)
    assert (root.kind, root.octets, root.root) == (Collective.BROADCAST, 12, 2)
    for rank in range(3):
        last = trace.operations[rank][-1]
        assert isinstance(last, TraceCollective)
        assert last.splits == tuple(4 * (rank + 1) * part for part in (1, 2, 3))


def test_messages_and_rooted_collectives_are_recorded(tmp_path: Path) -> None:
    trace = record(tmp_path, MESSAGES)
    for rank in range(2):
        moves = [one for one in trace.operations[rank] if not isinstance(one, TraceCompute)]
        messages, collectives = moves[:2], moves[2:]
        assert {type(one) for one in messages} == {TraceSend, TraceReceive}
        assert all(one.octets == 20 for one in messages)  # type: ignore[attr-defined]
        assert [(one.kind, one.octets, one.root) for one in collectives  # type: ignore[attr-defined]
                ] == [
            (Collective.ALL_GATHER, 16, None),
            (Collective.GATHER, 24, 1),
            (Collective.SCATTER, 24, 1),
            (Collective.REDUCE, 56, 1),
            (Collective.BARRIER, 0, None),
        ]  # fmt: skip


CUDA = """\
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
pair = dist.new_group([0, 1], backend="nccl")
square = torch.ones(64, 64, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    sums = torch.ones(25).cuda()
    dist.all_reduce(sums, group=pair)
    over = torch.cuda.Event()
    over.record()
product = square @ square
torch.cuda.current_stream().wait_event(over)
product = square @ square
"""


def test_streams_of_cuda_order_what_overlaps_and_gloo_stands_for_nccl(tmp_path: Path) -> None:
    trace = record(tmp_path, CUDA, "--map-cuda")
    for operations in trace.operations:
        assert [type(one) for one in operations] == [TraceCompute, TraceCollective, TraceCompute]
        beside, sums, behind = operations
        assert (beside.after, sums.after, set(behind.after)) == ((), (), {0, 1})


EXPERTS = """\
import torch, torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd as exchange
dist.init_process_group()
rank = dist.get_rank()
tokens = torch.ones(8, 4, requires_grad=True)
sent = [[6, 2], [3, 5]][rank]
got = [[6, 3], [2, 5]][rank]
routed = exchange(tokens, got, sent, dist.group.WORLD)
back = exchange(routed @ torch.ones(4, 4), sent, got, dist.group.WORLD)
back.sum().backward()
"""


@pytest.mark.nightly
def test_tokens_of_experts_are_recorded_forward_and_backward_and_replayed(tmp_path: Path) -> None:
    trace = record(tmp_path, EXPERTS)
    for rank, (sent, got) in enumerate((((6, 2), (6, 3)), ((3, 5), (2, 5)))):
        moves = [one for one in trace.operations[rank] if isinstance(one, TraceCollective)]
        splits = [tuple(part // 16 for part in one.splits) for one in moves]
        assert splits == [sent, got, sent, got]
        computes = [one for one in trace.operations[rank] if isinstance(one, TraceCompute)]
        assert len(computes) == 2
        assert all(one.after for one in computes)
    words = ["run", "trace", "step.csv", "--fabric", "model", "--transport", "uet,rocev2"]
    done = subprocess.run(
        [*UETEMU, *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if "step.csv" in line]
    assert [row[-1] for row in rows if row[-1].isdecimal()] == ["0", "0"]  # wrong


def shape(trace: Trace) -> list[list[object]]:
    """Return what each rank does, without the names of groups."""
    return [
        [
            (type(one), one.after, getattr(one, "kind", None), getattr(one, "octets", None),
             trace.groups.get(getattr(one, "group", "")), getattr(one, "duration_ns", None))
            for one in operations
        ]
        for operations in trace.operations
    ]  # fmt: skip


def test_one_process_with_fake_tensors_records_what_all_ranks_do(tmp_path: Path) -> None:
    alone = record(tmp_path, LLAMA, "--fake", ranks=4)
    assert shape(alone) == shape(record(tmp_path, LLAMA, ranks=4))
    gathers = [one for one in alone.operations[3] if getattr(one, "octets", 0) == 73_984]
    assert {alone.groups[one.group] for one in gathers} == {(2, 3)}  # type: ignore[attr-defined]
    # The next block's parameters come while a block computes.
    found = alone.operations[0]
    early = [one for one in gathers if isinstance(one, TraceCollective)]
    computed = [at for at, one in enumerate(found) if isinstance(one, TraceCompute)]
    assert not set(early[1].after) & set(computed)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_eight_billion_parameters_over_64_ranks_fit_into_one_process(tmp_path: Path) -> None:
    path = tmp_path / "step.csv"
    words = ["--ranks", "64", "--fake", "--record", str(path), str(LLAMA)]
    run = UETEMU
    done = subprocess.run([*run, "torchrun", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[0] 8030261248 parameters" in done.stdout
    factors = ["--param", "size_scale=1/16384", "--param", "compute_scale=1/16384"]
    fabric = ["--fabric", "model", "--topology", "rail_clos:hosts=64,gpus_per_host=1"]
    replayed = [*run, "run", "trace", str(path), *fabric, *factors]
    done = subprocess.run(replayed, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if "step.csv" in line][-1:]
    assert row[-1] == "0"  # wrong


@pytest.mark.nightly
def test_what_a_fake_tensor_cannot_tell_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nprint(torch.ones(3, dtype=torch.int64).sum().item())\n")
    words = ["--fake", "--record", str(tmp_path / "a.csv"), str(script)]
    run = [*UETEMU, "torchrun", *words]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"a value of a fake tensor \(torch.int64\) decides", done.stderr)
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (["--record", "a.goal"], "a.goal cannot be written: a recording is a file of .csv,"),
        (["--record", "absent/a.csv"], "there is no folder absent"),
        (["--record", "a.csv", "--record-steps", "x"], "--record-steps is 'x'; write a step"),
        (["--record-steps", "2"], "--record-steps is for a recording; add --record FILE"),
        (["--fake"], "--fake is for a recording; add --record FILE"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_the_script(
    tmp_path: Path, words: list[str], stated: str
) -> None:
    run = [*UETEMU, "torchrun", *words, str(LLAMA)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode != 0
    assert stated in done.stderr
    assert "parameters" not in done.stdout
