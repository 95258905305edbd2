"""The networks of a cluster side by side: what the design says of each of them, measured.

A folder of ``uetemu cluster SCENARIO --traffic`` has a capture of the switch ports of each network.
A network of the host's clock is counted over the whole run, in its own time; if the backend's lab
was silent, it is the last run in virtual time, over the last iteration of its last row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np

from emulator.cluster.run.cluster_context import (
    CHECKPOINT_RESTORE,
    CHECKPOINT_WRITE,
    DATASET_STREAMING,
    WORKS,
)
from emulator.cluster.services import kinds
from emulator.cluster.services.machine_map import MachineMap
from emulator.cluster.services.service_plan import KINDS
from emulator.dataplane.fabric_choice import choose
from emulator.errors import UserError
from emulator.report.cluster_page import ClusterRecord
from emulator.report.follow.capture import CaptureStream
from emulator.report.run.figures.figure import Figure
from emulator.report.run_folder import RunRecord, is_run_folder
from emulator.report.traffic import measures
from emulator.report.traffic.frames import (
    BGP_PORT,
    ICMP,
    TCP,
    UDP,
    CapturedTraffic,
    FiveTuple,
    LinkFrames,
    captured,
)
from emulator.report.traffic.measures import Numbers
from emulator.report.traffic.tables import (
    CAPTURED,
    OF_PACKETS,
    Bounds,
    Flows,
    elephants,
    flows_of,
    packet_tables,
    percent,
    quantile,
    run_traffic,
    without,
)
from emulator.run_files import CAPTURE
from topologies.addressing import NETWORK_BLOCKS
from topologies.cluster import MODEL_PORT
from topologies.designs.cluster import ClusterStorage
from topologies.model import (
    BACKEND,
    FRONTEND,
    MANAGEMENT,
    NETWORKS,
    STORAGE,
    Topology,
    TopologyError,
)

NAME, TITLE = "networks", "The networks side by side"
#: RFC 5881 and RFC 5883.
BFD_PORTS = (3784, 4784)
#: UDP ports of the services that have no port of their own: DHCP, NTP, PTP; and rpcbind's.
_MORE = {67: "dhcp", 68: "dhcp", 123: "ntp", 319: "ptp", 320: "ptp"}
_RPCBIND = 111
RDMA = ("UET", "RoCEv2")
#: The column of a run on the storage network alone, and what its row may do.
BY_RDMA = "storage by RDMA"
_WORKS_BY_RDMA = {
    "dataset": DATASET_STREAMING,
    "checkpoint": CHECKPOINT_WRITE,
    "restore": CHECKPOINT_RESTORE,
}
#: The window of a peak (us), and that of requests.
PEAK_US, REQUESTS_US = 10, 1000
#: What machines do in a network, by the names of the services that do it.
SERVICES: Mapping[str, Sequence[str]] = {
    "RDMA: UET, RoCEv2 (B)": RDMA,
    "model servers (B)": ("llm",),
    "other TCP, as between ranks (B)": ("other TCP",),
    "NVMe/TCP (B)": ("nvme",),
    "NFS (B)": ("nfs",),
    "orchestration: files, names, power (B)": ("files", "dns", "dhcp", "redfish"),
    "job rendezvous (B)": ("rendezvous",),
    "time sync: NTP, PTP (B)": ("ntp", "ptp"),
    "telemetry (B)": ("metrics", "prometheus"),
    "remote access: SSH (B)": ("ssh",),
}
_SERVED = {name for names in SERVICES.values() for name in names}


Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class NetworkView:
    """A network and what was captured of it; ``lost`` are the packets that its ports dropped.

    ``cluster`` has all networks, ``faults`` is how many befell this one, and ``works`` has the
    times (us) of each work of what is ``counted``.
    """

    topology: Topology
    traffic: CapturedTraffic
    bounds: Bounds
    cluster: Topology
    lost: int | None = None
    faults: int = 0
    works: Mapping[str, Spans] = field(default_factory=dict)
    counted: str = "this run"

    @cached_property
    def flows(self) -> Flows:
        found = flows_of(self.traffic)
        empty = np.zeros(0)
        return found or Flows([], np.zeros(0, np.int64), empty, empty)

    @cached_property
    def octets(self) -> float:
        """Octets that machines, or GPUs, sent."""
        return float(self.flows.octets.sum())

    @property
    def injected(self) -> list[LinkFrames]:
        return [one for one in self.traffic.links if one.injects]

    @cached_property
    def phases(self) -> tuple[Numbers, Numbers]:
        """When machines begin and end to send, without gaps below the bound (us)."""
        begin = np.concatenate([one.begin_us for one in self.injected] or [np.zeros(0)])
        busy = np.concatenate([one.busy_us for one in self.injected] or [np.zeros(0)])
        first, last = measures.union(begin, begin + busy + self.bounds.gap_us)
        return first, last - self.bounds.gap_us

    @cached_property
    def delays_us(self) -> Numbers:
        """One-way delays: from the first bit that a machine sends to the last that comes in."""
        keys, times, arrives = [], [], []
        for link in self.traffic.links:
            known = link.packets != 0
            if link.injects:
                keys.append(link.packets[known])
                times.append(link.begin_us[known])
                arrives.append(np.zeros(known.sum(), bool))
            if link.delivers:
                cable_us = self.topology.link_at(link.sender).delay_ns / 1000
                keys.append(link.packets[known])
                times.append((link.begin_us + link.busy_us)[known] + cable_us)
                arrives.append(np.ones(known.sum(), bool))
        if not keys:
            return np.zeros(0)
        key, time, arrived = map(np.concatenate, (keys, times, arrives))
        order = np.lexsort((arrived, time, key))
        key, time, arrived = key[order], time[order], arrived[order]
        # An arrival right behind a sending of the same packet; it may have been sent again.
        both = (key[1:] == key[:-1]) & arrived[1:] & ~arrived[:-1]
        delays: Numbers = (time[1:] - time[:-1])[both]
        return delays

    @property
    def inner(self) -> list[LinkFrames]:
        """The links between switches."""
        return [one for one in self.traffic.links if not one.injects and not one.delivers]

    @property
    def span_us(self) -> float:
        return self.traffic.length_us

    def share(self, chosen: Callable[[FiveTuple], bool]) -> float | None:
        """Return the share (per cent) of octets that machines sent in the chosen flows."""
        return percent(self.carried(chosen), self.octets)

    def carried(self, chosen: Callable[[FiveTuple], bool]) -> int:
        """Return the octets that machines sent in the chosen flows."""
        pairs = zip(self.flows.flows, self.flows.octets.tolist(), strict=True)
        return sum(octets for flow, octets in pairs if chosen(flow))

    def packets(self, chosen: Callable[[FiveTuple], bool], links: Sequence[LinkFrames]) -> int:
        """Return the packets of the chosen flows on ``links``."""
        numbers = [n for n, one in enumerate(self.traffic.tuples) if chosen(one)]
        return int(sum(np.isin(one.tuples, numbers).sum() for one in links))


def service_of(flow: FiveTuple) -> tuple[str, str | None]:
    """Return the service that a flow belongs to, by its ports, and the network of that service."""
    ports = {flow.sport, flow.dport} if flow.protocol in (TCP, UDP) else set()
    if flow.name in RDMA:
        return flow.name, BACKEND
    for kind in KINDS.values():
        if kind.port in ports:
            return kind.name, kind.network
    if ports & {_RPCBIND, kinds.MOUNT_PORT}:
        return "nfs", STORAGE
    for port in ports & _MORE.keys() if flow.protocol == UDP else ():
        return _MORE[port], MANAGEMENT
    if BGP_PORT in ports or ports & set(BFD_PORTS):
        return "routing", None
    return f"other {flow.name}", None


def _named(*names: str) -> Callable[[FiveTuple], bool]:
    return lambda flow: service_of(flow)[0] in names


def _ports(*ports: int) -> Callable[[FiveTuple], bool]:
    return lambda flow: flow.protocol in (TCP, UDP) and bool({flow.sport, flow.dport} & set(ports))


def _machines(view: NetworkView) -> str:
    senders = {one.sender.node for one in view.injected}
    return f"{len(senders)} of {len(view.topology.gpus)}"


def _rates(view: NetworkView) -> str:
    """Return the rates of the ports at which machines sent (Gb/s)."""
    return " ".join(sorted({f"{one.rate_bps / 1e9:g}" for one in view.injected}))


def _interfaces(view: NetworkView) -> str:
    return " ".join(sorted({one.sender.port for one in view.injected}))


def _tenants(view: NetworkView) -> int | None:
    """Return how many tenants send in the frontend, which alone has them."""
    if view.topology.network != FRONTEND:
        return None
    machines = MachineMap(view.cluster)
    return len({machines.tenant(one.sender.node) for one in view.injected} - {None})


def _gpus_a_port(view: NetworkView) -> float | None:
    """Return how many GPUs share a port of this network, at servers that send."""
    senders = {one.sender.node for one in view.injected}
    if view.topology.network == BACKEND:
        nics = [node.name for node in view.topology.nodes if node.transparent]
        behind = [sum(1 for _ in view.topology.neighbours(nic)) - 1 for nic in nics]
        return max(behind, default=1)
    shared = [
        len(server.gpus) / len(view.topology.node(server.name).ports)
        for server in view.cluster.servers
        if server.name in senders
    ]
    return max(shared, default=None)


def _routers(view: NetworkView) -> int | None:
    """Return how many routers a packet passed at most: how much less TTL it arrives with."""
    sent = np.zeros(len(view.traffic.tuples), np.int64)
    for link in view.traffic.links:
        if link.injects:
            sent[link.tuples] = np.maximum(sent[link.tuples], link.ttl)
    arrived = np.full(len(sent), 256)
    for link in view.traffic.links:
        if link.delivers:
            np.minimum.at(arrived, link.tuples, np.where(link.ttl > 0, link.ttl, 256))
    both = (sent > 0) & (arrived < 256)
    return int((sent - arrived)[both].max()) if both.any() else None


def _median(values: Sequence[float] | measures.Numbers) -> float | None:
    return round(float(np.median(values)), 3) if len(values) else None


def _entropy(view: NetworkView, links: Sequence[LinkFrames], *, flows: bool) -> float | None:
    """Return the entropy of packets, by 5-tuple or flow, on the link that has most (bits)."""
    numbers: dict[FiveTuple, int] = {}
    flow_of = np.array([numbers.setdefault(one.flow, len(numbers)) for one in view.traffic.tuples])
    seen = [flow_of[one.tuples] if flows else one.tuples for one in links if len(one.tuples)]
    bits = [measures.entropy_bits(np.unique(one, return_counts=True)[1]) for one in seen]
    return round(max(bits), 3) if bits else None


def _elephants(view: NetworkView, key: str) -> Any:
    return elephants(view.flows.octets, view.bounds)[key]


def _mean_use(view: NetworkView) -> float | None:
    return _median([percent(one.busy_us.sum(), view.span_us) or 0.0 for one in view.injected])


def _mean_rate(view: NetworkView) -> float | None:
    return _median([8 * float(one.octets.sum()) / view.span_us for one in view.injected])


def _communicating(view: NetworkView) -> float:
    first, last = view.phases
    return float((last - first).sum())


def _use_then(view: NetworkView) -> float | None:
    """Return the use of the busiest link of a machine in communication phases (%)."""
    whole = _communicating(view)
    most = max((float(one.busy_us.sum()) for one in view.injected), default=0.0)
    return percent(min(most, whole), whole)  # by the host's clock frames may overlap


def _requests(view: NetworkView, *, peak: bool) -> float | None:
    """Return how many connections reach model servers, or the most in a window over the mean."""
    flows = zip(view.flows.flows, view.flows.first_us.tolist(), strict=True)
    began = [at for flow, at in flows if flow.protocol == TCP and flow.dport == MODEL_PORT]
    if not peak:
        return len(began)
    windows = math.ceil(view.span_us / REQUESTS_US)
    if not began or windows < 2:
        return None
    counts = np.bincount(((np.array(began) - view.traffic.span[0]) // REQUESTS_US).astype(int))
    return round(float(counts.max()) / (len(began) / windows), 3)


def _from_masters(view: NetworkView) -> float | None:
    """Return the share of TCP between ranks that the server of a job's rank 0 sends (%)."""
    machines = MachineMap(view.cluster)
    masters: dict[str | None, str] = {}
    for server in machines.servers:
        masters.setdefault(machines.tenant(server), server)
    own = {machines.addresses[one].get(view.topology.network) for one in masters.values()}
    between = _named("other TCP")
    sent = view.carried(lambda flow: between(flow) and flow.source in own)
    return percent(sent, view.carried(between))


