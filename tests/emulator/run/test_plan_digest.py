"""Test what ranks compare of their plans."""

from emulator import scenario
from emulator.run.plan.run_plan import RunRequest, drafted
from emulator.run.run_secret import plan_digest


def digest(transport: str, topology: str = "rail_clos:hosts=2,gpus_per_host=2,spines=1") -> bytes:
    chosen = scenario.load("alltoall")
    request = RunRequest(
        scenario=chosen,
        parameters=chosen.parameters({"sizes": "16KiB"}),
        topology=topology,
        transport=transport,
        fabric="model",
        lab="digest",
    )
    return plan_digest(drafted(request))


def test_every_rank_comes_to_the_same_digest_of_a_mesh() -> None:
    assert digest("rocev2:qps=2") == digest("rocev2:qps=2")


def test_other_meshes_have_other_digests() -> None:
    meshes = (
        digest("rocev2"),
        digest("rocev2:qps=2"),
        digest("rocev2", "rail_clos:hosts=3,gpus_per_host=2,spines=1"),
    )
    assert len(set(meshes)) == len(meshes)
