"""Losssweep: the same transfer over cables that lose a frame now and then.

::

        h0g0          h1g0          h2g0          h3g0      each sends to the next one
          |             |             |             |
      +-------------------------------------------------+
      |                      rail0                      |   every port down to a GPU loses
      +-------------------------------------------------+   that share of its frames

Traffic: a ring of GPUs on one rail switch, each of which writes ``size`` octets to the next one. No
link carries more than one flow each way, so only losses can hold a flow up.  One row for each rate
of ``losses``, in frames lost per million, drawn independently from the run's seed for every port
that faces a GPU: of all frames that leave through it, data and acknowledgements alike. One more for
each bit error ratio of ``bers``, by which long frames are lost more often than short ones.
Congestion is left out on purpose; a queue would mix its own losses in.  Every octet is compared
with what was sent.

Measured: completion time against the ideal without losses; what was lost (``drops``), what was
sent again, in packets and octets; message times; timeouts.

What should be seen, and why: a transport that repeats only what is missing loses about one packet's
time per loss and RTT, as long as other packets go on: UET, which acknowledges selectively, and
RoCEv2 with selective repeat. With go-back-N everything behind a loss is sent again: a window of
bandwidth-delay product B and packets of P octets has B / P packets in flight. Each loss wastes as
many, and goodput falls as 1 / (1 + loss * B / P). Where the last packets of a message are lost, no
later packet reveals it to the receiver, and a timer must.

Expected from public work: IRN (Mittal et al., SIGCOMM 2018) finds go-back-N the main reason why
RoCE needs lossless Ethernet. Selective repeat with a bounded window is at least as good without it.

Came out (defaults, 1 % lost, seeds 1 and 2, against no loss): go-back-N 1.51 times as long, with 27
packets sent again per lost frame, and 67 ms where one of the last frames is lost and only the timer
finds it; RoCEv2 with selective repeat 1.03; UET 1.03 and 1.24.  Order and reasons are as expected
between the recoveries of RoCEv2; on one path UET lies between them. Since it sprays, it must wait
for a window and a half of newer packets, or four round trips, before a packet counts as lost.  At
0.1 % UET takes 1.00 times as long, go-back-N 1.03 and 1.13.

With link layer retry (``--switch lossless:llr=on``, UES 5.1) the cable replays the frame, 1.4 us
later, and all behind it. At a bit error ratio of 1e-7 (3 of 10,000 full frames) go-back-N takes
1.13 and 1.25 times as long without and 1.05 and 1.11 with it, at 1e-6 134 and 201 ms, which are
timers, against 1.6 and 1.7 times. UET gains nothing: 1.00 without and 1.11 with it, 1.18 and 1.22
against 1.9. It repeats single packets and goes on meanwhile, where the cable stands for a round
trip at each error, for all flows alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulator.dataplane.switch.port_faults import Faults
from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.run.faults.grammar import bit_error_ratio
from emulator.run.report import traffic
from emulator.run.report.result_table import TRAFFIC_COLUMNS
from emulator.scenario import FaultAt, Outcome, Trial, parameter
from scenarios.permutation import all_nics_gbps
from scenarios.workloads.flows import (
    WARMUPS,
    Flow,
    Traffic,
    TrafficParameters,
    captured_ports,
    one_of_each_server,
)
from topologies.model import Topology
from topologies.parts.attachment import switch_ends
from topologies.parts.design_parameters import SIZE

COLUMNS = (
    TableColumn("loss_ppm", "loss", "(1e-6)", 8),
    TableColumn("ber", "BER", "", 6),
    *TRAFFIC_COLUMNS,
)
MILLION = 10**6


@dataclass(frozen=True)
class BitErrorKind:
    name: str = "bit error ratio"

    def read(self, field: str, value: str) -> float:
        """Return ``value`` as a number.  UserError if it is none that can be drawn."""
        return bit_error_ratio(value, field)


BIT_ERRORS = BitErrorKind()


@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    size: int = parameter(4 * 2**20, SIZE, help="octets of each flow")
    warmups: int = parameter(0, WARMUPS, help="iterations before, without any loss")
    losses: tuple[int, ...] = parameter(
        (0, 100, 1_000, 10_000), WARMUPS, many=True, help="frames lost of a million, a row for each"
    )

    bers: tuple[float, ...] = parameter(
        (), BIT_ERRORS, many=True, help="bit error ratios, a row for each after those of losses"
    )

    def __post_init__(self) -> None:
        check_losses(self.losses)


def check_losses(losses: Sequence[int]) -> None:
    """Raise UserError for frames lost of a million that leave nothing."""
    worst = max(losses)
    if worst >= MILLION:
        raise UserError(f"losses has {worst} of a million, which leaves nothing; take less")


def topology(parameters: Parameters) -> str:
    """One rail of four GPUs."""
    return "rail_clos:hosts=4,gpus_per_host=1,spines=1,uplinks_per_spine=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
    ranks = ring(topology)
    flows = tuple(
        Flow(source=rank, destination=ranks[(place + 1) % len(ranks)], length=parameters.size)
        for place, rank in enumerate(ranks)
    )
    pattern = Traffic(topology, flows, parameters.message, parameters.in_flight, seed)
    ports = [end for rank in ranks for end in switch_ends(topology, topology.gpus[rank].name)]
    return [
        pattern.trial(
            "losssweep",
            parameters,
            facts={"loss_ppm": loss, "ber": f"{ber:g}"},
            faults=tuple(
                FaultAt(at_ns=0, port=str(port), faults=Faults(loss=loss / MILLION, bit_errors=ber))
                for port in ports
                if loss or ber
            ),
        )
        for loss, ber in (
            *((loss, 0.0) for loss in parameters.losses),
            *((0, ber) for ber in parameters.bers),
        )
    ]


def ring(topology: Topology) -> list[int]:
    """The ranks on the first rail switch, one of each server."""
    rail, ranks = next(iter(one_of_each_server(topology).items()))
    if len(ranks) < 2:
        raise UserError(
            f"a ring needs GPUs of two servers or more on one rail switch, and {rail} of "
            f"{topology.name} has those of one; take more hosts, or a topology of rails"
        )
    return ranks


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return traffic.measured(topology, outcome, capacity_gbps=all_nics_gbps(topology, outcome))


def capture(parameters: Parameters, topology: Topology) -> str:
    """The port down to the first GPU, and that to the second: one flow on its way, and another."""
    ranks = ring(topology)
    return captured_ports(topology, *ranks[:2])