def _during(view: NetworkView, work: str) -> int | str:
    """Return the octets that machines sent in the times of a work of storage.

    Of other networks these are of the services of storage.
    """
    if work not in view.works:
        return f"not in {view.counted}"
    own = view.topology.network == STORAGE
    serves = np.array([own or service_of(one)[1] == STORAGE for one in view.traffic.tuples])
    found = 0
    for link in view.injected:
        octets = np.append(0, np.cumsum(link.octets * serves[link.tuples]))
        for span in view.works[work]:
            first, last = np.searchsorted(link.begin_us, span)
            found += int(octets[last] - octets[first])
    return found


def _answered(view: NetworkView) -> str | None:
    """Return how many TCP connections and pings between machines had an answer."""
    sent = {one for one in view.flows.flows if one.protocol in (TCP, ICMP)}
    backs = (FiveTuple(one[1], one[0], one.protocol, one.dport, one.sport) for one in sent)
    answered = sum(back in sent for back in backs) // 2
    return f"{answered} of {len(sent) - answered}" if sent else None


def _peak(view: NetworkView, *, to_mean: bool) -> float | None:
    """Return the peak over the mean of the median link, or the most that a link is used in it."""
    found = [
        peak
        for one in view.injected
        if (peak := measures.peak(one.begin_us, one.busy_us, view.traffic.span, PEAK_US))
    ]
    if to_mean:
        return _median([ratio for _, ratio in found])
    return max((round(100 * use, 3) for use, _ in found), default=None)


