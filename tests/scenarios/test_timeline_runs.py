"""Timelines of runs, imported by Perfetto's rules (:mod:`tests.harness.runs.perfetto_rules`).

Perfetto's own trace processor is not to be had from a package registry, so that its rules are
checked instead.
"""

import json
from collections import Counter
from collections.abc import Callable

from emulator.pytest_plugin.runs import RunProcess
from tests.harness.runs.perfetto_rules import Imported, imported
from tests.harness.runs.processes import SMALL, ended


def opened(run: RunProcess) -> Imported:
    """The timeline of ``run``, which ends well."""
    ended(run)
    found = imported(json.loads((run.folder / "timeline.json").read_text()))
    assert found.troubles == []
    return found


def test_every_message_of_a_collective_is_a_flow(start: Callable[..., RunProcess]) -> None:
    found = opened(start(*SMALL, "--sizes", "256KiB", "--capture", "none"))
    kinds = Counter(one.category for one in found.slices)
    assert len(found.flows) == kinds["NIC"] / 2 + kinds["NVLink"] / 2 > 0
    for out, there in found.flows:
        assert out.begin < there.begin
        assert out.name.startswith("all_reduce to ")
        assert there.name == f"all_reduce from {found.processes[out.pid]}"
        assert out.name == f"all_reduce to {found.processes[there.pid]}"
    tracks = {found.track(one) for one in found.slices if one.pid == 1}
    assert {"h0g0 compute", "h0g0 NIC in", "h0g0 NIC out", "h0g0 NVLink in"} <= tracks
    assert any(name.endswith("data rate Gbit/s") for _, name in found.counters)


def test_an_incast_with_a_fault_has_queues_marks_and_the_fault(
    start: Callable[..., RunProcess],
) -> None:
    run = start(
        "--topology", "rail_clos:hosts=4,gpus_per_host=2,spines=1", "--param", "senders=3",
        "--param", "size=256KiB", "--fault", "t=5us link rail0:down0 down; t=9us up",
        "--capture", "none", scenario="incast",
    )  # fmt: skip
    found = opened(run)
    faults = [one for one in found.slices if one.category == "fault"]
    assert [one.begin for one in faults] == [5000, 9000]
    assert "link rail0:down0 down" in faults[0].name
    ((pid, _),) = [one for one in found.processes.items() if one[1] == "rail0"]
    depths = found.counters[pid, "down0 queue octets"]
    (row,) = run.result["rows"]
    assert 0 < max(octets for _, octets in depths) <= row["max_queue_bytes"]
    rates = found.counters[pid, "down0 data rate Gbit/s"]
    # Of 400 Gbit/s, and a sample may have one packet more than its share.
    assert 0 < max(rate for _, rate in rates) <= 420.0
    marked = [one for one in found.slices if one.category == "marked"]
    assert sum(int(one.name.split()[0]) for one in marked) <= row["marked_packets"]
    assert marked


def test_a_training_names_epochs_micro_batches_and_layers(start: Callable[..., RunProcess]) -> None:
    run = start("--param", "epochs=2", "--capture", "none", scenario="three_d")
    found = opened(run)
    steps = {one.name for one in found.slices if one.category == "step" and one.pid == 1}
    assert {
        "epoch 1", "epoch 2", "epoch 2, micro-batch 2", "epoch 2, micro-batch 2, layer 1 forward",
        "epoch 1, micro-batch 1, layer 1 backward", "epoch 1, gradients all_reduce",
    } <= steps  # fmt: skip
    first, second = (
        [one for one in found.slices if one.name == name and one.pid == 1]
        for name in ("epoch 1", "epoch 2")
    )
    # The last gradients of an epoch are acknowledged when the next one has begun.
    assert first[0].begin == 0 < first[0].duration / 2 < second[0].begin
    titles = {one.name for one in found.slices}
    assert "epoch 1, micro-batch 1, layer 1 forward layer_forward" in titles
    assert any(one.startswith("epoch 2, gradients all_reduce to h1g0") for one in titles)
