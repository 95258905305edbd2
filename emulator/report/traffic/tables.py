"""Tables of traffic, alike for every run and network: what cannot be known has a reason.

A table is a :class:`~emulator.report.run.figures.figure.Figure`: records, and where they were
observed.  Octets of packets count from the Ethernet header on, those of messages are payload.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from emulator.arithmetic import jain, max_mean, nearest_rank
from emulator.errors import UserError
from emulator.metrics import ENDPOINT, SWITCH
from emulator.report.follow.capture import CaptureStream, without_capture
from emulator.report.run.figures.figure import Figure
from emulator.report.run.port_series import PortSeries, read_series, window_of
from emulator.report.run_folder import NO_ROW, RunRecord
from emulator.report.traffic import measures
from emulator.report.traffic.frames import CapturedTraffic, FiveTuple, LinkFrames, captured
from emulator.report.traffic.measures import Bursts, Counts, Numbers
from emulator.report.traffic.messages import FABRIC, SCALE_UP, Messages, of_timeline, relation
from emulator.report.traffic.phases import packets_of
from emulator.run_files import CAPTURE, EPOCH_S, TIMELINE, RowPorts
from emulator.run_files import FABRIC as FABRIC_FILE
from emulator.sim import line_telemetry
from topologies.analysis.capacity import HEIGHT
from topologies.model import Topology
from topologies.units import format_size

CAPTURED = "captured port"
PORTS = "port that sent: switch or NIC"
#: Windows of a peak (us).
WINDOWS_US = (1, 10, 100)
#: Steps of the utilisation over time.
STEPS = 60

NO_FABRIC = "it needs a fabric, and schedules alone were counted: uetemu run has it"
CUT = "too few octets of each packet were captured for its 5-tuple: take a larger --snaplen"
NO_TIMES = "Times need a fabric: uetemu run has them."

Records = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a reader decides.

    A flow of ``elephant_bytes`` or more is an elephant, and a link that idles ``gap_us`` ends a
    burst.  Captures of more octets than ``largest_capture`` are not read; None: all are.
    """

    elephant_bytes: int = 1_000_000
    gap_us: float = 1.0
    largest_capture: int | None = None


#: Titles and observation points of all tables, in the order of reading.
TITLES: Mapping[str, tuple[str, str]] = {
    "messages": ("Messages by phase", ENDPOINT),
    "message-sizes": ("Message sizes", ENDPOINT),
    "message-flows": ("Flows between GPUs", ENDPOINT),
    "servers": ("Who talks to whom, by server", ENDPOINT),
    "ranks": ("Who talks to whom, by rank", ENDPOINT),
    "gpus": ("GPUs that wait for the network", ENDPOINT),
    "packet-phases": ("Packets by phase", CAPTURED),
    "packets": ("Packets", CAPTURED),
    "services": ("Transport services", CAPTURED),
    "packet-sizes": ("Packet sizes", CAPTURED),
    "packet-flows": ("Flows of packets", CAPTURED),
    "entropy": ("Entropy that links see", CAPTURED),
    "bursts": ("Bursts", CAPTURED),
    "links": ("Captured links", CAPTURED),
    "parallel-links": ("Shares of parallel links", PORTS),
    "utilisation": ("Utilisation of links", PORTS),
    "utilisation-over-time": ("Utilisation of tiers over time", SWITCH),
}
OF_MESSAGES = ("messages", "message-sizes", "message-flows", "servers", "ranks", "gpus")
OF_PACKETS = ("packets", "services", "packet-sizes", "packet-flows", "entropy", "bursts", "links")
OF_PORTS = ("parallel-links", "utilisation")
PHASES, OVER_TIME = "packet-phases", "utilisation-over-time"


def table(name: str, records: Sequence[Mapping[str, Any]], note: str = "") -> Figure:
    """Return the table ``name`` of these records."""
    title, point = TITLES[name]
    reason = None if records else "there was nothing to count"
    return Figure(name=name, title=title, point=point, note=note, records=records, reason=reason)


def without(names: Sequence[str], reason: str) -> list[Figure]:
    """Return tables that have nothing but the reason."""
    return [Figure.none(name, *TITLES[name], reason) for name in names]