def _foreign(view: NetworkView) -> int:
    """Return the packets that machines sent with addresses or services of another network.

    Management may carry its own services alone, and no other network may carry those.
    """
    own = view.topology.network
    others = [block for network, block in NETWORK_BLOCKS.items() if network != own]

    def belongs_elsewhere(flow: FiveTuple) -> bool:
        home = own if flow.name in RDMA and own == STORAGE else service_of(flow)[1]
        if home != own and MANAGEMENT in (home, own) and home is not None:
            return True
        return not flow.protocol >> 16 and any(
            ip_address(one) in block for one in flow[:2] for block in others
        )

    return view.packets(belongs_elsewhere, view.injected)


#: What is measured of each network, by the name of the line.
PROPERTIES: Mapping[str, Callable[[NetworkView], Any]] = {
    "machines or GPUs that send": _machines,
    "their interfaces": _interfaces,
    "rate of their ports (Gb/s)": _rates,
    "GPUs that share a port": _gpus_a_port,
    "routers on the way, at most": _routers,
    "links between switches that carry": lambda view: len(view.inner),
    "control plane": lambda view: view.topology.profile.control_plane,
    "BGP packets": lambda view: view.packets(_ports(BGP_PORT), view.traffic.links),
    "BGP packets with EVPN routes": lambda view: view.traffic.evpn,
    "BFD packets": lambda view: view.packets(_ports(*BFD_PORTS), view.traffic.links),
    "VXLAN between switches (% of packets)": lambda view: percent(
        view.packets(lambda flow: flow.name == "VXLAN", view.inner),
        sum(len(one.tuples) for one in view.inner),
    ),
    "VXLANs": lambda view: len(view.traffic.vnis),
    "tenants that send": _tenants,
    "TCP (% of octets sent)": lambda view: view.share(lambda flow: flow.protocol == TCP),
    "RDMA: UET, RoCEv2 (%)": lambda view: view.share(lambda flow: flow.name in RDMA),
    "flows": lambda view: len(view.flows.flows),
    "mice": lambda view: _elephants(view, "mice"),
    "elephants": lambda view: _elephants(view, "elephants"),
    "octets of elephants (%)": lambda view: _elephants(view, "elephant_bytes_percent"),
    "median flow (B)": lambda view: _elephants(view, "median_bytes"),
    "median flow lasts (us)": lambda view: _median(view.flows.last_us - view.flows.first_us),
    "entropy of flows on a machine's link, most (bits)": lambda view: _entropy(
        view, view.injected, flows=True
    ),
    "entropy of 5-tuples there (bits)": lambda view: _entropy(view, view.injected, flows=False),
    "entropy of 5-tuples between switches, most (bits)": lambda view: _entropy(
        view, view.inner, flows=False
    ),
    "mean rate of machines' links, median (Mb/s)": _mean_rate,
    "use of machines' links, median (%)": _mean_use,
    "most use in 10 us (%)": lambda view: _peak(view, to_mean=False),
    "peak to mean in 10 us": lambda view: _peak(view, to_mean=True),
    "communication phases (% of the time)": lambda view: percent(
        _communicating(view), view.span_us
    ),
    "use of the busiest machine's link then (%)": _use_then,
    "one-way delay, median (us)": lambda view: quantile(view.delays_us, 0.5),
    "one-way delay, p99 (us)": lambda view: quantile(view.delays_us, 0.99),
    "one-way delay below 10 us (% of packets)": lambda view: percent(
        (view.delays_us < 10).sum(), len(view.delays_us)
    ),
    "inference requests (connections)": lambda view: _requests(view, peak=False),
    "peak to mean of inference requests in 1 ms": lambda view: _requests(view, peak=True),
    "ranks that join (connections to the rendezvous)": lambda view: sum(
        flow.dport == kinds.RENDEZVOUS_PORT for flow in view.flows.flows
    ),
    **{
        name: partial(NetworkView.carried, chosen=_named(*services))
        for name, services in SERVICES.items()
    },
    "other services (B)": lambda view: view.carried(lambda one: service_of(one)[0] not in _SERVED),
    "other TCP that a job's master sends (%)": _from_masters,
    **{f"{work} (B)": partial(_during, work=work) for work in WORKS},
    "packets that belong elsewhere": _foreign,
    "faults": lambda view: view.faults,
    "packets lost": lambda view: view.lost,
    "connections and pings that were answered": _answered,
}


