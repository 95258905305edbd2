"""Packets are conserved: whatever entered left again, or is counted as lost, by name, at its place.

Three observers count independently: the endpoints (frames through their NICs, packets of their
transports), the kernel (frames through each end of each cable), and the model of the switches
(by port and class: admitted, trimmed, dropped by reason).  What one says must be what the others
say, to the packet, at every hop:

- at a NIC, what the endpoint sent and received is what its cable end carried;
- on a cable, what one end sent the other received;
- at the port of a switch, what the model admitted left, but for what a fault took then;
- in a switch, what arrived at all ports was admitted or dropped at one;
- in a switch, what leaves trimmed arrived so or was trimmed there;
- from end to end, data that was sent (again, too) arrived whole, arrived trimmed or was dropped, by
  the NIC of a dead GPU, too.

Octets are conserved as frames are, but for what a drop or a trimmed payload takes and a tunnel
adds.  With the virtual clock the engine counts a fourth time, what it put into namespaces and what
came out.

PAUSE frames of PFC live on one cable each and are counted by who sends and obeys them.  Where a
cable has a link layer, its end counts the frames that bit errors took.  What was
lost to a cable without carrier is known in sum only: there, no place may have more than went in,
and what is missing at all places is what the rows report.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from emulator.dataplane.model.tunnel import BACK_INTO_TUNNEL, REFUSED_IN_TUNNEL
from emulator.dataplane.switch.pause import FRAME_OCTETS
from topologies.ethernet import FRAMING_OCTETS, SHORTEST_OCTETS
from topologies.model import Topology
from topologies.stretch import stretch_of

#: Frames that a port refused: they were not admitted.
REFUSED = ("tail", "black_hole", "link_down", "failure", "headroom", "watchdog", "pool")
#: Frames that were lost on the cable: admitted before, or arriving from a NIC.
LOST = ("loss", "burst")


#: Why a node refuses what a fault has changed: a tunnel's end, a bridge, the filter of a NIC.
CHANGED = (REFUSED_IN_TUNNEL, BACK_INTO_TUNNEL, "filtered in its namespace")
#: Octets that no frame exceeds.
LONGEST = 1 << 16
#: Losses of cables without carrier, as rows report them.
OF_CARRIER = ("in_flight", "in_queue", "dead_port", "no_route")
#: Ethernet, IPv4, UDP headers: no frame of a transport is shorter.
HEADERS = 14 + 20 + 8


class Equation(NamedTuple):
    """Two numbers that must be the same, and the name of what they count.

    ``right`` may be less by ``allowed`` at most: what is known to be lost, but not exactly.
    """

    what: str
    left: int
    right: int
    allowed: int = 0

    @property
    def missing(self) -> int:
        """How much more went in than came out."""
        return self.left - self.right

    @property
    def wrong(self) -> bool:
        """Whether more came out than went in, or too little."""
        return not 0 <= self.missing <= self.allowed


def troubles(result: Mapping[str, Any], topology: Topology) -> list[str]:
    """Name all that does not add up in a whole run on ``topology``, one sentence each."""
    ports, endpoints = result["ports"], result["endpoints"]
    account = [*_injected(result)]
    refused = _refused(result)
    places = [
        *_at_nics(topology, ports, endpoints, "frames", refused),
        *_on_cables(topology, ports, "packets"),
        *_in_switches(topology, ports, refused),
        *_at_switch_ports(ports),
    ]
    octets = [
        *_at_nics(topology, ports, endpoints, "octets", refused),
        *_on_cables(topology, ports, "bytes"),
        *_octets_at_switch_ports(ports),
        *_octets_in_switches(topology, ports),
    ]
    end = _end_to_end(ports, endpoints, acks_beside=_has_rocev2(result))
    changed = sum(_summed(port, "corrupted") for port in ports.values() if "asic" in port)
    end = end._replace(allowed=changed)  # acknowledgements among them, too
    to_carrier = _lost_to_carrier(result)
    lost = (to_carrier or 0) + sum(_dropped(one, LOST) for one in ports.values() if "asic" in one)
    if to_carrier is None:  # or it has them: they had left
        lost += sum(map(_errored, ports.values()))
    missing = sum(place.missing for place in places)
    checked = [*account, Equation("frames lost on cables", lost, missing)]
    if to_carrier is None:
        checked += [*places, *_trimmed(topology, ports), *octets, end]
    else:
        checked += [place._replace(allowed=lost) for place in places]
    return [
        f"{one.what}: {one.left} on one side, {one.right} on the other"
        for one in checked
        if one.wrong
    ]


def _lost_to_carrier(result: Mapping[str, Any]) -> int | None:
    """Frames that cables without carrier took, None if none was pulled."""
    rows = [row["lost_packets"] for row in result["rows"] if "lost_packets" in row]
    if not any(reason in row for row in rows for reason in OF_CARRIER):
        return None
    return sum(row.get(reason, 0) for row in rows for reason in OF_CARRIER)


Ports = Mapping[str, Mapping[str, Any]]


def _injected(result: Mapping[str, Any]) -> Iterator[Equation]:
    """With the virtual clock, each crossing of a namespace is in the engine's account, once."""
    account = result["fidelity"].get("account")
    if account is None:
        return
    ports = result["ports"].values()
    crossed = sum(counters["nic.frames_out"] for counters in result["endpoints"].values())
    crossed += sum(port["rx_packets"] - _pauses(port, "rx_packets") for port in ports)
    yield Equation("frames into namespaces", account["injected"], crossed)
    fates = account["delivered"] + sum(account["dropped"].values())
    yield Equation("frames out of namespaces", account["injected"], fates)