def run_tables(record: RunRecord, row: int, bounds: Bounds) -> list[Figure]:
    """Return all tables of a row (from 1) of a run folder."""
    if not record.rows:
        return without(list(TITLES), NO_ROW)
    topology = record.topology
    if topology is None:
        return without(list(TITLES), record.missing[FABRIC_FILE])
    messages = run_messages(record, row)
    traffic = run_traffic(record, row, bounds)
    found = (
        _of_events(record, topology, row, bounds, messages)
        if isinstance(messages, str)
        else message_tables(messages, topology, bounds)
    )
    if isinstance(traffic, str):
        found += without((PHASES, *OF_PACKETS), traffic)
    elif isinstance(messages, str):
        found += without((PHASES,), messages)
        found += packet_tables(traffic, topology, bounds)
    else:
        found.append(_packet_phases(messages, traffic, topology, bounds))
        found += packet_tables(traffic, topology, bounds)
    return [*found, *_run_ports(record, topology, row), _over_time(record, topology, row)]


def phase_tables(
    record: RunRecord, row: int, bounds: Bounds, choose: Callable[[Messages], Sequence[str]]
) -> Iterator[tuple[str, list[Figure]]]:
    """Yield the phases that are chosen of a row, each with its tables.

    Raises UserError where the folder does not tell phases.
    """
    topology = record.topology
    messages = run_messages(record, row)
    if isinstance(messages, str) or topology is None:
        reason = messages if isinstance(messages, str) else record.missing[FABRIC_FILE]
        raise UserError(f"{record.name}: phases cannot be told, {reason}; leave --phase out")
    traffic = run_traffic(record, row, bounds)
    for phase in choose(messages):
        mine = messages.of(phase)
        found = message_tables(mine, topology, bounds)
        if isinstance(traffic, str):
            found += without((*OF_PACKETS, *OF_PORTS), traffic)
        else:
            part = packets_of(mine, traffic, topology)
            found += (
                packet_tables(part, topology, bounds)
                if part.links
                else without(OF_PACKETS, "no packet of the phase passed a captured port")
            )
            found += _captured_ports(part, traffic, topology)
        yield phase, found


def schedule_tables(messages: Messages, topology: Topology, bounds: Bounds) -> list[Figure]:
    """Return all tables of schedules that no fabric has carried."""
    of_fabric = [PHASES, *OF_PACKETS, *OF_PORTS, OVER_TIME]
    return [*message_tables(messages, topology, bounds), *without(of_fabric, NO_FABRIC)]


def run_messages(record: RunRecord, row: int) -> Messages | str:
    """Return the messages of the last iteration of a row, or why they are not known."""
    if not record.rows:
        return NO_ROW
    if record.topology is None:
        return record.missing[FABRIC_FILE]
    if record.timeline is None:
        return record.missing[TIMELINE]
    facts = record.timeline.get("otherData")
    of = facts.get("row") if isinstance(facts, Mapping) else len(record.rows)
    if of != row:
        return f"{TIMELINE} has an iteration of row {of}, not of row {row}"
    try:
        messages = of_timeline(record.timeline, record.topology)
    except ValueError as error:
        return str(error)
    if not len(messages):  # a script's run: its ranks wait in calls
        return f"{TIMELINE} has no messages; the report of a script's run has its calls by line"
    return messages


def _of_events(
    record: RunRecord, topology: Topology, row: int, bounds: Bounds, reason: str
) -> list[Figure]:
    """Return the tables of messages of a row without a timeline: its flows have no single ones."""
    event = record.messages.get(row, {})
    iterations = max(1, len(event.get("times_us", ())))
    domains = topology.scale_up_domains
    pairs: Records = [
        {
            "network": SCALE_UP if domains[one["from"]] == domains[one["to"]] else FABRIC,
            "from": one["from"],
            "to": one["to"],
            "relation": relation(topology, one["from"], one["to"]),
            "messages": one["messages"] // iterations,
            "bytes": one["bytes"] // iterations,
            "phases": (),
        }
        for one in event.get("flows", ())
        if {one["from"], one["to"]} <= domains.keys()
    ]
    if not pairs:
        return without(OF_MESSAGES, reason)
    left_out = event.get("flows_left_out", 0)
    note = f"By flows of events.jsonl: {reason}." + (
        f" {left_out} more flows are in none of them." if left_out else ""
    )
    octets = {
        network: np.array([one["bytes"] for one in pairs if one["network"] == network], np.int64)
        for network in dict.fromkeys(one["network"] for one in pairs)
    }
    flows = [{"network": name, **elephants(one, bounds)} for name, one in octets.items()]
    return [
        *without(("messages", "message-sizes"), reason),
        table("message-flows", flows, note),
        table("servers", _by_server(pairs, topology), note),
        table("ranks", [{**one, "phases": None} for one in pairs], note),
        *without(("gpus",), reason),
    ]