def cluster_tables(folder: Path, bounds: Bounds) -> Iterator[tuple[str, Sequence[Figure]]]:
    """Yield the networks side by side, then the tables of each network."""
    record = ClusterRecord.read(folder)
    try:
        topology = choose(str(record.result.get("topology"))).topology
    except TopologyError as error:
        raise UserError(f"the cluster of {folder} cannot be built again: {error}") from None
    views: dict[str, NetworkView] = {}
    missing: dict[str, str] = {}
    sources: list[tuple[str, NetworkView | str]] = []
    built = {str(facts["network"]) for facts in record.result.get("networks", ())}
    for network in (name for name in NETWORKS if name in built):
        found = _view(record, topology, network, bounds)
        if isinstance(found, str):
            missing[network] = found
            sources.append((network, found))
        else:
            sources.append(found)
            views[network] = found[1]
    if (by_rdma := _run_view(record, topology, bounds, storage=True)) is not None:
        sources.append(by_rdma)
        views[BY_RDMA] = by_rdma[1]
    lines = [
        {"property": name, **{network: _measured(measure, views[network]) for network in views}}
        for name, measure in PROPERTIES.items()
    ]
    reasons = "; ".join(f"{network}: {reason}" for network, reason in missing.items())
    yield (
        str(folder),
        [
            Figure(
                name=NAME,
                title=TITLE,
                point=CAPTURED,
                records=lines if views else (),
                reason=None if views else reasons,
                note="Times of networks by the host's clock are the machine's. -: a network has "
                f"nothing of the kind. {reasons}".strip(),
            )
        ],
    )
    for where, source in sources:
        if isinstance(source, str):
            yield where, without(OF_PACKETS, source)
        else:
            yield where, packet_tables(source.traffic, source.topology, bounds)


