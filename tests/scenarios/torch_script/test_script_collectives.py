"""Collectives of scripts, compiled for a fabric."""

from __future__ import annotations

import pytest

from emulator.torch_backend.compiled_calls import CallKey, PlacedCalls
from scenarios.torch_script.script_collectives import ScriptCollectives
from topologies.catalogue import load


def _collectives(spec: str) -> ScriptCollectives:
    return ScriptCollectives(topology=load(spec), slice_bytes=65536, algorithms={})


def test_an_algorithm_is_as_the_model_of_nccl_takes_it() -> None:
    collectives = _collectives("rail_clos:hosts=8,gpus_per_host=2")
    members = tuple(range(16))
    chosen = [
        collectives(CallKey("allreduce", members, octets, "float32", "sum", 0)).algorithm
        for octets in (1 << 10, 1 << 30)
    ]
    assert chosen == ["double-tree", "ring"]


def test_a_write_without_a_way_is_refused_by_name() -> None:
    collectives = _collectives("rail_clos:hosts=2,gpus_per_host=2,spines=0")
    with pytest.raises(NotImplementedError, match="no way from rank 0 to rank 3"):
        collectives(CallKey("send", (0, 3), 64, "float32", "sum", 0))


def test_each_call_has_tags_and_places_of_its_own() -> None:
    collectives = _collectives("rail_clos:hosts=2,gpus_per_host=1")
    key = CallKey("send", (0, 1), 100_000, "float32", "sum", 0)
    placed = PlacedCalls(collectives, 1 << 20)
    assert placed.compiled(key).algorithm == "direct"
    found = []
    for at in (4096, 500_000):
        places = {0: {"input": at}, 1: {"output": at + 4096}}
        sender, receiver = placed.placed(key, places, "go", "over")
        names = [type(one).__name__ for one in sender.operations]
        assert names == ["Barrier", "Write", "Write", "Barrier"]
        columns = sender.operations.columns  # type: ignore[attr-defined]
        assert columns["near_at"][1:-1].tolist() == [at, at + 65536]
        assert columns["far_at"][1:-1].tolist() == [at + 4096, at + 4096 + 65536]
        found += columns["tag"][1:-1].tolist()
        assert [one.after for one in receiver.operations][1:] == [(), (), (0, 1, 2)]
    assert found == [0, 1, 2, 3]
