"""Collectives of scripts, compiled for a fabric."""

from dataclasses import replace

import pytest

from emulator.errors import UserError
from emulator.run.pxn import Pxn
from emulator.torch_backend.compiled_calls import CallKey, PlacedCalls
from scenarios.collectives.communicators import Communicator
from scenarios.collectives.library import choose
from scenarios.collectives.tuning import AUTO
from scenarios.torch_script.script_collectives import ScriptCollectives
from topologies.catalogue import load


def _collectives(spec: str, mode: str = "auto") -> ScriptCollectives:
    return ScriptCollectives(pxn=Pxn(load(spec), mode), slice_bytes=65536, algorithms={})


def test_an_algorithm_is_as_the_model_of_nccl_takes_it() -> None:
    collectives = _collectives("rail_clos:hosts=8,gpus_per_host=2")
    members = tuple(range(16))
    chosen = [
        collectives(CallKey("allreduce", members, octets, "float32", "sum", 0)).algorithm
        for octets in (1 << 10, 1 << 30)
    ]
    assert chosen == ["double-tree", "ring"]


def test_a_library_takes_time_for_each_call_as_for_its_collectives() -> None:
    topology = load("rail_clos:hosts=2,gpus_per_host=2")
    members = tuple(range(4))
    chosen = choose("nccl", Communicator(members, topology), 1 << 20, algorithm=AUTO, protocol=AUTO)
    collectives = replace(_collectives(topology.name), pxn=Pxn(topology), library="nccl")
    compiled = collectives(CallKey("allreduce", members, 1 << 20, "float32", "sum", 0))
    assert compiled.algorithm == f"{chosen.algorithm}/{chosen.protocol}"
    assert {one.gpu_time for one in compiled.schedules.values()} == {chosen.gpu_time}
    assert compiled.launch_ns == 14_000
    message = replace(collectives, protocol="Simple")(CallKey("send", (0, 3), 9, "uint8", "", 0))
    assert (message.algorithm, message.launch_ns) == ("direct/Simple", 8_400)


def test_a_write_without_a_way_is_refused_by_name() -> None:
    spec, key = (
        "rail_clos:hosts=2,gpus_per_host=2,spines=0",
        CallKey("send", (0, 3), 64, "float32", "sum", 0),
    )
    with pytest.raises(UserError, match="leave --pxn at auto to relay it over NVLink"):
        _collectives(spec, "off")(key)
    compiled = _collectives(spec)(key)
    assert compiled.relays == {1}
    placed = PlacedCalls(lambda _: compiled, 1 << 20)
    places = {0: {"input": 0}, 1: {"pxn": 4096}, 3: {"output": 8192}}
    sender, receiver, relay = placed.placed(key, places, ("go", "over", "relayed"))
    assert [type(one).__name__ for one in sender.operations] == ["Barrier", "Copy", "Barrier"]
    assert [type(one).__name__ for one in receiver.operations] == ["Barrier", "Receive", "Barrier"]
    assert [type(one).__name__ for one in relay.operations] == [
        *("Barrier", "Receive", "Write", "Barrier", "Barrier")
    ]
    assert [one.after for one in relay.operations] == [(), (), (1,), (0,), (1, 2)]
    at = [one.operations.columns["near_at"][2] for one in (relay, receiver)]  # type: ignore[attr-defined]
    assert at == [4096, 0]


def test_each_call_has_tags_and_places_of_its_own() -> None:
    collectives = _collectives("rail_clos:hosts=2,gpus_per_host=1")
    key = CallKey("send", (0, 1), 100_000, "float32", "sum", 0)
    placed = PlacedCalls(collectives, 1 << 20)
    assert placed.compiled(key).algorithm == "direct"
    found = []
    for at in (4096, 500_000):
        places = {0: {"input": at}, 1: {"output": at + 4096}}
        sender, receiver = placed.placed(key, places, ("go", "over"))
        names = [type(one).__name__ for one in sender.operations]
        assert names == ["Barrier", "Write", "Write", "Barrier"]
        columns = sender.operations.columns  # type: ignore[attr-defined]
        assert columns["near_at"][1:-1].tolist() == [at, at + 65536]
        assert columns["far_at"][1:-1].tolist() == [at + 4096, at + 4096 + 65536]
        found += columns["tag"][1:-1].tolist()
        assert [one.after for one in receiver.operations][1:] == [(), (), (0, 1, 2)]
    assert found == [0, 1, 2, 3]