def message_tables(messages: Messages, topology: Topology, bounds: Bounds) -> list[Figure]:
    """Return the tables of messages, those of schedules without times."""
    note = messages.left_out if messages.begin_us is not None else NO_TIMES
    by_network = {
        FABRIC: np.flatnonzero(messages.over_fabric),
        SCALE_UP: np.flatnonzero(~messages.over_fabric),
    }
    used = {name: chosen for name, chosen in by_network.items() if len(chosen)}
    sizes = [
        {"network": name, **one}
        for name, chosen in used.items()
        for one in measures.histogram(messages.octets[chosen])
    ]
    flows = [_flows(messages, name, chosen, bounds) for name, chosen in used.items()]
    bound = format_size(bounds.elephant_bytes)
    pairs = list(_pairs(messages, used, topology))
    return [
        table("messages", list(_phases(messages, used)), note),
        table("message-sizes", sizes, note),
        table(
            "message-flows",
            flows,
            "A flow is all messages of an iteration from one GPU to another; an elephant has "
            f"{bound} or more. {note}".strip(),
        ),
        table("servers", _by_server(pairs, topology), note),
        table("ranks", [{**one, "phases": ", ".join(one["phases"])} for one in pairs], note),
        _gpus(messages),
    ]


def _phases(messages: Messages, used: Mapping[str, Numbers | Any]) -> Iterator[dict[str, Any]]:
    for network, chosen in used.items():
        for number, phase in enumerate(messages.phases):
            mine = chosen[messages.phase[chosen] == number]
            if not len(mine):
                continue
            pairs = messages.source[mine] * len(messages.gpus) + messages.destination[mine]
            octets = messages.octets[mine]
            yield {
                "network": network,
                "phase": phase,
                "messages": len(mine),
                "bytes": int(octets.sum()),
                **measures.sizes(octets),
                "flows": len(np.unique(pairs)),
                "first_us": _first(messages.begin_us, mine, np.min),
                "last_us": _first(messages.end_us, mine, np.max),
            }


def _first(times: Numbers | None, chosen: Any, pick: Callable[[Numbers], Any]) -> float | None:
    return None if times is None else round(float(pick(times[chosen])), 3)


def _flows(messages: Messages, network: str, chosen: Any, bounds: Bounds) -> dict[str, Any]:
    pairs = messages.source[chosen] * len(messages.gpus) + messages.destination[chosen]
    groups = [places for _, places in _grouped(pairs)]
    octets = np.array([messages.octets[chosen[places]].sum() for places in groups])
    found = {"network": network, **elephants(octets, bounds)}
    if messages.begin_us is None or messages.end_us is None:
        return {**found, "most_at_once": None, "mean_at_once": None}
    begin, end = messages.begin_us[chosen], messages.end_us[chosen]
    spans = [measures.union(begin[places], end[places]) for places in groups]
    most, mean = measures.at_once(*map(np.concatenate, zip(*spans, strict=True)))
    return {**found, "most_at_once": most, "mean_at_once": round(mean, 2)}


def _grouped(keys: Counts) -> Iterator[tuple[int, Counts]]:
    """Yield each key with the places where it stands."""
    order = np.argsort(keys, kind="stable")
    found, first = np.unique(keys[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, first[1:]), strict=True)


def elephants(octets: Any, bounds: Bounds) -> dict[str, Any]:
    large = octets >= bounds.elephant_bytes
    return {
        "flows": len(octets),
        **measures.sizes(octets),
        "elephants": int(large.sum()),
        "mice": int((~large).sum()),
        "elephant_bytes_percent": percent(octets[large].sum(), octets.sum()),
    }


def percent(part: Any, whole: Any) -> float | None:
    return round(100 * float(part) / float(whole), 3) if whole else None