def _refused(result: Mapping[str, Any]) -> Counter[str]:
    """Changed frames that a node took in and refused, by node; no counter of a port has them."""
    found: Counter[str] = Counter()
    for cause, count in result["fidelity"].get("account", {}).get("dropped", {}).items():
        node, _, reason = cause.partition(": ")
        if reason in CHANGED:
            found[node] += count
    return found


def _at_nics(
    topology: Topology,
    ports: Ports,
    endpoints: Mapping[str, Mapping[str, int]],
    what: str,
    refused: Mapping[str, int],
) -> Iterator[Equation]:
    unit, name = (1, "packets") if what == "frames" else (FRAME_OCTETS, "bytes")
    for gpu in topology.gpus:
        own = [str(ours) for _, ours, _ in topology.neighbours(gpu.name)]
        sent, arrived = (
            sum(ports[port][way] - unit * _pauses(ports[port], way) for port in own)
            for way in (f"tx_{name}", f"rx_{name}")
        )
        counted = endpoints[gpu.name]
        yield Equation(f"{what} out of {gpu.name}", counted[f"nic.{what}_out"], sent)
        taken, strange = counted[f"nic.{what}_in"], refused[gpu.name]
        if what == "frames":
            yield Equation(f"frames into {gpu.name}", arrived, taken + strange)
        else:
            yield Equation(f"octets into {gpu.name}", arrived, taken, allowed=strange * LONGEST)


def _on_cables(topology: Topology, ports: Ports, what: str) -> Iterator[Equation]:
    for node in topology.nodes:
        for _, ours, theirs in topology.neighbours(node.name):
            sent, arrived = ports[str(ours)][f"tx_{what}"], ports[str(theirs)][f"rx_{what}"]
            longest = 1 if what == "packets" else topology.link_at(ours).mtu + FRAMING_OCTETS
            allowed = _errored(ports[str(theirs)]) * longest
            yield Equation(f"{what} from {ours} to {theirs}", sent, arrived, allowed=allowed)


def _errored(port: Mapping[str, Any]) -> int:
    """Frames that came to a port with a bit error, which no link layer replays."""
    count: int = port.get("link", {}).get("lost_frames", 0)
    return count


def _at_switch_ports(ports: Ports) -> Iterator[Equation]:
    for name, port in ports.items():
        if "asic" in port:
            below = sum(port[queue]["drops"] for queue in ("data", "control"))
            went = port["tx_packets"] - _pauses(port, "tx_packets") + below
            admitted, lost = _summed(port, "packets"), _dropped(port, LOST)
            yield Equation(f"frames admitted at {name}", admitted, went, allowed=lost)


def _octets_at_switch_ports(ports: Ports) -> Iterator[Equation]:
    """Octets on the wire that were admitted left, but for what a fault took; a frame is padded."""
    for name, port in ports.items():
        if "asic" not in port or any(port[queue]["drops"] for queue in ("data", "control")):
            continue
        frames = port["tx_packets"] - _pauses(port, "tx_packets")
        octets = port["tx_bytes"] - FRAME_OCTETS * _pauses(port, "tx_bytes")
        admitted = _summed(port, "bytes") - _summed(port, "lost_bytes")
        padding = frames * (SHORTEST_OCTETS - FRAMING_OCTETS - HEADERS)
        left = octets + FRAMING_OCTETS * frames
        yield Equation(f"octets admitted at {name}", admitted, left, allowed=padding)


