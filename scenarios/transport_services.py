"""Transport services: one job over RUD, ROD, RUDI and UUD, and what each of them costs.

::

        h0g0          h1g0          h2g0          h3g0      each writes to the next one
          |             |             |             |
      +-------------------------------------------------+
      |                      rail0                      |   every port down to a GPU loses
      +-------------------------------------------------+   that share of its frames

Traffic: a ring of GPUs on one rail switch, each of which writes ``size`` octets to the next one, in
messages of ``message`` octets.  One row for each service of Ultra Ethernet and each rate of
``losses``, in frames lost per million.  No link has more than one flow each way, so nothing but
service and losses makes a difference.

- RUD: reliable, unordered.  A PDC at both ends keeps which packets have come; only what is lost is
  sent again.
- ROD: reliable, ordered.  The PDC keeps which packet comes next, and by its loss all behind it are
  sent again (go-back-N).
- RUDI: reliable for what may be carried out twice.  There is no PDC: the source keeps what is not
  answered and sends it again, the target keeps nothing.
- UUD: datagrams.  Nobody keeps anything, nobody answers, and what is lost is lost.

A write over RUDI or UUD cannot tell its receiver that all is there.  So each message is followed by
a small send over RUD, as an application would; its PDCs and ACKs are in the row, too.  Over UUD it
leaves a round trip after the last datagram.

Measured: the time until the last receiver knows of its last message; packets, what was sent again,
packets that arrived more than once (``repeated_packets``), answers (``answers``: ACKs, and the
responses of RUDI), open PDCs, octets of headers of a packet (``header_bytes``) and of all that GPUs
sent for an octet of data (``sent_per_byte``); the share of the data that never came
(``lost_share``).  Data over UUD are not compared, since some may be missing; all others are.

What should be seen, and why: without losses all but the notices take the same time.  RUDI answers
each packet, the others one in several.  UUD has the smallest headers, and no answers.  With losses
RUD sends as many packets again as were lost, ROD many more, and RUDI those whose answers were lost
as well: they arrive twice, which harms nothing.  RUDI has only its timer to find a loss, and UUD
takes no longer, with a part of the data missing.

Came out (seed 1, defaults): without losses RUD and ROD 24.3 us, RUDI 26.9, UUD 26.5; with 1 % lost
37.1 us and 9 packets sent again over RUD, 35.4 and 295 over ROD, 78.2 and 17 over RUDI, 9 of which
came twice.  Over UUD 26.5 us, and 0.8 % of the data lost.  ROD was not slower than RUD here: it
finds a loss by the next packet, and RUD, which sprays, when about a window of newer ones has come:
3.9 us later for the same packet.  What is lost with less than that behind it a probe finds: RUD's
last flow lost a packet with 23 behind it, and sent it again 10 us after their ACKs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from emulator.dataplane.switch.port_faults import Faults
from emulator.result_rows import TableColumn
from emulator.run.report import traffic
from emulator.run.report.result_table import TRAFFIC_COLUMNS
from emulator.scenario import FaultAt, Outcome, Trial, parameter
from scenarios.losssweep import MILLION, check_losses, ring
from scenarios.workloads.flows import WARMUPS, Flow, Traffic, TrafficParameters, captured_ports
from topologies.ethernet import FRAMING_OCTETS
from topologies.model import Topology
from topologies.parts.attachment import switch_ends
from topologies.parts.design_parameters import SIZE

SERVICES = ("rud", "rod", "rudi", "uud")
COLUMNS = (
    TableColumn("service", "service", "", 7),
    TableColumn("loss_ppm", "loss", "(1e-6)", 7),
    TRAFFIC_COLUMNS[1],
    TRAFFIC_COLUMNS[3],
    TableColumn("data_packets", "packets", "", 8),
    TableColumn("retransmitted_packets", "resent", "", 7),
    TableColumn("repeated_packets", "came", "again", 6),
    TableColumn("answers", "answers", "", 8),
    TableColumn("pdcs_open", "PDCs", "", 5),
    TableColumn("header_bytes", "headers", "(B)", 7),
    TableColumn("sent_per_byte", "sent", "per B", 7, 4),
    TableColumn(
        "lost_share", "data lost", "(%)", 9, 3, percent=True, words="{} % of data was lost"
    ),
    TableColumn("timeouts", "RTOs", "", 5),
    TableColumn("wrong", "#wrong", "", 6),
)


@dataclass(frozen=True, kw_only=True)
class Parameters(TrafficParameters):
    size: int = parameter(2**20, SIZE, help="octets of each flow")
    warmups: int = parameter(0, WARMUPS, help="iterations before, without any loss")
    services: tuple[str, ...] = parameter(
        SERVICES, choices=SERVICES, many=True, help="services, a row for each"
    )
    losses: tuple[int, ...] = parameter(
        (0, 10_000), WARMUPS, many=True, help="frames lost of a million, a row for each"
    )

    def __post_init__(self) -> None:
        check_losses(self.losses)


def topology(parameters: Parameters) -> str:
    """One rail of four GPUs."""
    return "rail_clos:hosts=4,gpus_per_host=1,spines=1,uplinks_per_spine=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each service and loss."""
    ranks = ring(topology)
    flows = tuple(
        Flow(source=rank, destination=to, length=parameters.size)
        for rank, to in zip(ranks, [*ranks[1:], ranks[0]], strict=True)
    )
    pattern = Traffic(topology, flows, parameters.message, parameters.in_flight, seed)
    ports = [end for rank in ranks for end in switch_ends(topology, topology.gpus[rank].name)]
    trials = []
    for service in parameters.services:
        for loss in parameters.losses:
            trial = pattern.trial(
                "transport_services",
                parameters,
                facts={"service": service.upper(), "loss_ppm": loss},
                transport=f"uet:delivery={service}",
                faults=tuple(
                    FaultAt(at_ns=0, port=str(port), faults=Faults(loss=loss / MILLION))
                    for port in ports
                    if loss
                ),
            )
            trials.append(replace(trial, checked=service != "uud"))
    return trials


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    count, iterations = outcome.counters.get, len(outcome.times_ns)
    total = trial.facts["total_bytes"] * iterations
    answers, repeated = count("tx_acks", 0), count("rx_duplicates", 0)
    if trial.facts["service"] == "RUDI":  # it answers each request, and counts none as a duplicate
        messages = len(ring(topology)) * -(-parameters.size // parameters.message) * iterations
        requests = count("rx_data_packets", 0)
        answers += max(0, requests - messages)
        repeated += max(0, requests - count("tx_data_packets", 0))
    nics = {gpu.name for gpu in topology.gpus}
    sent = [
        one.kernel.tx_bytes for name, one in outcome.ports.items() if name.split(":")[0] in nics
    ]
    return {
        **traffic.measured(topology, outcome),
        "answers": answers,
        "repeated_packets": repeated,
        "pdcs_open": count("pdcs_open", 0),
        "header_bytes": outcome.wire.around_bytes - FRAMING_OCTETS if outcome.wire else None,
        "sent_per_byte": sum(sent) / total if sent else None,
        "lost_share": 1 - count("rx_message_octets", 0) / total,
    }


def capture(parameters: Parameters, topology: Topology) -> str:
    """The port down to the first GPU, and that to the second: one flow on its way, and another."""
    return captured_ports(topology, *ring(topology)[:2])
