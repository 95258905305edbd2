"""Model_fit: how many GPUs a model needs, and whether its traffic leaves the server.

::

    weights in 16 bits          GPUs of 80 GB, 8 in a server

      8B    16 GB     [#.......]                 1 GPU:   no traffic
     70B   140 GB     [##......]                 2 GPUs:  NVLink inside the server
    405B   810 GB     [########] [###.....]     11 GPUs:  NVLink, and the fabric between servers

Formula: GPUs = ceil(weights x (2 + ``state_bytes``) / (``memory`` - ``activation_memory``)).  The
weights alone are enough to use a model; those of all experts count.  Training with Adam in mixed
precision needs 16 octets for each weight (Rajbhandari et al., ZeRO, SC'20, section 3.1):
``state_bytes=14``.

Traffic: the first ``layers`` layers, forward, each divided over all these GPUs by tensor
parallelism: a GPU computes its share of the attention, and an AllReduce adds the outputs of all
GPUs. The feed-forward network works alike (Shoeybi et al., arXiv 1909.08053).  An AllReduce has
tokens x hidden x 2 octets.  It is a ring over the GPUs in rank order, of real numbers, and every
sum is compared.  The numbers are float32, half as many.

Models: Llama 3; with ``models=grok-1,qwen3-235b,deepseek-v3`` Grok-1 (314B weights),
Qwen3-235B-A22B and DeepSeek-V3 (671B).  With
``cluster=100000`` the row has how many such replicas a cluster of so many GPUs holds: xAI's
Colossus has 100,000, and 200,000 later (NVIDIA, 28 October 2024).  `topologies/README.md` has its
fabric.

``scale`` divides the octets of each AllReduce and the time of computing alike, so that their ratio
stays.  Latencies are not divided: they weigh more than in a job of full size.  The computing takes
2 FLOPs for each weight and token, without the attention's scores, at ``tflops`` TFLOPS a GPU.
Llama 3 reports 380 to 430 on H100 GPUs (arXiv 2407.21783, table 4).

Measured: the time of these layers, its ideal, and the octets over NVLink and over the fabric.
``exposed`` is the share of the time in which GPUs do not compute.

What should be seen: one GPU has nothing to send.  Two stay on NVLink.  With eleven the ring crosses
from server to server twice, and each crossing NIC carries 2(n-1)/n of every AllReduce: it, and
not NVLink, sets the pace, since NVLink is many times faster.  This is why models are divided over
servers in other ways than tensor parallelism (``three_d``).

Here, over UET: GPUs do not compute for 0 %, 16.5 % and 81.8 % of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.scenario import Contents, Outcome, Trial, parameter
from scenarios.collectives.size_sweep import WARMUPS
from scenarios.workloads.network.tensors import ELEMENT_BYTES, TensorProgram, TensorWork, octets_of
from scenarios.workloads.transformer.shape import SHAPES, TransformerShape
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, NUMBER, SIZE

#: Octets of a number of 16 bits.
NUMBER_BYTES = 2


@dataclass(frozen=True)
class ModelSize:
    """A model of ``parameters`` in all, as it is called, and its shape."""

    shape: TransformerShape
    parameters: int

    @property
    def name(self) -> str:
        return self.shape.name

    @property
    def weight_bytes(self) -> int:
        """Return the octets of all weights in 16 bits."""
        return self.parameters * NUMBER_BYTES

    def gpus(self, memory: int, state_bytes: int = 0, activation_bytes: int = 0) -> int:
        """Return the least number of GPUs with ``memory`` octets each that hold the model.

        Each weight has ``state_bytes`` beside it (gradient, optimiser).  Each GPU keeps
        ``activation_bytes`` of its memory for activations.
        """
        octets = self.parameters * (NUMBER_BYTES + state_bytes)
        return -(-octets // (memory - activation_bytes))

    def activation_bytes(self, tokens: int) -> int:
        """Return the octets of ``tokens`` between two layers, in 16 bits."""
        return tokens * self.shape.hidden * NUMBER_BYTES


MODELS = {
    name: ModelSize(SHAPES[name], billions * 10**9)
    for name, billions in (
        *(("8b", 8), ("70b", 70), ("405b", 405)),
        *(("grok-1", 314), ("qwen3-235b", 235), ("deepseek-v3", 671)),
    )
}


COLUMNS = (
    TableColumn("model", "model", "", 6),
    TableColumn("model_bytes", "memory", "(GB)", 8, 0, divisor=1e9),
    TableColumn("gpus", "GPUs", "", 5),
    TableColumn("servers", "servers", "", 7),
    TableColumn("replicas", "replicas", "", 8),
    TableColumn("scale", "scale", "1/", 6, rank=1),
    TableColumn("size_bytes", "AllReduce", "(B)", 10),
    TableColumn("time_us", "time", "(us)", 9),
    TableColumn("ideal_us", "ideal", "(us)", 9),
    TableColumn("efficiency", "of ideal", "(%)", 8, 1, percent=True),
    TableColumn(
        "exposed",
        "exposed",
        "(%)",
        7,
        1,
        percent=True,
        words="communication was exposed for {} % of the time",
    ),
    TableColumn("nvlink_bytes", "NVLink", "(B)", 10),
    TableColumn("fabric_bytes", "fabric", "(B)", 10, 0),
    TableColumn("retransmitted_packets", "resent", "", 6),
    TableColumn("wrong", "#wrong", "", 6),
)
SERVER_GPUS = 8
SERVERS = 2
_SOME = replace(SIZE, minimum=0)
_SCALE = replace(COUNT, maximum=2**20)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    models: tuple[str, ...] = parameter(
        ("8b", "70b", "405b"), choices=tuple(MODELS), many=True, help="models, a row each"
    )
    memory: int = parameter(80 * 10**9, SIZE, help="memory of a GPU")
    cluster: int = parameter(
        0, replace(NUMBER, maximum=2**20), help="GPUs of a cluster, which is counted and not run"
    )
    state_bytes: int = parameter(0, NUMBER, help="octets that each weight has beside its own 2")
    activation_memory: int = parameter(0, _SOME, help="memory of a GPU kept for activations")
    layers: int = parameter(1, COUNT, help="layers whose traffic is run")
    tokens: int = parameter(8192, COUNT, help="tokens of the sequence")
    tflops: int = parameter(400, COUNT, help="TFLOPS of a GPU")
    scale: int = parameter(1024, _SCALE, help="what octets and computing times are divided by")
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    iterations: int = parameter(1, COUNT, help="iterations that count")

    def __post_init__(self) -> None:
        if self.activation_memory >= self.memory:
            raise UserError(
                f"activation_memory is {self.activation_memory} B and a GPU has {self.memory} B; "
                "leave some for the weights"
            )

    def gpus(self, model: ModelSize) -> int:
        """Return how many GPUs ``model`` needs."""
        return model.gpus(self.memory, self.state_bytes, self.activation_memory)


def topology(parameters: Parameters) -> str:
    """Return servers of eight GPUs for the largest model, two at least; two spines."""
    most = max(parameters.gpus(MODELS[name]) for name in parameters.models)
    servers = max(SERVERS, -(-most // SERVER_GPUS))
    return f"rail_clos:hosts={servers},gpus_per_host={SERVER_GPUS},spines=2"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    return [_trial(parameters, topology, MODELS[name], seed) for name in parameters.models]


def _trial(parameters: Parameters, topology: Topology, model: ModelSize, seed: int) -> Trial:
    gpus, there = parameters.gpus(model), len(topology.gpus)
    if gpus > there:
        raise UserError(
            f"the {model.name} model needs {gpus} GPUs and topology {topology.name} has {there}; "
            "add hosts, or leave --topology out"
        )
    whole = model.activation_bytes(parameters.tokens)
    count = whole // parameters.scale // ELEMENT_BYTES
    if count < gpus:
        raise UserError(
            f"at a scale of {parameters.scale} an AllReduce of the {model.name} model has {count} "
            f"numbers for {gpus} GPUs; take scale={max(1, whole // ELEMENT_BYTES // gpus // 1024)}"
        )
    work = TensorWork(topology, partial(_write, parameters, model, count))
    exchanges = work.size.exchanges
    reductions = 2 * parameters.layers

    def part(rank: int, number: int) -> np.ndarray:
        rng = np.random.default_rng((seed, rank, number))
        bound = 2**24 // gpus  # float32 holds every sum exactly, so that its order cannot matter
        return rng.integers(-bound, bound, count, np.int32).astype(np.float32)

    @cache
    def total() -> np.ndarray:
        return np.concatenate(
            [sum(part(rank, number) for rank in range(gpus)) for number in range(reductions)]
        )

    def inputs(rank: int) -> Contents:
        if rank >= gpus or gpus == 1:
            return {}
        return {"parts": np.concatenate([part(rank, number) for number in range(reductions)])}

    def expected(rank: int) -> Contents:
        return {"sums": total()} if rank < gpus and gpus > 1 else {}

    return Trial(
        collective=f"model_fit {model.name}",
        size_bytes=count * ELEMENT_BYTES,
        compile=work.compile,
        inputs=inputs,
        expected=expected,
        memory_bytes=work.size.memory_bytes,
        warmups=parameters.warmups,
        iterations=parameters.iterations,
        fresh=True,
        facts={
            "model": model.name,
            "model_bytes": model.parameters * (2 + parameters.state_bytes),
            "gpus": gpus,
            "servers": len({gpu.server for gpu in topology.gpus[:gpus]}),
            **({"replicas": parameters.cluster // gpus} if parameters.cluster else {}),
            "scale": parameters.scale,
            "compute_ns": parameters.layers * sum(_times_ns(parameters, model)),
            "fabric_bytes_derived": octets_of(exchanges, nvlink=False),
            "nvlink_bytes": octets_of(exchanges, nvlink=True),
        },
    )


def _times_ns(parameters: Parameters, model: ModelSize) -> tuple[int, int]:
    """Return what each GPU computes of a layer, scaled down: attention and feed-forward (ns)."""
    flops_per_ns = parameters.tflops * 1000 * parameters.gpus(model) * parameters.scale
    attention = model.shape.attention_weights
    active = model.shape.active_layer_weights - attention
    return (
        round(2 * attention * parameters.tokens / flops_per_ns),
        round(2 * active * parameters.tokens / flops_per_ns),
    )


def _write(parameters: Parameters, model: ModelSize, count: int, tensors: TensorProgram) -> None:
    ranks = range(parameters.gpus(model))
    reductions = 2 * parameters.layers
    needed = list(ranks) if len(ranks) > 1 else []
    parts = [[tensors.new(rank, "parts", count) for _ in range(reductions)] for rank in needed]
    ready: list[tuple[int, ...]] = [() for _ in ranks]
    for number in range(reductions):
        half = "feed-forward" if number % 2 else "attention"
        with tensors.program.named(f"layer {number // 2 + 1}, {half}"):
            duration = _times_ns(parameters, model)[number % 2]
            ready = [(tensors.compute(rank, duration, ready[rank]),) for rank in ranks]
            held = [
                # a copy, since sums are made in place and the next iteration needs the part again
                tensors.reduce(
                    replace(parts[rank][number], ready=ready[rank]),
                    tensors.new(rank, "partial sums", count),
                    "replace",
                )
                for rank in needed
            ]
            if held:
                sums = tensors.all_reduce(held, "sums", "outputs of the GPUs' shares of a layer")
                ready = [one.ready for one in sums]


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the share of the time in which GPUs do not compute, and what the fabric carried."""
    return {
        "exposed": 1 - trial.facts["compute_ns"] / outcome.mean_ns,
        "fabric_bytes": outcome.received_bytes,
    }
