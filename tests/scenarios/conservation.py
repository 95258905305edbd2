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
- from end to end, data that was sent (again, too) arrived whole, arrived trimmed or was dropped.

PAUSE frames of PFC live on one cable each and are counted by who sends and obeys them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from topologies.catalogue import load
from topologies.model import Topology

#: Frames that a port refused: they were not admitted.
REFUSED = ("tail", "black_hole", "link_down", "failure")
#: Frames that were admitted and then lost on the cable.
LOST = ("loss", "burst")


def troubles(result: Mapping[str, Any]) -> list[str]:
    """What does not add up in the ``result.json`` of a whole run, one sentence each."""
    topology = load(result["topology"])
    ports, endpoints = result["ports"], result["endpoints"]
    return [
        f"{what}: {left} on one side, {right} on the other"
        for what, left, right in (
            *_at_nics(topology, ports, endpoints),
            *_on_cables(topology, ports),
            *_at_switch_ports(ports),
            *_in_switches(topology, ports),
            _end_to_end(ports, endpoints, acks_beside=_has_rocev2(result)),
        )
        if left != right
    ]


#: What is compared, and the two numbers that must be the same.
Equation = tuple[str, int, int]
Ports = Mapping[str, Mapping[str, Any]]


def _at_nics(
    topology: Topology, ports: Ports, endpoints: Mapping[str, Mapping[str, int]]
) -> Iterator[Equation]:
    for gpu in topology.gpus:
        own = [str(ours) for _, ours, _ in topology.neighbours(gpu.name)]
        for ours, theirs in (("frames_out", "tx_packets"), ("frames_in", "rx_packets")):
            counted = sum(ports[port][theirs] - _pauses(ports[port], theirs) for port in own)
            yield f"{ours} of {gpu.name}", endpoints[gpu.name][f"nic.{ours}"], counted


def _on_cables(topology: Topology, ports: Ports) -> Iterator[Equation]:
    for node in topology.nodes:
        for _, ours, theirs in topology.neighbours(node.name):
            sent, arrived = ports[str(ours)]["tx_packets"], ports[str(theirs)]["rx_packets"]
            yield f"frames from {ours} to {theirs}", sent, arrived


def _at_switch_ports(ports: Ports) -> Iterator[Equation]:
    for name, port in ports.items():
        if "asic" in port:
            below = sum(port[queue]["drops"] for queue in ("data", "control"))
            went = port["tx_packets"] - _pauses(port, "tx_packets") + below + _dropped(port, LOST)
            yield f"frames admitted at {name}", _summed(port, "packets"), went


def _in_switches(topology: Topology, ports: Ports) -> Iterator[Equation]:
    for switch in topology.switches:
        cables = [
            (ports[str(ours)], ports[str(theirs)])
            for _, ours, theirs in topology.neighbours(switch.name)
        ]
        own = [port for port, _ in cables]
        arrived = sum(
            port["rx_packets"] - _pauses(port, "rx_packets") + _summed(port, "duplicated")
            for port in own
        )
        decided = sum(_summed(port, "packets") + _dropped(port, REFUSED) for port in own)
        yield f"frames through {switch.name}", arrived, decided
        came_trimmed = sum(
            _class(port, "trimmed", "packets") - _dropped(port, LOST, "trimmed")
            for _, port in cables
            if "asic" in port
        )
        cut = sum(_summed(port, "trimmed") - _dropped(port, ("failure",)) for port in own)
        left_trimmed = sum(
            _class(port, "trimmed", "packets") + _dropped(port, REFUSED, "trimmed") for port in own
        )
        yield f"trimmed frames in {switch.name}", came_trimmed + cut, left_trimmed


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
    found = arrived + dropped
    if acks_beside and arrived <= sent <= found:
        found = sent  # what is too many may have been acknowledgements
    return "data packets from end to end", sent, found


def _pauses(port: Mapping[str, Any], way: str) -> int:
    """PAUSE frames of PFC, which end at the next port and pass no queue."""
    counted = port.get("pfc", {})
    names = ("xoff_sent", "xon_sent") if way == "tx_packets" else ("xoff_received", "xon_received")
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