def _measured(measure: Callable[[NetworkView], Any], view: NetworkView) -> Any:
    return measure(view) if view.traffic.links else None


def _view(
    record: ClusterRecord, topology: Topology, network: str, bounds: Bounds
) -> tuple[str, NetworkView] | str:
    """Return a network with the name of its source, or why it has none."""
    own = topology.network_named(network)
    path = record.path / network / CAPTURE
    cut = f"{record.path.name} has no {network}/{CAPTURE}: uetemu cluster --traffic writes it"
    if path.is_file():
        traffic = captured(CaptureStream(path, own), own, None, record.dilation(network))
        if traffic.links:
            drops = [one["drops"] for one in record.samples if one["network"] == network]
            events = [str(one["text"]) for one in record.result.get("events", ())]
            return network, NetworkView(
                topology=own,
                traffic=traffic,
                bounds=bounds,
                cluster=topology,
                lost=drops[-1] if drops else None,
                faults=_faults(text for text in events if text.startswith(f"{network}: ")),
                works=_works(record, traffic.begin_ns, record.dilation(network)),
            )
        cut = f"the switches of {network} saw no packet"
    of_run = _run_view(record, topology, bounds, storage=False) if network == BACKEND else None
    return of_run or cut


def _run_view(
    record: ClusterRecord, topology: Topology, bounds: Bounds, *, storage: bool
) -> tuple[str, NetworkView] | None:
    """Return what the last captured run in virtual time has, of storage or of the backend."""
    for folder in sorted(filter(is_run_folder, record.path.iterdir()), reverse=True):
        run = RunRecord.read(folder)
        if run.topology is None or (run.topology.name == ClusterStorage.NAME) != storage:
            continue
        found = run_traffic(run, len(run.rows), bounds)
        if isinstance(found, str):
            continue
        row = run.rows[-1]
        works = [_WORKS_BY_RDMA.get(str(row.get("work")), "")] if storage else WORKS
        view = NetworkView(
            topology=replace(run.topology, network=STORAGE) if storage else run.topology,
            traffic=found,
            bounds=bounds,
            cluster=topology,
            lost=row.get("frames_lost"),
            faults=_faults(str(one.get("said")) for one in row.get("faults") or ()),
            works=dict.fromkeys(works, ((-math.inf, math.inf),)),
            counted="the last row",
        )
        name = BY_RDMA if storage else BACKEND
        return f"{name}: {folder.name}, in virtual time", view
    return None


def _faults(said: Iterable[str]) -> int:
    """Return how many of these words of ``uetemu inject`` are no repair."""
    return sum(not words.endswith((" up", " heal")) for words in said)


def _works(record: ClusterRecord, begin_ns: int, dilation: float) -> Mapping[str, Spans]:
    """Return the times of each work, from ``begin_ns`` on (us of the network)."""
    found: dict[str, list[tuple[float, float]]] = {}
    for one in record.result.get("works", ()):
        begin, end = ((one[key] - begin_ns) / 1000 / dilation for key in ("begin_ns", "end_ns"))
        found.setdefault(str(one["work"]), []).append((begin, end))
    return found