def _pairs(
    messages: Messages, used: Mapping[str, Any], topology: Topology
) -> Iterator[dict[str, Any]]:
    for network, chosen in used.items():
        pairs = messages.source[chosen] * len(messages.gpus) + messages.destination[chosen]
        for pair, places in _grouped(pairs):
            mine = chosen[places]
            source, destination = (messages.gpus[one] for one in divmod(pair, len(messages.gpus)))
            yield {
                "network": network,
                "from": source,
                "to": destination,
                "relation": relation(topology, source, destination),
                "messages": len(mine),
                "bytes": int(messages.octets[mine].sum()),
                "phases": [
                    messages.phases[one] for one in np.unique(messages.phase[mine]).tolist()
                ],
            }


def _by_server(pairs: Sequence[Mapping[str, Any]], topology: Topology) -> Records:
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for pair in pairs:
        ends = (topology.server_of(pair["from"]).name, topology.server_of(pair["to"]).name)
        key = (pair["network"], *ends, pair["relation"])
        one = found.setdefault(
            key,
            {
                "network": pair["network"],
                "from": ends[0],
                "to": ends[1],
                "relation": pair["relation"],
                "messages": 0,
                "bytes": 0,
                "phases": {},
            },
        )
        one["messages"] += pair["messages"]
        one["bytes"] += pair["bytes"]
        one["phases"] |= dict.fromkeys(pair["phases"])
    return [{**one, "phases": ", ".join(one["phases"])} for one in found.values()]


def _gpus(messages: Messages) -> Figure:
    """Return how long each GPU computes, and waits with a message of its own on the fabric."""
    if messages.begin_us is None or messages.end_us is None:
        (reasoned,) = without(("gpus",), NO_FABRIC)
        return reasoned
    records: Records = []
    for rank, gpu in enumerate(messages.gpus):
        if gpu not in messages.computing:
            continue
        busy = messages.computing[gpu]
        mine = messages.over_fabric & ((messages.source == rank) | (messages.destination == rank))
        moving = measures.union(messages.begin_us[mine], messages.end_us[mine])
        both = measures.union(
            np.concatenate([busy[0], moving[0]]), np.concatenate([busy[1], moving[1]])
        )
        computes, covered = (float((end - begin).sum()) for begin, end in (busy, both))
        records.append(
            {
                "gpu": gpu,
                "span_us": round(messages.span_us, 3),
                "computes_percent": percent(computes, messages.span_us),
                "waits_for_fabric_percent": percent(covered - computes, messages.span_us),
                "idle_otherwise_percent": percent(messages.span_us - covered, messages.span_us),
            }
        )
    return table(
        "gpus",
        records,
        "A GPU waits for the fabric while it computes nothing and a message from or to it is on "
        "the fabric; it idles otherwise for its server's network, peers, or the end.",
    )


def run_traffic(record: RunRecord, row: int, bounds: Bounds) -> CapturedTraffic | str:
    """Return what was captured of the last iteration of a row, or why nothing was."""
    if record.topology is None:
        return record.missing[FABRIC_FILE]
    if not record.rows:
        return NO_ROW
    window = window_of(record, row)
    if not (record.path / CAPTURE).exists():
        return without_capture(record.path)
    if record.by_host_clock or window is None:
        return "the run does not tell when its iterations were"
    most = bounds.largest_capture
    if most is not None and (record.path / CAPTURE).stat().st_size > most:
        return f"{CAPTURE} has more than {most >> 20} MiB: uetemu traffic {record.name} counts it"
    begin, end = (EPOCH_S * 10**9 + round(at * 1000) for at in (window.begin_us, window.end_us))
    stream = CaptureStream(record.path / CAPTURE, record.topology)
    found = captured(stream, record.topology, (begin, end))
    words = "the captured ports saw no packet; --capture chooses ports"
    return found if found.links else f"{words}; {found.cut}".removesuffix("; ")


