"""The networks of a cluster side by side: what the design says of each of them, measured.

A folder of ``uetemu cluster SCENARIO --capture`` has a capture of the switch ports of each network.
A network of the host's clock is counted over the whole run, in its own time; if the backend's lab
was silent, it is the last run in virtual time, over the last iteration of its last row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from emulator.cluster.services import kinds
from emulator.cluster.services.service_plan import KINDS
from emulator.dataplane.fabric_choice import choose
from emulator.errors import UserError
from emulator.report.cluster_page import ClusterRecord
from emulator.report.follow.capture import CaptureStream
from emulator.report.run.figures.figure import Figure
from emulator.report.run_folder import RunRecord, is_run_folder
from emulator.report.traffic import measures
from emulator.report.traffic.frames import (
    TCP,
    UDP,
    CapturedTraffic,
    FiveTuple,
    LinkFrames,
    captured,
)
from emulator.report.traffic.tables import (
    CAPTURED,
    OF_PACKETS,
    Bounds,
    Flows,
    elephants,
    flows_of,
    packet_tables,
    percent,
    run_traffic,
    without,
)
from emulator.run_files import CAPTURE
from topologies.model import BACKEND, FRONTEND, MANAGEMENT, STORAGE, Topology, TopologyError

NAME, TITLE = "networks", "The networks side by side"
#: RFC 4271, RFC 5881 and RFC 5883.
BGP_PORT, BFD_PORTS = 179, (3784, 4784)
#: UDP ports of the services that have no port of their own: DHCP, NTP, PTP; and rpcbind's.
_MORE = {67: "dhcp", 68: "dhcp", 123: "ntp", 319: "ptp", 320: "ptp"}
_RPCBIND = 111
RDMA = ("UET", "RoCEv2")
#: The window of a peak (us).
PEAK_US = 10


@dataclass(frozen=True)
class NetworkView:
    """A network and what was captured of it; ``lost`` are the packets that its ports dropped.

    ``gpus`` has the number of GPUs of each server.
    """

    topology: Topology
    traffic: CapturedTraffic
    bounds: Bounds
    lost: int | None
    gpus: Mapping[str, int]

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


def _of(network: str) -> Callable[[FiveTuple], bool]:
    return lambda flow: service_of(flow)[1] == network


def _ports(*ports: int) -> Callable[[FiveTuple], bool]:
    return lambda flow: flow.protocol in (TCP, UDP) and bool({flow.sport, flow.dport} & set(ports))


def _machines(view: NetworkView) -> str:
    senders = {one.sender.node for one in view.injected}
    return f"{len(senders)} of {len(view.topology.gpus)}"


def _rates(view: NetworkView) -> str:
    """Return the rates of the ports at which machines sent (Gb/s)."""
    return " ".join(sorted({f"{one.rate_bps / 1e9:g}" for one in view.injected}))


def _gpus_a_port(view: NetworkView) -> float | None:
    """Return how many GPUs share a port of this network, at servers that send."""
    senders = {one.sender.node for one in view.injected}
    if view.topology.network == BACKEND:
        nics = [node.name for node in view.topology.nodes if node.transparent]
        behind = [sum(1 for _ in view.topology.neighbours(nic)) - 1 for nic in nics]
        return max(behind, default=1)
    shared = [
        count / len(view.topology.node(server).ports)
        for server, count in view.gpus.items()
        if server in senders
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


def _entropy(links: Sequence[LinkFrames]) -> float | None:
    bits = [
        measures.entropy_bits(np.unique(one.tuples, return_counts=True)[1])
        for one in links
        if len(one.tuples)
    ]
    return round(max(bits), 3) if bits else None


def _elephants(view: NetworkView, key: str) -> Any:
    return elephants(view.flows.octets, view.bounds)[key]


def _mean_use(view: NetworkView) -> float | None:
    return _median([percent(one.busy_us.sum(), view.span_us) or 0.0 for one in view.injected])


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


def _busiest(view: NetworkView) -> str | None:
    """Return the machine that sent most, and its share."""
    sent: dict[str, int] = {}
    for link in view.injected:
        sent[link.sender.node] = sent.get(link.sender.node, 0) + int(link.octets.sum())
    if not sent:
        return None
    most = max(sent, key=lambda one: (sent[one], one))
    return f"{most} {percent(sent[most], sum(sent.values())):.3g} %"


def _from_storage(view: NetworkView, *, sent: bool) -> int:
    """Return the octets that storage nodes sent, or that were sent to them."""
    links = [one for one in view.traffic.links if (one.injects if sent else one.delivers)]
    found = 0
    for link in links:
        far = view.topology.far_end(link.sender).node
        machine = link.sender.node if sent else far
        if machine.rstrip("0123456789") == STORAGE:
            found += int(link.octets.sum())
    return found


def _services(view: NetworkView) -> str:
    found: dict[str, int] = {}
    for flow, octets in zip(view.flows.flows, view.flows.octets.tolist(), strict=True):
        name = service_of(flow)[0]
        found[name] = found.get(name, 0) + octets
    return " ".join(f"{name}:{octets}" for name, octets in sorted(found.items())) or "none"


def _foreign(view: NetworkView) -> int:
    """Return the packets of training, storage and users that machines sent into management."""
    if view.topology.network != MANAGEMENT:
        return view.packets(_of(MANAGEMENT), view.injected)
    return view.packets(
        lambda flow: service_of(flow)[1] in (BACKEND, FRONTEND, STORAGE), view.injected
    )


#: What is measured of each network, by the name of the line.
PROPERTIES: Mapping[str, Callable[[NetworkView], Any]] = {
    "machines or GPUs that send": _machines,
    "rate of their ports (Gb/s)": _rates,
    "GPUs that share a port": _gpus_a_port,
    "routers on the way, at most": _routers,
    "links between switches that carry": lambda view: len(view.inner),
    "TCP (% of octets sent)": lambda view: view.share(lambda flow: flow.protocol == TCP),
    "RDMA: UET, RoCEv2 (%)": lambda view: view.share(lambda flow: flow.name in RDMA),
    "flows": lambda view: len(view.flows.flows),
    "mice": lambda view: _elephants(view, "mice"),
    "octets of elephants (%)": lambda view: _elephants(view, "elephant_bytes_percent"),
    "median flow (B)": lambda view: _elephants(view, "median_bytes"),
    "median flow lasts (us)": lambda view: _median(view.flows.last_us - view.flows.first_us),
    "entropy of a machine's link, most (bits)": lambda view: _entropy(view.injected),
    "entropy between switches, most (bits)": lambda view: _entropy(view.inner),
    "median use of machines' links (%)": _mean_use,
    "most use in 10 us (%)": lambda view: _peak(view, to_mean=False),
    "peak to mean in 10 us": lambda view: _peak(view, to_mean=True),
    "BGP packets": lambda view: view.packets(_ports(BGP_PORT), view.inner),
    "BFD packets": lambda view: view.packets(_ports(*BFD_PORTS), view.inner),
    "VXLAN between switches (% of packets)": lambda view: percent(
        view.packets(lambda flow: flow.name == "VXLAN", view.inner),
        sum(len(one.tuples) for one in view.inner),
    ),
    "VXLANs": lambda view: len(view.traffic.vnis),
    "services (B)": _services,
    "management's services (B)": lambda view: view.carried(_of(MANAGEMENT)),
    "storage's services (B)": lambda view: view.carried(_of(STORAGE)),
    "model servers (B)": lambda view: view.carried(_of(FRONTEND)),
    "between ranks, by TCP (B)": lambda view: view.carried(
        lambda flow: service_of(flow)[0] == "other TCP"
    ),
    "sends most": _busiest,
    "storage nodes send (B)": lambda view: _from_storage(view, sent=True),
    "storage nodes receive (B)": lambda view: _from_storage(view, sent=False),
    "packets that belong elsewhere": _foreign,
    "packets lost": lambda view: view.lost,
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
    counted: list[tuple[str, Sequence[Figure]]] = []
    for facts in record.result.get("networks", ()):
        network = str(facts["network"])
        found = _view(record, topology, network, bounds)
        if isinstance(found, str):
            missing[network] = found
            counted.append((network, without(OF_PACKETS, found)))
            continue
        where, views[network] = found
        view = views[network]
        counted.append((where, packet_tables(view.traffic, view.topology, bounds)))
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
                note=f"Times of networks by the host's clock are the machine's. {reasons}".strip(),
            )
        ],
    )
    yield from counted


def _measured(measure: Callable[[NetworkView], Any], view: NetworkView) -> Any:
    return measure(view) if view.traffic.links else None


def _view(
    record: ClusterRecord, topology: Topology, network: str, bounds: Bounds
) -> tuple[str, NetworkView] | str:
    """Return a network with the name of its source, or why it has none."""
    own = topology.network_named(network)
    gpus = {server.name: len(server.gpus) for server in topology.servers}
    drops = [one["drops"] for one in record.samples if one["network"] == network]
    path = record.path / network / CAPTURE
    cut = f"{record.path.name} has no {network}/{CAPTURE}: uetemu cluster --capture writes it"
    if path.is_file():
        traffic = captured(CaptureStream(path, own), own, None, record.dilation(network))
        if traffic.links:
            lost = drops[-1] if drops else None
            return network, NetworkView(own, traffic, bounds, lost, gpus)
        cut = f"the switches of {network} saw no packet"
    if network == BACKEND:
        for folder in sorted(filter(is_run_folder, record.path.iterdir()), reverse=True):
            run = RunRecord.read(folder)
            found = run_traffic(run, len(run.rows), bounds)
            if not isinstance(found, str) and run.topology is not None:
                lost = run.rows[-1].get("frames_lost")
                view = NetworkView(run.topology, found, bounds, lost, gpus)
                return f"{network}: {folder.name}, in virtual time", view
    return cut
