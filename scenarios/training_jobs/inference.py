"""Inference: prompts are computed on some GPUs, and answers on others, which need their KV cache.

::

      requests        prefill instances               decode instances
     - - - - - ->    +--------------------+          +--------------------+
      arrive at      | h0g0 ...      h0g3 |          | h3g0 ...      h3g3 |  token, token, ...
      random         | h1g0 ...      h1g3 | -------> |                    |
                     | h2g0 ...      h2g3 | KV cache +--------------------+
                     +--------------------+ over the fabric

Traffic: request r is computed by prefill instance r mod P, one after the other.  The keys and
values of its prompt are 2 x layers x KV heads x head size x 2 octets a token. They are written to
the GPUs of decode instance r mod D. ``transfer=whole`` writes them when the prompt is computed,
``layers`` layer by layer.  Each GPU has its heads; where both sides have unequally many GPUs, parts
are divided.  Then decode makes ``output`` tokens, the first one included.  A step ends with an
exchange. With tensor parallelism (``decode_by=tensor``) it is the AllReduces of all layers. With
experts (``decode_by=experts``, of a model with experts) it is a dispatch from the GPU with the
request to the others, and the combine.

``scale`` divides octets and computing times alike, so that their ratio stays, and the exchanges of
all layers of a token are one.  Latencies are not divided.  ``rate`` is that of the full-size job:
gaps between arrivals are divided, too.  Times are as they ran, scaled down; tokens/s are those of
the full size.  How long GPUs compute is a formula (``scenarios.workloads.serving``):
prefill by FLOPs, decode by octets of memory.  Requests of a GPU are a batch and do not slow each
other's steps.  Exchanges inside prefill are part of its efficiency.

The seed draws all contents, and nobody computes them.  Every octet of keys and values and of every
exchange is compared at its receiver.

Measured, by the IETF draft on inference fabrics (draft-calabria-bmwg-ai-fabric-inference-bench):
TTFT = wait + T_prefill + T_transfer + T_decode_init, with its means and percentiles (nearest rank).
``fabric`` is the share of T_transfer in it. ITL is the time between tokens, and tokens/s are those
of all requests together. ``KV`` is the rate of transfers while they are under way (GB/s). Ideal is
a lower bound of the time until all answers are done.

What should be seen: prefill is most of TTFT, and at higher rates the wait for it.  Layer by layer
the transfer hides behind the computing, all but its last layer.  A transfer is slowest when several
prefill instances send to one decode instance at the same time (``arrivals=0us,0us,0us``).

Here, over UET, at 6 requests a second: 36.7 us of wait, 360.9 of prefill, 10.3 of transfer and 10.9
of decode.  Layer by layer the transfer takes 1.4 us.  Three transfers at once take 21.7 us each
instead of 8.0, and 194 packets are trimmed and leave again. Over RoCEv2, on its own switches, none
is lost, and they take 21.3 us.  With the experts of 8x7b over two hosts (``models=8x7b
decode_by=experts decode_gpus=8``) caches and tokens share NICs. At 6 requests a second ITL p99 is
14.7 us with whole transfers and 9.4 layer by layer, at a median of 9.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from emulator.arithmetic import percentile
from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.scenario import Outcome, Trial, parameter, refuse_idle
from scenarios.collectives.collective_parameters import EXPONENT
from scenarios.collectives.size_sweep import WARMUPS
from scenarios.workloads import serving
from scenarios.workloads.exchange_times import (
    ExchangeParts,
    fabric_octets_of,
    named_parts,
    spans_of,
)
from scenarios.workloads.transformer.shape import SHAPES
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, TIME

COLUMNS = (
    TableColumn("model", "model", "", 5),
    TableColumn("scale", "scale", "1/", 5, rank=5),
    TableColumn("rate", "rate", "(req/s)", 7, 1),
    TableColumn("transfer", "transfer", "", 8),
    # a comparison shows the first of those that differ by transport
    TableColumn(
        "ttft_p50_us",
        "TTFT p50",
        "(us)",
        8,
        1,
        words="half of the requests had their first token within {} us",
    ),
    TableColumn("ttft_p99_us", "TTFT p99", "(us)", 8, 1),
    TableColumn("wait_us", "wait", "(us)", 7, 1),
    TableColumn("prefill_us", "prefill", "(us)", 7, 1, rank=2),
    TableColumn("transfer_us", "transfer", "(us)", 8),
    TableColumn("decode_init_us", "decode", "(us)", 7, 1, rank=3),
    TableColumn("ttft_fabric_share", "fabric", "(%)", 6, 1, percent=True, rank=1),
    TableColumn("itl_p50_us", "ITL p50", "(us)", 7),
    TableColumn("itl_p99_us", "ITL p99", "(us)", 7),
    TableColumn("tokens_per_second", "tokens", "(1/s)", 7, 1),
    TableColumn("transfer_gbps", "KV", "(GB/s)", 7, rank=4),
    TableColumn("efficiency", "of ideal", "(%)", 8, 1, percent=True),
    TableColumn("fabric_bytes", "NIC data", "(MB)", 8, divisor=1e6, rank=6),
    TableColumn("retransmitted_packets", "resent", "", 6, rank=2),
    TableColumn("wrong", "#wrong", "", 6),
)
GPUS_PER_HOST = 4
#: A time between tokens beyond which the answer stalls (the BMWG draft on inference, 10.2).
STALL_NS = 100_000_000
_SCALE = replace(COUNT, maximum=2**20)
_ARRIVAL = replace(TIME, maximum=10**13)
_PROMPT = replace(COUNT, maximum=2**20)
_RATE = replace(EXPONENT, name="requests per second", minimum=1, maximum=10**9)
#: Operations of all GPUs beyond which a run would take hours.
MOST_OPERATIONS = 2**20


@dataclass(frozen=True, kw_only=True)
class Parameters:
    models: tuple[str, ...] = parameter(
        ("70b",), choices=tuple(SHAPES), many=True, help="models, a row each"
    )
    rate: tuple[int, ...] = parameter(
        (2000, 6000), _RATE, many=True, help="requests a second of the full-size job, a row each"
    )
    transfer: tuple[str, ...] = parameter(
        ("whole", "layers"),
        choices=("whole", "layers"),
        many=True,
        help="whether keys and values leave together, or layer by layer",
    )
    requests: int = parameter(12, COUNT, help="requests that arrive at random (Poisson)")
    arrivals: tuple[int, ...] = parameter(
        (), _ARRIVAL, many=True, help="times of arrival instead, of the full-size job"
    )
    prompt: int = parameter(4096, _PROMPT, help="tokens of a prompt")
    output: int = parameter(8, COUNT, help="tokens of an answer")
    prefill: int = parameter(3, COUNT, help="prefill instances")
    prefill_gpus: int = parameter(4, COUNT, help="GPUs of a prefill instance")
    decode: int = parameter(1, COUNT, help="decode instances")
    decode_gpus: int = parameter(4, COUNT, help="GPUs of a decode instance")
    decode_by: str = parameter(
        "tensor", choices=("tensor", "experts"), help="how a decode instance divides the model"
    )
    slots: int = parameter(
        8, COUNT, help="requests that decode at a time in an instance; by experts: in a GPU"
    )
    tflops: int = parameter(400, COUNT, help="TFLOPS that prefill reaches on a GPU")
    bandwidth: int = parameter(3350, COUNT, help="GB/s that a GPU reads from its memory")
    scale: int = parameter(1024, _SCALE, help="what octets and computing times are divided by")
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    iterations: int = parameter(1, COUNT, help="iterations that count, of the same requests")

    def __post_init__(self) -> None:
        if self.arrivals:
            refuse_idle(self, ("rate", "requests"), "beside arrivals")
        for name in self.models:
            self._check(name)
        layers = max(SHAPES[name].layers for name in self.models)
        a_request = 2 * layers * (self.prefill_gpus + self.decode_gpus)
        a_request += 3 * self.output * self.decode_gpus**2
        if self.count * a_request > MOST_OPERATIONS:
            raise UserError(
                f"{self.count} requests have about {self.count * a_request} operations, and a run "
                f"can have {MOST_OPERATIONS}; take fewer requests, tokens of output, or GPUs"
            )

    def _check(self, name: str) -> None:
        """Raise UserError unless the model ``name`` can be divided by the parameters."""
        shape = SHAPES[name]
        if self.decode_by == "experts" and shape.experts % self.decode_gpus:
            raise UserError(
                f"decode_by=experts divides the experts of a model over decode_gpus, and {name} "
                f"has {shape.experts} for {self.decode_gpus} GPUs; take models=8x7b and "
                "decode_gpus=2, 4 or 8"
            )
        divided = {"prefill_gpus": self.prefill_gpus}
        if self.decode_by == "tensor":
            divided["decode_gpus"] = self.decode_gpus
        for field, gpus in divided.items():
            if shape.key_value_heads % gpus:
                raise UserError(
                    f"{field} is {gpus}, and the {shape.key_value_heads} KV heads of {name} do not "
                    "divide by it; take 1, 2, 4 or 8"
                )
        if not self.job(name, "layers").layer_cache_bytes:
            octets = self.prompt * shape.key_value_bytes()
            raise UserError(
                f"at a scale of {self.scale} a layer of {name} has no octet of keys and values for "
                f"each GPU; take scale={max(1, octets // 4096)}"
            )

    @property
    def count(self) -> int:
        return len(self.arrivals) or self.requests

    @property
    def rates(self) -> tuple[int | None, ...]:
        """Return the rates of the rows; listed arrivals have none."""
        return (None,) if self.arrivals else self.rate

    def job(self, model: str, transfer: str) -> serving.ServingJob:
        return serving.ServingJob(
            shape=SHAPES[model],
            prompt=self.prompt,
            output=self.output,
            prefill=self.prefill,
            prefill_gpus=self.prefill_gpus,
            decode=self.decode,
            decode_gpus=self.decode_gpus,
            by_experts=self.decode_by == "experts",
            by_layer=transfer == "layers",
            slots=self.slots,
            tflops=self.tflops,
            bandwidth_gbps=self.bandwidth,
            scale=self.scale,
        )


def topology(parameters: Parameters) -> str:
    """Hosts with four GPUs each, enough for all instances, four rail switches, two spines."""
    gpus = parameters.job(parameters.models[0], "whole").gpus
    return f"rail_clos:hosts={-(-gpus // GPUS_PER_HOST)},gpus_per_host={GPUS_PER_HOST},spines=2"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    needed, there = parameters.job(parameters.models[0], "whole").gpus, len(topology.gpus)
    if needed > there:
        raise UserError(
            f"the instances need {needed} GPUs and topology {topology.name} has {there}; add "
            "hosts, take fewer instances, or leave --topology out"
        )
    return [
        _trial(parameters, topology, (model, rate, transfer), seed)
        for model in parameters.models
        for rate in parameters.rates
        for transfer in parameters.transfer
    ]


def _trial(
    parameters: Parameters, topology: Topology, row: tuple[str, int | None, str], seed: int
) -> Trial:
    model, rate, transfer = row
    if rate is None:
        arrivals = serving.listed_arrivals(parameters.arrivals, parameters.scale)
    else:
        arrivals = serving.poisson_arrivals(
            parameters.requests, rate / 1000, parameters.scale, seed
        )
    job = parameters.job(model, transfer)
    program = serving.ServingProgram(job, arrivals, topology, seed)
    return Trial(
        collective=f"inference {model}",
        size_bytes=job.cache_bytes,
        compile=program.compile,
        inputs=program.inputs,
        expected=program.expected,
        memory_bytes=program.memory_bytes,
        warmups=parameters.warmups,
        iterations=parameters.iterations,
        fresh=True,
        observe=named_parts,
        facts={
            "model": model,
            "scale": parameters.scale,
            "rate": None if rate is None else rate / 1000,
            "transfer": transfer,
            "placement": f"{job.prefill}P{job.decode}D",
            "arrivals_ns": list(arrivals),
            "step_us": job.step_ns / 1000,
        },
    )


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the times of requests, pooled over all iterations."""
    facts = trial.facts
    arrivals = facts["arrivals_ns"]
    assert outcome.wire is not None
    job = parameters.job(str(facts["model"]), str(facts["transfer"]))
    served = serving.ServingProgram(job, arrivals, topology, 0).requests
    latest = outcome.iterations[-1]
    parts = ExchangeParts(topology, latest, spans_of(outcome), outcome.wire)
    runs = [serving.request_times(job, served, parts, one) for one in outcome.iterations]
    times = [one for run in runs for one in run]
    span = fmean(max(one.tokens_ns[-1] for one in run) for run in runs)
    return {
        **_latencies(times),
        **_stalls(times, job.scale),
        "itl_exchange_us": _mean([gap - job.step_ns for one in times for gap in one.itl_ns]),
        "transfer_gbps": fmean(one.transfer_gbps for one in times),
        "tokens_per_second": 1e9 * len(arrivals) * job.output / (span * job.scale),
        "prompt_tokens_per_second": 1e9 * len(arrivals) * job.prompt / (span * job.scale),
        "request_times": [_moments(one) for one in runs[-1]],
        "fabric_bytes": outcome.received_bytes,
        "fabric_bytes_derived": fabric_octets_of(latest),
    }


