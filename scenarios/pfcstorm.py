"""Pfcstorm: one NIC requests a pause again and again, which stops half of the fabric.

::

               spine0 ... spine3
                /  \\      /  \\
             rail0          rail1
            / | | \\        / | | \\
         h0 h1 h2 h3      h0 h1 h2 h3
         ^^
         bad NIC: it receives from h1, h2 and h3 of the other rail, and lets nothing come

Traffic: every GPU of the second rail but the bad NIC's neighbour sends to the bad NIC
(``feeders``). Besides there is one flow of each kind that has nothing to do with it:

``same_nic``    from a feeder to another GPU of the first rail
``crossing``    from another NIC of the second rail to another GPU of the first
``opposite``    from the first rail to the second
``local``       between two GPUs of the first rail

The NIC begins at ``storm_at`` and goes on for ``storm_for``; frames of the lossless class for it
wait in its switch all that time. Rows: ``none``, the fabric without a storm; ``storm``, without a
watchdog; ``watchdog``, where the queue of a NIC is taken out after a pause of ``watchdog``: its
packets are dropped and its pauses ignored. It comes back when the storm has been over for twice
that time. Every octet is compared with what was sent.

Measured: when the last octet of each kind of flow was there (``..._us``); how many ports of NICs
and of switches were paused (``paused_ports``, that of the bad NIC left out) of all, which is the
blast radius; the longest pause of any of these; storms that watchdogs found, and their drops.

What should be seen, and why: the frames for the bad NIC fill the buffers of the ports that they
came in by, the uplinks of its rail switch; so these pause the spines, the spines pause the second
rail, and that pauses the feeders' NICs, each within a few us. From then on nothing of the lossless
class goes from the second rail to the first, whoever sends it to whom: ``same_nic`` and
``crossing`` end only after the storm has (head-of-line blocking), although neither the sender's NIC
nor the receiver's is at fault. ``opposite`` and ``local`` use none of these queues, and end as if
there were no storm: acknowledgements are of another class and go on. With the watchdog the bad
queue is emptied after ``watchdog``, the buffers behind it drain, and the innocent go on at once;
the feeders still have to wait for the end of the storm, and then to repeat what was dropped.

Expected from public work: "RDMA over Commodity Ethernet at Scale" (Guo et al., SIGCOMM 2016)
reports a single NIC that stopped a data centre's network. Therefore watchdogs were put in
NICs and switches.

Came out (medians of seeds 1 to 3; a storm of 300 us from 10 us on): without a storm ``same_nic``
ends at 47 us, ``crossing`` at 39, ``opposite`` at 25, ``local`` at 23, and the feeders' incast
pauses 8 of 31 ports for up to 6.6 us.  In the storm 10 are paused, for up to 383 us, and they end
at 455, 430, 24 and 23. Nothing is dropped; 417 retransmission timers expire, and 335 packets are
sent twice for no loss. With the watchdog they end at 89, 82, 24 and 23: the innocent 42 us later
than without a storm, about the watchdog's time. 205 packets for the bad NIC are dropped; its
feeders, whose timers double meanwhile, end at 860 us.  Who stays out of the paused queue is not
touched.

RoCEv2's switches pause as late as they can (0.79 of each 1 MiB), so that three feeders of 1 MiB
hardly fill them: the storm stays where it is.  With ``--transport rocev2`` and ``size=3MiB`` 7 of
31 ports are paused, for up to 367 us, and all is over at 575 us instead of 198; whether
``crossing`` meets those ports its hash decides (with seed 1 it does not: 67 us both times).  What
the watchdog drops there is found by the retry timer, after 67 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.report import traffic
from emulator.scenario import FaultAt, Outcome, Trial, parameter, refuse_idle
from scenarios.workloads.flows import (
    WARMUPS,
    Flow,
    Traffic,
    TrafficParameters,
    one_of_each_server,
    require_joined,
    switch_ports,
    uplinks,
)
from topologies.model import Topology
from topologies.parts.design_parameters import SIZE, TIME

COLUMNS = (
    TableColumn("storm", "storm", "", 8),
    TableColumn("size_bytes", "size", "(B)", 9, rank=3),
    TableColumn("time_us", "time", "(us)", 8),
    TableColumn("feeders_us", "feeders", "(us)", 8),
    TableColumn("same_nic_us", "same NIC", "(us)", 8),
    TableColumn("crossing_us", "crossing", "(us)", 8),
    TableColumn("opposite_us", "opposite", "(us)", 8),
    TableColumn("local_us", "local", "(us)", 8, rank=2),
    TableColumn("paused_ports", "paused", "ports", 7, words="up to {most} ports were paused"),
    TableColumn("ports", "of", "ports", 5),
    TableColumn("longest_pause_us", "longest", "(us)", 8, 1),
    TableColumn("pauses", "pauses", "", 6),
    TableColumn("watchdog_storms", "storms", "found", 6),
    TableColumn("dropped_packets", "drops", "", 6),
    TableColumn("retransmitted_packets", "resent", "", 6, rank=1),
    TableColumn("timeouts", "RTOs", "", 5),
    TableColumn("wrong", "#wrong", "", 6),
)
KINDS = ("feeders", "same_nic", "crossing", "opposite", "local")
#: Servers that it takes to have one flow of each kind.
FEWEST = 4

Pair = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    size: int = parameter(2**20, SIZE, help="octets of each flow")
    warmups: int = parameter(0, WARMUPS, help="iterations before, without any storm")
    rows: tuple[str, ...] = parameter(
        ("none", "storm", "watchdog"),
        choices=("none", "storm", "watchdog"),
        many=True,
        help="what there is of storm and watchdog",
    )
    storm_at: int = parameter(10_000, TIME, help="when the bad NIC begins")
    storm_for: int = parameter(300_000, TIME, help="how long it goes on")
    watchdog: int = parameter(50_000, TIME, help="pause on end that a watchdog takes for a storm")

    def __post_init__(self) -> None:
        beside = f"beside rows={','.join(self.rows)}"
        if "watchdog" not in self.rows:
            refuse_idle(self, ("watchdog",), beside)
        if set(self.rows) == {"none"}:
            refuse_idle(self, ("storm_at", "storm_for"), beside)
        if "watchdog" in self.rows and self.watchdog >= self.storm_for:
            raise UserError(
                "watchdog is not shorter than storm_for, so that it never finds the storm; take "
                "a shorter one"
            )


def topology(parameters: Parameters) -> str:
    """Two rails of four GPUs with four uplinks each, non-blocking."""
    return "rail_clos:hosts=4,gpus_per_host=2,spines=4,uplinks_per_spine=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    kinds = cast(topology)
    pairs = [pair for pairs in kinds.values() for pair in pairs]
    flows = tuple(
        Flow(source=source, destination=destination, length=parameters.size)
        for source, destination in pairs
    )
    pattern = Traffic(topology, flows, parameters.message, parameters.in_flight, seed)
    calm_at = parameters.storm_at + parameters.storm_for
    storm = tuple(
        FaultAt(at_ns=at_ns, port=port, faults=faults)
        for at_ns, faults in ((parameters.storm_at, Faults(pause_storm=True)), (calm_at, NONE))
        for port in _bad(topology)
    )
    guarded = f"lossless:pfc_watchdog={parameters.watchdog}ns"
    return [
        pattern.trial(
            "pfcstorm",
            parameters,
            facts={"storm": row},
            switch=guarded if row == "watchdog" else "lossless",
            faults=() if row == "none" else storm,
        )
        for row in parameters.rows
    ]


def cast(topology: Topology) -> dict[str, list[Pair]]:
    """The flows of each kind, as pairs of ranks."""
    rails = one_of_each_server(topology)
    fewest = min(len(ranks) for ranks in rails.values())
    if len(rails) < 2 or fewest < FEWEST:
        raise UserError(
            f"a storm takes two rail switches with GPUs of {FEWEST} servers each, and topology "
            f"{topology.name} has {len(rails)} with those of {fewest}; take more hosts, or more "
            "rails"
        )
    require_joined(topology, next(iter(rails)))
    first, second = list(rails.values())[:2]
    bad, others = first[0], first[1:]
    neighbour, feeders = second[0], second[1:]
    return {
        "feeders": [(rank, bad) for rank in feeders],
        "same_nic": [(feeders[0], others[1])],
        "crossing": [(neighbour, others[2])],
        "opposite": [(others[0], feeders[1])],
        "local": [(others[2], others[0])],
    }


def _bad(topology: Topology) -> list[str]:
    """The switch ports of the bad NIC."""
    return switch_ports(topology, cast(topology)["feeders"][0][1])


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    kinds = cast(topology)
    bad = _bad(topology)
    pausing = {
        name: port.pause
        for name, port in outcome.ports.items()
        if port.pause is not None and name not in bad
    }
    guards = [port.pause for port in outcome.ports.values() if port.pause is not None]
    return {
        **traffic.measured(topology, outcome),
        **{f"{kind}_us": _finished_us(outcome, kinds[kind]) for kind in KINDS},
        "ports": len(pausing),
        "paused_ports": sum(pause.paused_ns > 0 for pause in pausing.values()),
        "longest_pause_us": max((pause.longest_pause_ns for pause in pausing.values()), default=0)
        / 1000,
        "watchdog_storms": sum(pause.watchdog_storms for pause in guards),
    }


def _finished_us(outcome: Outcome, pairs: list[Pair]) -> float | None:
    """Return when the last of these flows was there whole, in the slowest iteration."""
    ends = [
        iteration.flows()[pair].points[-1][0] for iteration in outcome.iterations for pair in pairs
    ]
    return max(ends) / 1000 if ends else None


def capture(parameters: Parameters, topology: Topology) -> str:
    """The bad NIC's ports and the uplinks behind them: pauses there, and where they spread."""
    bad = _bad(topology)
    switches = dict.fromkeys(port.partition(":")[0] for port in bad)
    behind = (str(end) for switch in switches for end in uplinks(topology, switch))
    return ",".join((*bad, *behind))