def _packet_phases(
    messages: Messages, traffic: CapturedTraffic, topology: Topology, bounds: Bounds
) -> Figure:
    """Return what each phase is on the links that GPUs send on; if none is captured, on all."""
    injected = [one for one in traffic.links if one.injects]
    observed = replace(traffic, links=injected or traffic.links)
    phases = {one: packets_of(messages.of(one), observed, topology) for one in messages.phases}
    records = [
        {
            "phase": phase,
            "time_us": round(part.length_us, 3),
            "links": len(part.links),
            **_phase(part, bounds),
        }
        for phase, part in phases.items()
        if part.links
    ]
    return table(
        PHASES,
        records,
        f"Packets on {'the links that GPUs send on' if injected else 'captured links'}, between "
        "two GPUs while a message of theirs is under way, with acknowledgements. What two phases "
        "send between the same GPUs at a time counts in both. Use, duty cycle and peaks are those "
        f"of the time in which the phase has a message on the fabric. {traffic.cut}".strip(),
    )


def _phase(part: CapturedTraffic, bounds: Bounds) -> dict[str, Any]:
    links = [_Link.of(one, part, bounds) for one in part.links]
    octets = np.concatenate([one.octets for one in part.links])
    flows = flows_of(part)
    of_flows = {} if flows is None else elephants(flows.octets, bounds)
    busy = sum(float(one.busy_us.sum()) for one in part.links)
    measured = _bursts("", links, part)
    return {
        "packets": len(octets),
        "bytes": int(octets.sum()),
        "median_bytes": measures.sizes(octets)["median_bytes"],
        "flows": of_flows.get("flows"),
        "median_flow_bytes": of_flows.get("median_bytes"),
        "elephants": of_flows.get("elephants"),
        "entropy_bits": _entropy("", links)["median_bits"],
        "burst_p50_us": measured["median_us"],
        "duty_percent": measured["duty_percent"],
        "peak_to_mean_10us": measured["peak_to_mean_10us"],
        "utilisation_percent": percent(busy, len(links) * part.length_us),
    }


def _captured_ports(
    part: CapturedTraffic, whole: CapturedTraffic, topology: Topology
) -> list[Figure]:
    """Return what ports sent in a phase, of those that were captured."""
    sent = {
        str(one.sender): {"tx_packets": len(one.octets), "tx_bytes": int(one.octets.sum())}
        for one in part.links
    }
    captured = frozenset(str(one.sender) for one in whole.links)
    counted = RowPorts(row=0, span_us=part.length_us, observes=frozenset(), ports=sent)
    return [
        replace(one, point=CAPTURED, note="" if one.reason else f"Captured ports alone. {one.note}")
        for one in port_tables(counted, topology, captured, "The time of the phase.")
    ]


def packet_tables(traffic: CapturedTraffic, topology: Topology, bounds: Bounds) -> list[Figure]:
    """Return the tables of captured links, of which there are some."""
    tiers: dict[str, list[LinkFrames]] = {}
    for link in sorted(traffic.links, key=lambda one: str(one.sender)):
        tiers.setdefault(link.tier, []).append(link)
    counted = {id(one): _Link.of(one, traffic, bounds) for one in traffic.links}
    note = traffic.cut
    idle = f"{bounds.gap_us:g} us"
    all_links = _links_of_tiers(topology)
    found = [
        table(
            "packets",
            [_packets(tier, links, traffic, all_links) for tier, links in tiers.items()],
            note,
        ),
        table("services", list(_services(tiers, traffic, topology.network)), note),
        table("packet-sizes", list(_packet_sizes(tiers, traffic)), note),
        _packet_flows(traffic, bounds),
        table(
            "entropy",
            [_entropy(tier, [counted[id(one)] for one in links]) for tier, links in tiers.items()],
            "Shannon's entropy of the outer 5-tuples of a link's packets; UET and RoCEv2 have "
            f"their entropy in the UDP source port. {note}".strip(),
        ),
        table(
            "bursts",
            [
                _bursts(tier, [counted[id(one)] for one in links], traffic)
                for tier, links in tiers.items()
            ],
            f"A burst ends where a link idles {idle} or longer. Lengths and gaps are of all "
            "links; duty cycle and peak to mean are the median link's. Octets on the wire. "
            f"{note}".strip(),
        ),
        table("links", [one.record(traffic) for one in counted.values()], note),
    ]
    if not any(one.cut for one in traffic.tuples):
        return found
    hidden = {one.name: one for one in without(("packet-flows", "entropy", "links"), CUT)}
    return [hidden.get(one.name, one) for one in found]