def _latencies(times: Sequence[serving.RequestTimes]) -> dict[str, object]:
    first = [one.ttft_ns for one in times]
    gaps = [gap for one in times for gap in one.itl_ns]
    found: dict[str, object] = {
        "wait_us": _mean([one.wait_ns for one in times]),
        "prefill_us": _mean([one.prefill_end_ns - one.prefill_start_ns for one in times]),
        "transfer_us": _mean([one.transfer_ns for one in times]),
        "decode_init_us": _mean([one.decode_init_ns for one in times]),
        "ttft_us": _mean(first),
        "ttft_fabric_share": fmean(one.fabric_share for one in times),
    }
    for name, values in (("ttft", first), ("itl", gaps)):
        for share in (50, 95, 99):
            value = percentile(values, share / 100)
            found[f"{name}_p{share}_us"] = None if value is None else value / 1000
    return found


def _stalls(times: Sequence[serving.RequestTimes], scale: int) -> dict[str, object]:
    """Return the tail of times between tokens, how many there are, and how many are stalls.

    A stall is longer than ``STALL_NS`` at the model's full size.
    """
    gaps = [gap for one in times for gap in one.itl_ns]
    tail = percentile(gaps, 0.999)
    return {
        "itl_p999_us": None if tail is None else tail / 1000,
        "itl_max_us": max(gaps) / 1000 if gaps else None,
        "itl_samples": len(gaps),
        "itl_stalls": sum(gap * scale > STALL_NS for gap in gaps),
    }


def _mean(values_ns: Sequence[int]) -> float | None:
    """Return the mean in microseconds; of nothing there is none."""
    return fmean(values_ns) / 1000 if values_ns else None


def _moments(one: serving.RequestTimes) -> dict[str, object]:
    return {
        "arrival_us": one.arrival_ns / 1000,
        "prefill_us": [one.prefill_start_ns / 1000, one.prefill_end_ns / 1000],
        "cached_us": one.cached_ns / 1000,
        "tokens_us": [at / 1000 for at in one.tokens_ns],
    }