def _octets_in_switches(topology: Topology, ports: Ports) -> Iterator[Equation]:
    """All octets that arrive leave, but those trimmed or dropped; tunnels begin and end inside."""
    if stretch_of(topology) is not None:
        return
    longest = max(link.mtu for link in topology.links) + FRAMING_OCTETS
    for switch in topology.switches:
        own = [ports[str(ours)] for _, ours, _ in topology.neighbours(switch.name)]
        if any("asic" not in port or _summed(port, "duplicated") for port in own):
            continue
        arrived, left = (
            sum(port[way] - FRAME_OCTETS * _pauses(port, way) for port in own)
            for way in ("rx_bytes", "tx_bytes")
        )
        taken = sum(_summed(port, "trimmed") + _dropped(port, (*REFUSED, *LOST)) for port in own)
        yield Equation(f"octets through {switch.name}", arrived, left, allowed=taken * longest)


def _in_switches(
    topology: Topology, ports: Ports, refused: Mapping[str, int]
) -> Iterator[Equation]:
    for switch in topology.switches:
        own = [ports[str(ours)] for _, ours, _ in topology.neighbours(switch.name)]
        if any("asic" not in port for port in own):
            continue  # plain queues of the kernel, or a server that forwards
        arrived = sum(
            port["rx_packets"] - _pauses(port, "rx_packets") + _summed(port, "duplicated")
            for port in own
        )
        decided = sum(_summed(port, "packets") + _dropped(port, REFUSED) for port in own)
        decided += refused[switch.name]
        lost = sum(_dropped(port, LOST) for port in own)
        yield Equation(f"frames through {switch.name}", arrived, decided, allowed=lost)


def _trimmed(topology: Topology, ports: Ports) -> Iterator[Equation]:
    for switch in topology.switches:
        cables = [
            (ports[str(ours)], ports[str(theirs)])
            for _, ours, theirs in topology.neighbours(switch.name)
        ]
        own = [port for port, _ in cables if "asic" in port]
        came_trimmed = sum(
            _class(port, "trimmed", "packets") - _dropped(port, LOST, "trimmed")
            for _, port in cables
            if "asic" in port
        )
        cut = sum(_summed(port, "trimmed") - _dropped(port, ("failure",)) for port in own)
        left_trimmed = sum(
            _class(port, "trimmed", "packets") + _dropped(port, REFUSED, "trimmed") for port in own
        )
        yield Equation(f"trimmed frames in {switch.name}", came_trimmed + cut, left_trimmed)


def _has_rocev2(result: Mapping[str, Any]) -> bool:
    return any(row["transport"].startswith("rocev2") for row in result["rows"])


def _end_to_end(
    ports: Ports, endpoints: Mapping[str, Mapping[str, int]], *, acks_beside: bool
) -> Equation:
    """``acks_beside``: acknowledgements have the class of data, as RoCEv2's, and drop there too."""

    def counted(*names: str) -> int:
        return sum(
            counters.get(f"transport.{name}", 0)
            for counters in endpoints.values()
            for name in names
        )

    sent = counted("tx_data_packets", "tx_retransmitted_packets")
    arrived = counted("rx_data_packets", "rx_trimmed")
    dropped = sum(
        _dropped(port, (*REFUSED, *LOST), kind)
        for port in ports.values()
        if "asic" in port
        for kind in ("data", "retransmission", "untrimmed", "trimmed")
    )
    dead = sum(counters.get("nic.gpu_dead", 0) for counters in endpoints.values())
    dead += sum(map(_errored, ports.values()))
    found = arrived + dropped + dead
    probes = counted("tx_control_packets") - counted("rx_control_packets")
    if arrived <= sent <= found and (acks_beside or found - sent <= probes + dead):
        found = sent  # what is too many may have been acknowledgements, or probes of UET
    return Equation("data packets from end to end", sent, found)


def _pauses(port: Mapping[str, Any], way: str) -> int:
    """PAUSE frames of PFC that went ``way``; they end at the next port and pass no queue."""
    counted = port.get("pfc", {})
    sent = way.startswith("tx")
    names = ("xoff_sent", "xon_sent") if sent else ("xoff_received", "xon_received")
    return sum(counted.get(name, 0) for name in names)


def _class(port: Mapping[str, Any], kind: str, name: str) -> int:
    count: int = port["asic"]["classes"][kind][name]
    return count


def _summed(port: Mapping[str, Any], name: str) -> int:
    return sum(_class(port, kind, name) for kind in port["asic"]["classes"])


def _dropped(port: Mapping[str, Any], reasons: tuple[str, ...], kind: str | None = None) -> int:
    classes = port["asic"]["classes"]
    return sum(
        row["drops"][reason]
        for name, row in classes.items()
        if kind in (None, name)
        for reason in reasons
    )
