"""Jobs: several training jobs beside each other on one fabric, and how they slow each other down.

::

    2 jobs of 8 GPUs        host 0     host 1     host 2     host 3
    packed                  AA AA      AA AA      BB BB      BB BB
    spread                  AA BB      AA BB      AA BB      AA BB
    random                  AB AA      BA BB      AA BB      BA AB

Traffic: each job is a training step as in ``llm``, with its own groups on its own GPUs.  The GPUs
of a tensor-parallel group stay in one host (``tp`` GPUs).  ``packed`` fills host after host,
``spread`` gives each job a part of every host, and ``random`` deals out these groups by the seed.

For each placement the jobs run one by one, and then all at once.  The rows name them.  Both have
the same fabric, GPUs and sizes, so that the ratio of their times is what sharing costs.  The BMWG
draft on AI training fabrics calls it interference (section 10.3, multi-tenant).

Measured: the time until the last job is done, its ideal, octets and retransmissions, and

- slow-down: of all at once, the JCT of each job over its own alone, and the worst of them;
- spine: the part of the octets between hosts that leaves the rail switch it came to.

What should be seen: GPUs of one rail share a rail switch, and switches do not block.  Jobs that
stay on their rails, packed or spread, do not notice each other: their slow-down is 1.  Placed at
random, rings go from rail to rail, and both jobs share the uplinks.  The default fabric has one of
them for four GPUs (``uplinks_per_spine=1``).  Alone, random is slower than packed already.

Here, over UET: packed 54.4 us and spread 64.1 us, alone and together.  At random 102 and 99 us
alone, and together 1.19 and 1.22 times as long.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.scenario import Outcome, Trial, parameter
from scenarios.workloads.flows import switch_ports
from scenarios.workloads.transformer import step_trial
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, NUMBER

PACKED, SPREAD, RANDOM = "packed", "spread", "random"
PLACEMENTS = (PACKED, SPREAD, RANDOM)
Unit = tuple[int, ...]


def placed(
    topology: Topology, placement: str, jobs: int, gpus: int, unit: int, seed: int
) -> list[tuple[int, ...]]:
    """Return the ranks of each of ``jobs`` of ``gpus`` GPUs, in units of ``unit``.

    Raises UserError if there are not enough of them.
    """
    needed = gpus // unit
    found = _in_order(units(topology, unit), placement, seed)
    if len(found) < jobs * needed:
        raise UserError(
            f"{jobs} jobs of {gpus} GPUs need {jobs * needed} units of {unit} in one server each, "
            f"and topology {topology.name} has {len(found)}; take fewer jobs, or more hosts"
        )
    chosen = (sorted(found[job * needed : (job + 1) * needed]) for job in range(jobs))
    return [tuple(rank for one in job for rank in one) for job in chosen]


def units(topology: Topology, unit: int) -> list[list[Unit]]:
    """Return the units of each server, in rank order; GPUs that are left over are in none."""
    servers: dict[object, list[int]] = {}
    for rank, gpu in enumerate(topology.gpus):
        servers.setdefault(gpu.server, []).append(rank)
    return [
        [tuple(ranks[at : at + unit]) for at in range(0, len(ranks) - unit + 1, unit)]
        for ranks in servers.values()
    ]


def _in_order(servers: list[list[Unit]], placement: str, seed: int) -> list[Unit]:
    """Return the units in the order in which jobs get them."""
    packed = [one for server in servers for one in server]
    if placement == PACKED:
        return packed
    if placement == RANDOM:
        random.Random(f"jobs {seed}").shuffle(packed)
        return packed
    most = max(map(len, servers), default=0)
    return [server[turn] for turn in range(most) for server in _with(servers, turn)]


def _with(servers: Iterable[list[Unit]], turn: int) -> list[list[Unit]]:
    return [server for server in servers if turn < len(server)]


COLUMNS = (
    TableColumn("placement", "placement", "", 9),
    TableColumn("running", "jobs", "", 7),
    TableColumn("gpus", "GPUs", "", 5),
    TableColumn("scale", "scale", "1/", 6, rank=1),
    TableColumn("time_us", "JCT", "(us)", 9),
    TableColumn("ideal_us", "ideal", "(us)", 9),
    TableColumn("efficiency", "of ideal", "(%)", 8, 1, percent=True),
    TableColumn("slowdowns", "slow-down", "of each", 13),
    TableColumn(
        "slowdown",
        "worst",
        "",
        6,
        words="beside others a job took up to {most} times as long as alone",
    ),
    TableColumn("exposed", "exposed", "(%)", 7, 1, percent=True),
    TableColumn("spine_share", "spine", "(%)", 6, 1, percent=True),
    TableColumn("fabric_bytes", "NIC data", "(MB)", 8, divisor=1e6),
    TableColumn("retransmitted_packets", "resent", "", 6),
    TableColumn("wrong", "#wrong", "results", 7),
)
HOST_GPUS = 4


@dataclass(frozen=True, kw_only=True)
class Parameters(step_trial.StepParameters):
    jobs: int = parameter(2, COUNT, help="jobs beside each other, all alike")
    placement: tuple[str, ...] = parameter(
        PLACEMENTS, choices=PLACEMENTS, many=True, help="where their GPUs are, rows for each"
    )
    dp: int = parameter(8, COUNT, help="replicas of a job")
    tp: int = parameter(1, COUNT, help="ways of tensor parallelism, in one host")
    pp: int = parameter(1, COUNT, help="pipeline stages")
    layers: int = parameter(1, NUMBER, help="layers of the model; 0: all that it has")
    batch: int = parameter(8, step_trial.LARGE_COUNT, help="sequences of a step of each job")
    scale: int = parameter(
        8192, step_trial.LARGE_COUNT, help="what octets and computing times are divided by"
    )

    def __post_init__(self) -> None:
        self.check((self.dp,))


def topology(parameters: Parameters) -> str:
    """Return hosts of four GPUs for all jobs, and one uplink of each rail switch to a spine."""
    gpus = parameters.jobs * parameters.layout(parameters.dp).ranks
    hosts = max(2, -(-gpus // HOST_GPUS))
    return f"rail_clos:hosts={hosts},gpus_per_host={HOST_GPUS},spines=1,uplinks_per_spine=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    return [
        trial
        for placement in parameters.placement
        for trial in _trials(parameters, topology, placement, seed)
    ]


def _trials(
    parameters: Parameters, topology: Topology, placement: str, seed: int
) -> Iterator[step_trial.StepTrial]:
    step = parameters.step(parameters.dp)
    ranks = placed(topology, placement, parameters.jobs, step.layout.ranks, parameters.tp, seed)
    jobs = [
        step_trial.StepJob(step=step, gpus=gpus, name=f"job {number + 1}")
        for number, gpus in enumerate(ranks)
    ]
    earlier: dict[str, float] = {}
    rows = [[job] for job in jobs]
    if len(jobs) > 1:
        rows.append(jobs)
    for running in rows:
        run = step_trial.StepRun(topology, running, parameters.new_scale(), parameters.choices)
        names = "+".join(job.name.removeprefix("job ") for job in running)
        yield run.trial(
            f"jobs {placement} {names}",
            {
                "placement": placement,
                "running": names,
                "gpus": sum(len(job.gpus) for job in running),
                "spine_share": spine_share(run),
            },
            row=names,
            earlier=earlier,
            warmups=parameters.warmups,
            iterations=parameters.iterations,
        )


def spine_share(run: step_trial.StepRun) -> float:
    """Return the part of the octets between hosts whose ends have no switch in common."""
    topology = run.topology
    switches = [
        {port.partition(":")[0] for port in switch_ports(topology, rank)}
        for rank in range(len(topology.gpus))
    ]
    total = crossing = 0
    for (source, destination), octets in run.sizes.written.items():
        total += octets
        crossing += 0 if switches[source] & switches[destination] else octets
    return crossing / total if total else 0.0


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    assert isinstance(trial, step_trial.StepTrial)
    run = trial.run
    times = trial.times(outcome)
    row = step_trial.measured(run, outcome, times, [gpu for job in run.jobs for gpu in job.gpus])
    if times is None:
        return row
    ended = {job.name: times.end_ns(job.gpus) for job in run.jobs}
    row["jct_us"] = [end / 1000 for end in ended.values()]
    if len(run.jobs) == 1:
        trial.earlier.update(ended)
        return {**row, "slowdowns": "-", "slowdown": 1.0}
    ratios = [end / trial.earlier[name] for name, end in ended.items()]
    return {
        **row,
        "slowdown_by_job": ratios,
        "slowdowns": " ".join(f"{ratio:.2f}" for ratio in ratios),
        "slowdown": max(ratios),
    }
