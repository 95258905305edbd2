"""Small runs of every design and every scenario, for a modelled fabric to be held to the kernel's.

:data:`DESIGNS` and :data:`SCENARIOS` have the arguments of ``uetemu run`` for each registered name.
What cannot be compared is in :data:`APART`, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness.runs.modelled_run import ModelledRun
from tests.harness.runs.processes import begun
from tests.harness.runs.whole_run import held
from topologies.parts.scale_up_products import PRODUCTS

FEW = "rail_clos:hosts=2,gpus_per_host=2,spines=2"
_SIZES = ("--topology", FEW, "--sizes", "16KiB", "--iterations", "1")
TRACE = """\
operation,size,ranks,root,duration,name,after
ranks,,4
compute,,,,3us
all_reduce,64KiB
send,4KiB,0 3
"""

#: A specification of each design that a run of a few seconds is on.
DESIGNS: Mapping[str, str] = {
    "rail_clos": "rail_clos:hosts=2,gpus_per_host=2,spines=2",
    "clos": "clos:segments=2,hosts=1,gpus_per_host=2,spines=2,rails_per_switch=2",
    "cluster": "cluster:hosts=2",
    "cluster_storage": "cluster_storage:hosts=2",
    "dragonfly": "dragonfly:gpus_per_host=1",
    "dragonfly_plus": "dragonfly_plus:gpus_per_host=1,leaves=2,spines=1",
    "fat_tree": "fat_tree:radix=4,gpus_per_host=2",
    "tor": "tor:radix=4,gpus_per_host=2",
    "pod": "pod:hosts=1,gpus_per_host=2,spines=2",
    "multi_pod": "multi_pod:segments=1,hosts=1,gpus_per_host=2,spines=1,super_spines=2",
    "multi_rail_per_switch": "multi_rail_per_switch:hosts=1,gpus_per_host=4,spines=2",
    "dual_rail_per_switch": "dual_rail_per_switch:hosts=2,gpus_per_host=4,spines=2",
    "single_rail_per_switch": "single_rail_per_switch:hosts=2,gpus_per_host=2,spines=2",
    "single_rail_switch": "single_rail_switch:gpus_per_host=2",
    "dual_rail_switch": "dual_rail_switch:hosts=2,gpus_per_host=2,homing=paths",
    "rail_only": "rail_only:hosts=2,gpus_per_host=2",
    "host_segment": "host_segment:hosts=2,gpus_per_host=2,homing=paths",
    "nic_per_gpu": "nic_per_gpu:gpus_per_host=2",
    "shared_nic": "shared_nic:gpus_per_host=4,gpus_per_nic=2",
    "fabric_planes": "fabric_planes",
    "torus": "torus:x=2,y=2,z=2",
    "dgx_superpod": "dgx_superpod:gpus_per_host=2",
    "meta_24k": "meta_24k:gpus_per_host=2",
    "alibaba_hpn": "alibaba_hpn:gpus_per_host=2",
    "mrc": "mrc:scale=256",
    "ue_leaf_spine": "ue_leaf_spine:scale=32",
}


#: The RoCEv2 that a design is compared over, where it is another: with PFC its routes could stop
#: each other in a circle, which no run accepts.
ROCEV2: Mapping[str, str] = {"dragonfly": "rocev2:pfc=off"}
#: Designs that RoCEv2 does not run on, in the kernel or not, and why.
WITHOUT_ROCEV2: Mapping[str, str] = dict.fromkeys(
    ["fabric_planes", "mrc"], "an endpoint in each plane (homing=planes) is Ultra Ethernet's"
)


#: A specification of each design whose subnets can lie on several switches, for them to be
#: stretched.
STRETCHED: Mapping[str, str] = {
    "clos": "clos:segments=2,hosts=1,gpus_per_host=2,spines=2,rails_per_switch=2",
    "cluster": "cluster:segments=2,hosts=2",
    "dual_rail_per_switch": "dual_rail_per_switch:segments=2,hosts=1,gpus_per_host=4,spines=2",
    "multi_pod": "multi_pod:segments=2,hosts=1,gpus_per_host=2,spines=1,super_spines=2,nic_ports=1",
    "multi_rail_per_switch": "multi_rail_per_switch:hosts=1,gpus_per_host=4,spines=2",
    "pod": "pod:segments=2,hosts=1,gpus_per_host=2,spines=2,nic_ports=1",
    "rail_clos": "rail_clos:segments=2,hosts=1,gpus_per_host=2",
    "single_rail_per_switch": "single_rail_per_switch:segments=2,hosts=1,gpus_per_host=2,spines=2",
}
_FLAT = "it has no spines, and so no way for tunnels"
#: Designs with the parameter ``subnets`` none of whose subnets is stretched, and why.
UNSTRETCHED: Mapping[str, str] = {
    **dict.fromkeys(
        [
            *("single_rail_switch", "dual_rail_switch", "rail_only", "host_segment"),
            *("nic_per_gpu", "shared_nic", "fabric_planes"),
        ],
        _FLAT,
    ),
    **dict.fromkeys(
        ["dgx_superpod", "meta_24k", "alibaba_hpn", "mrc", "ue_leaf_spine"],
        "it is clos with other numbers",
    ),
}

#: Sessions of BFD take seconds to begin.
WITHOUT_BFD = ("--control-plane", "evpn:bfd=off")
_EVPN = (*WITHOUT_BFD, "--convergence", "1us")
_PULLED = "t=2us link rail0:up0 down; t=6us up; t=10us switch spine1 down"
_RAILS = "clos:segments=2,hosts=1,gpus_per_host=2,spines=2,subnets=stretched"
_PODS = "clos:pods=2,hosts=1,gpus_per_host=2,spines=2,super_spines=2,subnets=stretched"
#: One uplink of each rail switch is for eight GPUs.
_NARROW = (
    "clos:segments=2,hosts=4,gpus_per_host=2,spines=1,uplinks_per_spine=1,rails_per_switch=2,"
    "subnets=stretched"
)
_LARGE = ("--sizes", "256KiB", "--iterations", "1")
_SMALL_ALLTOALL = ("--sizes", "16KiB", "--iterations", "1")
_OVER_RAILS = ("alltoall", "--topology", _RAILS, *_SMALL_ALLTOALL)
#: Runs over tunnels: the scenario and its arguments, by what each of them is about.
TUNNELLED: Mapping[str, Sequence[str]] = {
    "pods": ("alltoall", "--topology", _PODS, *_SMALL_ALLTOALL),
    "packet": (*_OVER_RAILS, "--switch", "shallow:balance=packet"),
    "flowlet": (*_OVER_RAILS, "--switch", "shallow:balance=flowlet"),
    "lost": (*_OVER_RAILS, "--fault", "t=1us link rail0:up0 loss=5%; t=40us heal"),
    "rerouted": ("permutation", "--topology", _RAILS, *_LARGE, *_EVPN, "--fault", _PULLED),
    "marked and dropped": ("permutation", "--topology", _NARROW, *_LARGE),
    "paused": (
        *("permutation", "--topology", f"{_NARROW},buffer=400KB", *_LARGE),
        *("--transport", "rocev2", "--switch", "lossless"),
    ),
}


def _set(*parameters: str) -> tuple[str, ...]:
    return tuple(word for parameter in parameters for word in ("--param", parameter))


#: Arguments of each scenario that make it small.
SCENARIOS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        [
            *("allgather", "allreduce", "alltoall", "alltoallv", "barrier", "broadcast"),
            *("gather", "reduce", "reducescatter", "scatter", "sendrecv"),
        ],
        _SIZES,
    ),
    **dict.fromkeys(
        [
            *("attention", "convolutional", "fnn", "model_parallel"),
            *("recurrent", "tensor_parallel", "three_d", "neural_training"),
        ],
        _set("epochs=2"),
    ),
    "data_parallel": _set("epochs=2", "gradients=float32,bfloat16,fp8,topk"),
    "pipeline_parallel": _set("epochs=1", "micro_batches=4"),
    "ccsweep": _set("size=64KiB", "senders=4"),
    "checkpoint": _set("hidden=16", "epochs=4", "gradient_time=5us", "fail_at=36us"),
    "incast": _set("size=64KiB", "senders=2,4", "victim=4"),
    "inference": _set("rate=6000", "requests=2", "scale=65536"),
    "jobs": _set("placement=packed", "scale=65536"),
    "jobstart": _set("hidden=16"),
    "kvload": _set("transfers=2", "load=0,50", "background=16KiB"),
    "kvmix": _set("load=50", "rounds=2"),
    "lbsweep": _set("size=64KiB"),
    "linkfail": _set("size=256KiB", "black_at=3us", "slow_at=3us"),
    "llm": _set("scale=65536", "layers=3", "batch=4"),
    "losssweep": _set("size=256KiB", "losses=0,10000"),
    "model_fit": _set("models=70b", "state_bytes=16", "scale=65536"),
    "moe": _set("tokens=4", "hidden=64", "feed_forward=64", "skew=1"),
    "fairness": _set("size=256KiB", "joined_at=5us", "window=5us"),
    "outcast": _set("size=64KiB", "senders=2", "receivers=2"),
    "pairs": _set("size=64KiB"),
    "permutation": ("--topology", FEW, *_set("sizes=64KiB")),
    "poisson": ("--topology", FEW, *_set("load=0.5", "sizes=hadoop", "flows=12")),
    "pfcstorm": _set("size=256KiB", "storm_at=3us", "storm_for=20us", "watchdog=10us"),
    "storage_rdma": _set("shards=4", "shard=16KiB", "epochs=1", "state=64KiB"),
    "trace": ("step.csv",),
    "transport_services": _set("size=256KiB", "message=16KiB", "losses=0,10000"),
    "victim": _set("size=64KiB", "senders=4"),
    "weight_sync": _set("weights=64KiB", "buckets=2", "messages=2"),
}

#: The same of scenarios that need others for a transport that keeps each flow on one path.
ONE_PATH: Mapping[str, Sequence[str]] = {
    "ccsweep": (*SCENARIOS["ccsweep"], *_set("cc=default")),
    "lbsweep": (*SCENARIOS["lbsweep"], *_set("sprays=default", "balances=flow")),
    "linkfail": _set("size=256KiB", "slow_at=3us", "sprays=default", "fail=slow"),
}

_PERMUTED = _set("sizes=16KiB")
_EXPERTS = ("dp=4", "ep=4", "tp=1", "pp=1", "batch=4", "scale=65536")
_REPLICAS = ("dp=4", "tp=1", "pp=1", "batch=4", "layers=1", "scale=65536")
#: Runs of what servers and NICs are made of: the scenario and its arguments, by what it is.
SYSTEMS: Mapping[str, Sequence[str]] = {
    **{
        product: ("allreduce", "--topology", f"{FEW},scale_up={product}{links}", *_SIZES[2:])
        for product, links in {
            **dict.fromkeys(PRODUCTS, ""),
            "ualink": ",scale_up_links=4",
        }.items()
    },
    "scale-up fault": (
        *("alltoall", "--topology", f"{FEW},scale_up=mi300x", "--sizes", "256KiB"),
        *("--fault", "t=1us scale-up h0g0:h0g1 rate=16GB/s; t=2us scale-up h0g0 down; t=4us up"),
    ),
    "8 planes": (
        *("permutation", "--topology", "fabric_planes:nic_ports=8,nic_rate=100Gbps"),
        *(*_PERMUTED, "--fault", "t=2us nic h0g0:eth3 down"),
    ),
    "16 planes": (
        *("permutation", "--topology", "fabric_planes:nic_ports=16,nic_rate=50Gbps"),
        *_PERMUTED,
    ),
    "8 ports, rocev2": (
        *("permutation", "--topology", "mrc:scale=256,homing=paths"),
        *(*_PERMUTED, "--transport", "rocev2"),
    ),
    "4 ports": (
        *("permutation", "--topology", "clos:nic_ports=4,hosts=2,gpus_per_host=2,spines=1"),
        *_PERMUTED,
    ),
    "racks": (
        *("allreduce", "--topology"),
        *("rail_clos:hosts=4,gpus_per_host=2,scale_up=nvswitch4,scale_up_hosts=2", *_SIZES[2:]),
    ),
    "NVLS": ("allreduce", *_SIZES, *_set("algorithm=nvls")),
    "Poisson flows, rocev2": ("poisson", *SCENARIOS["poisson"], "--transport", "rocev2"),
    "no GPUDirect": ("allreduce", *_SIZES, "--gpu-direct", "off:hosts=h1"),
    "no GPUDirect, PXN": (
        *("permutation", "--topology", "clos:spines=0,hosts=2,gpus_per_host=2"),
        *(*_PERMUTED, "--pxn", "always", "--gpu-direct", "off"),
    ),
    **{
        model: (
            *("llm", "--topology", FEW),
            *_set(f"model={model}", f"layers={layers}", *_EXPERTS),
        )
        for model, layers in {"grok-1": 1, "qwen3-235b": 1, "deepseek-v3": 4}.items()
    },
    **{
        f"llm, {short}": (*("llm", "--topology", FEW), *_set(*_REPLICAS, short))
        for short in ("gradient_bytes=1", "top=0.01")
    },
}

#: Scenarios that are about Ultra Ethernet alone.
UET_ALONE = ("transport_services",)
#: Names of either registry that have no comparison, and why.
APART: Mapping[str, str] = {}


def outcomes(folder: Path, scenario: str, *arguments: str) -> list[dict[str, object]]:
    """Return ``result.json`` of a run in namespaces and of the same run on a model.

    It has the digest of every frame at every port with its time, beside rows and counters.  An
    AssertionError has what a run that failed said.
    """
    if scenario == "trace":
        (folder / "step.csv").write_text(TRACE)
        arguments = tuple(str(folder / word) if word == "step.csv" else word for word in arguments)
    results = []
    arguments = (*arguments, "--capture", "none", "--workers", "1")
    runs = {
        "kernel": begun(folder, *arguments, scenario=scenario),
        "model": ModelledRun(folder, scenario, *arguments, checks=[held]),
    }
    for fabric, run in runs.items():
        status, _, errors = run.communicate()
        assert status == 0, f"{fabric}: {errors}"
        result = json.loads((run.folder / "result.json").read_text())
        assert result.pop("fabric") == fabric
        assert result["digest"]
        results.append(result)
    return results
