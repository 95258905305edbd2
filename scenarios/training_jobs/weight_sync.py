"""Weight_sync: trainers push new weights to rollout servers, as reinforcement learning does.

::

    trainers (FSDP)                 rollout servers (tensor parallel)
    h0 g0 [ 1/4 ]                   h2 g0 [1/2] g1 [1/2]
       g1 [ 1/4 ]  --- weights -->  h3 g0 [1/2] g1 [1/2]  <- keys and values: h3 to h2, ...
    h1 g0 [ 1/4 ]                   h4 ...
       g1 [ 1/4 ]                   h5 ...

Traffic: the GPUs of ``trainers`` servers have a part of each of ``buckets`` buckets of weights (of
16 bits).  Each other server is a rollout server, whose GPUs need other parts.  ``mode`` is the way
of the weights, a row each:

- none: no weights, to see what serving takes alone;
- broadcast: the first trainer gathers each bucket and broadcasts all of it to all GPUs, which keep
  their parts.  So do verl's backend ``nccl`` (all_gather + broadcast; verl/checkpoint_engine/
  README.md) and vLLM's NCCL engine (vllm.distributed.weight_transfer.nccl_engine).
- p2p: each trainer writes what it has to every GPU that needs it, by a schedule that is known
  before.  So does Perplexity's transfer (Weight Transfer for RL Post-Training in under 2 seconds,
  September 2025: 1.3 s for Kimi K2's 10^12 weights, from 256 GPUs to 128).
- relay: trainers write to the first server, and each server passes its parts on to ``fan_out``
  others: a chain with 1, as verl's backend ``nixl`` (ring p2p), or a tree.  Laminar has a tier of
  relays (Sheng et al., arXiv 2510.12633).
- delta: as p2p, but indices (4 octets) and values of the changed weights alone, a share of
  ``changed``.  A trainer compares its weights with those before; a GPU overwrites its own.  More
  than 99 % of the weights of a step are as before it (Miahi and Belilovsky, PULSE, arXiv
  2602.03839).

Serving: each rollout GPU sends ``messages`` messages of keys and values to the server before its
own, at fixed times, ``load`` per cent of its NIC's rate.  With ``serve=after`` weights are written
in place: a server does not serve until they are there.  With ``serve=beside`` it goes on, as with
in-flight updates (PipelineRL, Piche et al., arXiv 2509.19128).  In both it stands for ``swap``
after that.

Measured: ``sync``, the time until the last GPU has all new weights; ``first``, until the first
server has; ``pause``, the mean time in which a server does not serve; what the busiest GPU sends;
and the times of serving messages as those of victims.  Weights and messages are compared octet for
octet with what was sent.

What should be seen: a broadcast is bound by the NIC of the first trainer, which sends everything,
and each GPU gets more than it needs.  p2p is bound by what all trainers send together, so that more
trainers are faster, and more servers slower.  A relay sends everything from trainers once, whatever
the servers.  A delta is 3 x ``changed`` of p2p.  Serving messages wait behind weights.

Came out over UET: 132 us by broadcast, 89 by p2p, 96 by relay and 5.2 by delta.  All weights at
400 Gb/s are 84.  With ten rollout servers p2p takes 219 us and a relay 134.  99 % of serving
messages take at most 3.2 us alone, 6.1 beside a broadcast and 18.8 beside a relay.

Left out: quantisation, time to find, gather and apply weights, copies to the host, registration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.report import traffic
from emulator.scenario import Outcome, Trial, parameter, refuse_idle
from scenarios.workloads.flows import WARMUPS, scale_up_domains
from scenarios.workloads.network.training_trial import DECIMAL
from scenarios.workloads.weight_transfer import (
    DELTA,
    MODES,
    NONE,
    RELAY,
    WEIGHT_BYTES,
    Serving,
    WeightTransfer,
)
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps
from topologies.parts.design_parameters import COUNT, NUMBER, SIZE, TIME

AFTER, BESIDE = "after", "beside"
_MILLION = 10**6
COLUMNS = (
    TableColumn("mode", "mode", "", 10),
    TableColumn("trainers", "trainers", "(GPUs)", 8),
    TableColumn("rollouts", "rollouts", "(GPUs)", 8),
    TableColumn("weight_bytes", "weights", "(B)", 9),
    TableColumn("sync_us", "sync", "(us)", 9, words="all had the new weights after {} us"),
    TableColumn("first_us", "first", "(us)", 9, rank=2),
    TableColumn("pause_us", "pause", "(us)", 9),
    TableColumn("busiest_bytes", "busiest", "sends (B)", 10),
    TableColumn("fabric_bytes", "fabric", "(B)", 10, 0),
    TableColumn("victim_p50_us", "serving", "p50 us", 8, 2),
    TableColumn("victim_p99_us", "serving", "p99 us", 8, 2),
    TableColumn("time_us", "time", "(us)", 9, rank=3),
    TableColumn("ideal_us", "ideal", "(us)", 9, rank=4),
    TableColumn("retransmitted_packets", "resent", "", 6, rank=1),
    TableColumn("wrong", "#wrong", "", 6),
)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    mode: tuple[str, ...] = parameter(
        MODES, choices=MODES, many=True, help="way of the weights, a row each"
    )
    weights: int = parameter(4 * 2**20, SIZE, help="octets of the weights, 2 for each")
    buckets: int = parameter(8, COUNT, help="buckets that weights go in")
    trainers: int = parameter(2, COUNT, help="servers that train; the others are rollout servers")
    fan_out: int = parameter(1, COUNT, help="servers that one passes weights on to (relay)")
    changed: int = parameter(10_000, DECIMAL, help="share of the weights that is new (delta)")
    serve: str = parameter(
        BESIDE, choices=(AFTER, BESIDE), help="servers serve after they have weights, or beside it"
    )
    swap: int = parameter(0, TIME, help="time that a server stands when weights are there")
    load: int = parameter(
        25, replace(NUMBER, maximum=100), help="serving in per cent of a NIC's rate; 0: none"
    )
    message: int = parameter(16 * 2**10, SIZE, help="octets of a message of serving")
    messages: int = parameter(64, COUNT, help="messages of serving of each GPU")
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    iterations: int = parameter(1, COUNT, help="iterations that count, for each row")

    def __post_init__(self) -> None:
        if self.weights % WEIGHT_BYTES:
            raise UserError(
                f"weights is {self.weights} octets, no whole number of weights of {WEIGHT_BYTES}; "
                f"take {self.weights + 1}"
            )
        if self.changed > _MILLION:
            raise UserError("changed is a share of the weights; take 1 or less")
        if RELAY not in self.mode:
            refuse_idle(self, ("fan_out",), "beside other modes than relay")
        if DELTA not in self.mode:
            refuse_idle(self, ("changed",), "beside other modes than delta")
        if not self.load:
            refuse_idle(self, ("message", "messages"), "beside load=0")
            if NONE in self.mode:
                raise UserError("mode=none with load=0 sends nothing; name other modes, or a load")


def topology(parameters: Parameters) -> str:
    """Return the servers that train, and twice as many for rollouts, of two GPUs each."""
    return f"rail_clos:hosts={3 * parameters.trainers},gpus_per_host=2,spines=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    return [
        _trial(parameters, _transfer(parameters, topology, mode, seed)) for mode in parameters.mode
    ]


def _transfer(parameters: Parameters, topology: Topology, mode: str, seed: int) -> WeightTransfer:
    ranks: dict[str, list[int]] = {}
    for rank, domain in enumerate(scale_up_domains(topology)):
        ranks.setdefault(domain, []).append(rank)
    servers = list(ranks.values())
    rollouts = servers[parameters.trainers :]
    training = [rank for server in servers[: parameters.trainers] for rank in server]
    if len(rollouts) < 2 or len({len(server) for server in rollouts}) > 1:
        raise UserError(
            f"topology {topology.name} has {len(servers)} servers, and {parameters.trainers} "
            "trainers and two rollout servers or more, with as many GPUs each, are needed; add "
            "hosts, or take fewer trainers"
        )
    least = parameters.buckets * max(len(training), len(rollouts[0]))
    if parameters.weights < WEIGHT_BYTES * least:
        raise UserError(
            f"weights={parameters.weights} octets in {parameters.buckets} buckets leave a GPU "
            f"without any; take {WEIGHT_BYTES * least} or more, or fewer buckets"
        )
    serving = None
    if parameters.load:
        rate_bps = parameters.load / 100 * nic_rate_bps(topology, topology.gpus[-1].name)
        serving = Serving(
            count=parameters.messages,
            octets=parameters.message,
            every_ns=max(1, round(parameters.message * 8e9 / rate_bps)),
            beside=parameters.serve == BESIDE,
        )
    return WeightTransfer(
        topology=topology,
        trainers=training,
        servers=rollouts,
        mode=mode,
        octets=parameters.weights,
        buckets=parameters.buckets,
        fan_out=parameters.fan_out,
        changed=parameters.changed / _MILLION,
        swap_ns=parameters.swap,
        serving=serving,
        seed=seed,
    )


def _trial(parameters: Parameters, transfer: WeightTransfer) -> Trial:
    return Trial(
        collective="weight_sync",
        size_bytes=transfer.octets,
        compile=transfer.compile,
        inputs=transfer.inputs,
        expected=transfer.expected,
        memory_bytes=transfer.memory_bytes,
        warmups=parameters.warmups,
        iterations=parameters.iterations,
        fresh=True,
        victims=transfer.serving_pairs,
        observe=transfer.complete_ns,
        facts={
            "mode": transfer.mode,
            "trainers": len(transfer.trainers),
            "rollouts": sum(map(len, transfer.servers)),
            "weight_bytes": transfer.octets,
            "busiest_bytes": transfer.busiest_bytes,
        },
    )


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return when GPUs had the weights in the last iteration, and how long servers stood."""
    row = {**traffic.measured(topology, outcome), "fabric_bytes": outcome.received_bytes}
    if not outcome.observed or trial.facts["mode"] == NONE:
        return row
    domains = scale_up_domains(topology)
    complete: dict[str, int] = {}
    for rank, end in outcome.observed[-1].items():
        if isinstance(end, int):
            complete[domains[rank]] = max(end, complete.get(domains[rank], 0))
    row["sync_us"] = max(complete.values()) / 1000
    row["first_us"] = min(complete.values()) / 1000
    stood = parameters.swap if parameters.serve == BESIDE else fmean(complete.values())
    row["pause_us"] = stood / 1000
    return row