@dataclass(frozen=True)
class _Link:
    """A link and what its frames come to."""

    frames: LinkFrames
    bursts: Bursts
    tuples: int
    flows: int
    entropy_bits: float
    duty_percent: float
    peaks: Sequence[float | None]

    @classmethod
    def of(cls, frames: LinkFrames, traffic: CapturedTraffic, bounds: Bounds) -> _Link:
        busy = frames.busy_us
        wire = np.rint(busy * frames.rate_bps / 8e6).astype(np.int64)
        found = measures.bursts(frames.begin_us, busy, wire, bounds.gap_us)
        numbers, counts = np.unique(frames.tuples, return_counts=True)
        flows = {traffic.tuples[one].flow for one in numbers.tolist()}
        begin_us, whole = traffic.passed(frames.begin_us), traffic.length_us
        passing = traffic.passed(frames.begin_us + busy) - begin_us
        peaks = []
        for window in WINDOWS_US:
            peak = measures.peak(begin_us, passing, (0.0, whole), window)
            peaks.append(None if peak is None else peak[1])
        bursting = traffic.passed(found.begin_us + found.length_us) - traffic.passed(found.begin_us)
        duty = 100 * float(bursting.sum()) / whole if whole else 0.0
        return cls(
            frames, found, len(numbers), len(flows), measures.entropy_bits(counts), duty, peaks
        )

    def record(self, traffic: CapturedTraffic) -> dict[str, Any]:
        """Return the link as a record."""
        return {
            "link": str(self.frames.sender),
            "tier": self.frames.tier,
            "packets": len(self.frames.octets),
            "bytes": int(self.frames.octets.sum()),
            "flows": self.flows,
            "tuples": self.tuples,
            "entropy_bits": round(self.entropy_bits, 3),
            "bursts": len(self.bursts.length_us),
            "duty_percent": round(self.duty_percent, 2),
            "utilisation_percent": percent(self.frames.busy_us.sum(), traffic.length_us),
            **_peaks([self]),
        }


def _peaks(links: Sequence[_Link]) -> dict[str, float | None]:
    found = {}
    for place, window in enumerate(WINDOWS_US):
        known = [peak for one in links if (peak := one.peaks[place]) is not None]
        found[f"peak_to_mean_{window}us"] = round(float(np.median(known)), 2) if known else None
    return found


def _links_of_tiers(topology: Topology) -> dict[str, int]:
    found: dict[str, int] = {}
    for link in topology.links:
        for ours, theirs in (link.ends, link.ends[::-1]):
            tier = f"{topology.node(ours.node).role} to {topology.node(theirs.node).role}"
            found[tier] = found.get(tier, 0) + 1
    return found


def _packets(
    tier: str, links: Sequence[LinkFrames], traffic: CapturedTraffic, all_links: Mapping[str, int]
) -> dict[str, Any]:
    octets = np.concatenate([one.octets for one in links])
    kinds: dict[str, int] = {}
    for number, count in zip(
        *np.unique(np.concatenate([one.tuples for one in links]), return_counts=True), strict=True
    ):
        name = traffic.tuples[number].name
        kinds[name] = kinds.get(name, 0) + int(count)
    return {
        "tier": tier,
        "links": len(links),
        "of_links": all_links.get(tier),
        "packets": len(octets),
        "bytes": int(octets.sum()),
        **measures.sizes(octets),
        "protocols": " ".join(f"{name}:{count}" for name, count in sorted(kinds.items())),
    }


def _services(
    tiers: Mapping[str, Sequence[LinkFrames]], traffic: CapturedTraffic, network: str
) -> Iterator[dict[str, Any]]:
    kinds = len(traffic.services)
    for tier, links in tiers.items():
        numbers = np.concatenate([one.services for one in links])
        octets = np.concatenate([one.octets for one in links])
        packets = np.bincount(numbers, minlength=kinds)
        sent = np.bincount(numbers, weights=octets, minlength=kinds)
        for number in np.argsort(-sent, kind="stable").tolist():
            if packets[number]:
                yield {
                    "network": network,
                    "tier": tier,
                    "service": traffic.services[number],
                    "packets": int(packets[number]),
                    "bytes": int(sent[number]),
                    "bytes_percent": percent(sent[number], sent.sum()),
                }


