"""The smallest run of each design and of each scenario, for whoever holds something to all of them.

A design runs AllReduce over GPUs that are neighbours nowhere, or a permutation where no ring is.
"""

from __future__ import annotations

import shlex

_RING = "allreduce --param order=shuffled --sizes 16KiB"
_PAIRS = "permutation --sizes 16KiB"
_FOUR = "--topology rail_clos:hosts=2,gpus_per_host=2,spines=2"
_NETWORK = "--param hidden=16 --param epochs=1"

#: By design: the scenario with its options, and the specification of the fabric.
DESIGNS = {
    "rail_clos": (_RING, "rail_clos:hosts=2,gpus_per_host=2,spines=2"),
    "clos": (_RING, "clos:segments=2,hosts=1,gpus_per_host=2,spines=2"),
    "cluster": (_RING, "cluster"),
    "cluster_storage": ("storage_rdma", "cluster_storage"),
    "dragonfly": (_PAIRS, "dragonfly:gpus_per_host=1"),
    "dragonfly_plus": (_PAIRS, "dragonfly_plus"),
    "fat_tree": (_RING, "fat_tree:radix=4"),
    "tor": (_RING, "tor:radix=4,gpus_per_host=2"),
    "pod": (_RING, "pod:hosts=1,gpus_per_host=2,spines=2"),
    "multi_pod": (
        _RING,
        "multi_pod:segments=1,hosts=1,gpus_per_host=2,spines=1,super_spines=2",
    ),
    "multi_rail_per_switch": (_RING, "multi_rail_per_switch:hosts=1,gpus_per_host=4,spines=2"),
    "dual_rail_per_switch": (_RING, "dual_rail_per_switch:hosts=2,gpus_per_host=4,spines=2"),
    "single_rail_per_switch": (_RING, "single_rail_per_switch:hosts=2,gpus_per_host=2,spines=2"),
    "single_rail_switch": (_RING, "single_rail_switch:gpus_per_host=2"),
    "dual_rail_switch": (_RING, "dual_rail_switch:hosts=2,gpus_per_host=2"),
    "rail_only": (_RING, "rail_only:hosts=2,gpus_per_host=2"),
    "host_segment": (_RING, "host_segment:hosts=2,gpus_per_host=2"),
    "nic_per_gpu": (_RING, "nic_per_gpu:gpus_per_host=2"),
    "shared_nic": (_RING, "shared_nic:gpus_per_host=4,gpus_per_nic=2"),
    "fabric_planes": (_RING, "fabric_planes"),
    "torus": (_PAIRS, "torus:x=2,y=2,z=2"),
}

#: By scenario: its options.
SCENARIOS = {
    **{
        name: f"{_FOUR} --sizes 16KiB"
        for name in (
            *("allgather", "allreduce", "alltoall", "alltoallv", "broadcast", "gather"),
            *("reduce", "reducescatter", "scatter", "sendrecv"),
        )
    },
    "barrier": _FOUR,
    **dict.fromkeys(
        ("attention", "convolutional", "data_parallel", "fnn", "recurrent"), "--param epochs=1"
    ),
    **dict.fromkeys(
        ("model_parallel", "pipeline_parallel", "tensor_parallel", "three_d"), "--param epochs=1"
    ),
    "checkpoint": f"{_NETWORK} --param gradient_time=5us",
    "jobstart": "",
    "ccsweep": "--param size=64KiB --param senders=4",
    "lbsweep": "--param size=64KiB",
    "incast": "--param senders=4 --param size=64KiB",
    "victim": "--param senders=4 --param size=64KiB",
    "outcast": "--param senders=4 --param size=64KiB",
    "onset": "--param size=256KiB --param joined_at=5us --param window=5us",
    "pairs": "--param size=64KiB",
    "permutation": f"{_FOUR} --sizes 64KiB",
    "linkfail": "--param size=256KiB --param fail=black --param sprays=reps --param black_at=5us",
    "losssweep": "--param size=64KiB --param losses=0,10000",
    "pfcstorm": "--param size=64KiB --param storm_at=2us --param storm_for=60us "
    "--param watchdog=20us",
    "kvload": "--param message=16KiB --param transfers=2 --param load=50",
    "kvmix": "--param load=50 --param rounds=2",
    "llm": "",
    "jobs": "",
    "moe": "",
    "inference": "",
    "model_fit": "",
    "storage_rdma": "",
    "trace": "",
}


def of_design(name: str) -> list[str]:
    """Return the arguments of ``uetemu run`` for design ``name``."""
    scenario, topology = DESIGNS[name]
    return [*shlex.split(scenario), "--topology", topology]


def of_scenario(name: str) -> list[str]:
    """Return the arguments of ``uetemu run`` for scenario ``name``."""
    return [name, *shlex.split(SCENARIOS[name])]