def _packet_sizes(
    tiers: Mapping[str, Sequence[LinkFrames]], traffic: CapturedTraffic
) -> Iterator[dict[str, Any]]:
    for tier, links in tiers.items():
        for one in measures.histogram(np.concatenate([link.octets for link in links])):
            yield {"tier": tier, **one}


@dataclass(frozen=True)
class Flows:
    """Flows that captured end nodes send: octets, begin of the first and end of the last frame."""

    flows: Sequence[FiveTuple]
    octets: Counts
    first_us: Numbers
    last_us: Numbers


def flows_of(traffic: CapturedTraffic) -> Flows | None:
    """Return the flows on links of end nodes; None if none of these was captured."""
    injected = [one for one in traffic.links if one.injects]
    if not injected:
        return None
    numbers: dict[FiveTuple, int] = {}
    flow_of = np.array([numbers.setdefault(one.flow, len(numbers)) for one in traffic.tuples])
    flow = np.concatenate([flow_of[one.tuples] for one in injected])
    octets = np.concatenate([one.octets for one in injected])
    first, last = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
    np.minimum.at(first, flow, np.concatenate([one.begin_us for one in injected]))
    np.maximum.at(last, flow, np.concatenate([one.begin_us + one.busy_us for one in injected]))
    carried = np.bincount(flow, weights=octets, minlength=len(numbers)).astype(np.int64)
    some = np.flatnonzero(carried)
    flows = list(numbers)
    return Flows([flows[one] for one in some], carried[some], first[some], last[some])


def _packet_flows(traffic: CapturedTraffic, bounds: Bounds) -> Figure:
    """Return the flows that captured end nodes send, by protocol."""
    found = flows_of(traffic)
    if found is None:
        reason = "no port of a GPU or machine, nor of its switch, was captured; --capture all"
        (reasoned,) = without(("packet-flows",), reason)
        return reasoned
    records = []
    names = np.array([one.name for one in found.flows])
    for name in sorted(set(names.tolist())):
        mine = names == name
        most, mean = measures.at_once(found.first_us[mine], found.last_us[mine])
        records.append(
            {
                "protocol": name,
                **elephants(found.octets[mine], bounds),
                "most_at_once": most,
                "mean_at_once": round(mean, 2),
            }
        )
    return table(
        "packet-flows",
        records,
        "A flow is a 5-tuple; of UET, RoCEv2 and VXLAN, whose source port is entropy, two "
        "addresses, with acknowledgements in it. It lasts from its first packet to its last. "
        "An elephant has "
        f"{format_size(bounds.elephant_bytes)} or more. {traffic.cut}".strip(),
    )


def _entropy(tier: str, links: Sequence[_Link]) -> dict[str, Any]:
    bits = [one.entropy_bits for one in links]
    return {
        "tier": tier,
        "links": len(links),
        "median_flows": int(np.median([one.flows for one in links])),
        "median_tuples": int(np.median([one.tuples for one in links])),
        "least_bits": round(min(bits), 3),
        "median_bits": round(float(np.median(bits)), 3),
        "most_bits": round(max(bits), 3),
    }


def _bursts(tier: str, links: Sequence[_Link], traffic: CapturedTraffic) -> dict[str, Any]:
    lengths = np.concatenate([one.bursts.length_us for one in links])
    octets = np.concatenate([one.bursts.octets for one in links])
    gaps = np.concatenate([one.bursts.gap_us for one in links])
    return {
        "tier": tier,
        "links": len(links),
        "bursts": len(lengths),
        "median_us": quantile(lengths, 0.5),
        "p99_us": quantile(lengths, 0.99),
        "median_bytes": int(quantile(octets, 0.5) or 0),
        "median_gap_us": quantile(gaps, 0.5),
        "p99_gap_us": quantile(gaps, 0.99),
        "duty_percent": round(float(np.median([one.duty_percent for one in links])), 2),
        **_peaks(links),
    }


def quantile(values: Any, share: float) -> float | None:
    """Return the nearest rank, None of nothing."""
    if not len(values):
        return None
    return round(nearest_rank(values.tolist(), share), 3)


def _run_ports(record: RunRecord, topology: Topology, row: int) -> list[Figure]:
    if row not in record.ports:
        return without(OF_PORTS, "events.jsonl does not tell what the ports of this row sent")
    return port_tables(record.ports[row], topology)


def port_tables(
    counted: RowPorts,
    topology: Topology,
    ports: Container[str] | None = None,
    note: str = "All iterations of the row that count, preamble and gap included.",
) -> list[Figure]:
    """Return what the counters of all ports come to, captured or not, or those of ``ports``."""
    tiers: dict[str, list[tuple[float, str]]] = {}
    uplinks: dict[str, dict[str, list[int]]] = {}
    for link in topology.links:
        for ours, theirs in (link.ends, link.ends[::-1]):
            if ports is not None and str(ours) not in ports:
                continue
            roles = topology.node(ours.node).role, topology.node(theirs.node).role
            tier = f"{roles[0]} to {roles[1]}"
            used = 100 * counted.utilisation(str(ours), link.rate_bps)
            tiers.setdefault(tier, []).append((used, str(ours)))
            if topology.node(ours.node).is_switch and HEIGHT[roles[1]] > HEIGHT[roles[0]]:
                sent = counted.ports.get(str(ours), {}).get("tx_bytes", 0)
                uplinks.setdefault(tier, {}).setdefault(ours.node, []).append(sent)
    utilisation = [
        {
            "tier": tier,
            "links": len(found),
            "used_links": sum(used > 0 for used, _ in found),
            "mean_percent": round(float(np.mean([used for used, _ in found])), 3),
            "most_percent": round(max(found)[0], 3),
            "busiest": max(found)[1],
        }
        for tier, found in tiers.items()
    ]
    parallel = [
        one for tier, nodes in uplinks.items() if (one := _parallel(tier, nodes)) is not None
    ]
    shares = table(
        "parallel-links",
        parallel,
        "Of the octets that a switch sends up: MMR is the busiest uplink over their mean, JFI "
        "Jain's index; both of the worst switch.",
    )
    if not parallel:
        (shares,) = without(("parallel-links",), "no switch sent anything over parallel uplinks")
    return [shares, table("utilisation", utilisation, note)]


def _parallel(tier: str, nodes: Mapping[str, Sequence[int]]) -> dict[str, Any] | None:
    some = [np.array(sent, float) for sent in nodes.values() if sum(sent) and len(sent) > 1]
    if not some:
        return None
    shares = np.concatenate([100 * sent / sent.sum() for sent in some])
    return {
        "tier": tier,
        "switches": len(some),
        "links_each": max(map(len, some)),
        "least_percent": round(float(shares.min()), 2),
        "most_percent": round(float(shares.max()), 2),
        "worst_mmr": round(max(max_mean(sent.tolist()) or 0.0 for sent in some), 3),
        "worst_jfi": round(min(jain(sent.tolist()) or 0.0 for sent in some), 4),
    }


def _over_time(record: RunRecord, topology: Topology, row: int) -> Figure:
    """Return the mean utilisation of each tier's links in steps of the last iteration."""
    name = OVER_TIME
    window = window_of(record, row)
    read = read_series(record.path / "telemetry.csv")
    if isinstance(read, str) or window is None:
        reason = read if isinstance(read, str) else "the run does not tell when its iterations were"
        return without((name,), reason)[0]
    series: dict[str, tuple[PortSeries, str]] = {port: (s, "tx_bytes") for port, s in read.items()}
    lines = read_series(record.path / line_telemetry.FILE, line_telemetry.COLUMNS)
    if not isinstance(lines, str):
        series |= {port: (s, "sent_bytes") for port, s in lines.items() if port not in series}
    edges = np.linspace(window.begin_us, window.end_us, STEPS + 1)
    tiers: dict[str, list[Numbers]] = {}
    for link in topology.links:
        for ours, theirs in (link.ends, link.ends[::-1]):
            if str(ours) in series:
                found, column = series[str(ours)]
                tier = f"{topology.node(ours.node).role} to {topology.node(theirs.node).role}"
                full = link.rate_bps / 8e6 * (edges[1] - edges[0])
                tiers.setdefault(tier, []).append(100 * found.growth(column, edges) / full)
    records = [
        {
            "row": row,
            "tier": tier,
            "t_us": round(float(at - window.begin_us), 4),
            "mean_percent": round(float(mean), 3),
        }
        for tier, grown in tiers.items()
        for at, mean in zip(edges[1:], np.mean(grown, axis=0), strict=True)
    ]
    return table(name, records, "The last iteration of the row; means of all links of a tier.")
