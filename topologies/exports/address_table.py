"""Every address of a fabric, and what is plugged into which port, as one table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields

from topologies.designs.planes import fep_number
from topologies.exports.export_registry import EXPORTS, Export
from topologies.model import CableEnd, Node, Port, Topology


@dataclass(frozen=True, kw_only=True)
class AddressRow:
    """One interface.  What it has none of is empty.

    ``address`` has its prefix.  A member of a bridge has the bridge's subnet and no address; the
    bridge has the gateway's.  ``fep`` is the number of a port's fabric endpoint, where a NIC has
    several.  A switch's loopback is its interface ``lo``.
    """

    node: str
    role: str
    port: str
    mac: str = ""
    address: str = ""
    fep: str = ""
    bridge: str = ""
    subnet: str = ""
    far_node: str = ""
    far_port: str = ""
    rate_bps: int | None = None

    @property
    def far_end(self) -> str:
        return f"{self.far_node}:{self.far_port}" if self.far_node else ""


def rows(topology: Topology) -> Iterator[AddressRow]:
    """The interfaces of every node: loopback, bridges, ports."""
    for node in topology.nodes:
        if node.loopback is not None:
            yield _row(node, "lo", address=f"{node.loopback}/32")
        for bridge in node.bridges:
            gateway = bridge.gateway
            yield _row(
                node,
                bridge.name,
                mac=bridge.mac,
                address=str(gateway or ""),
                subnet=str(gateway.network) if gateway else "",
            )
        cables = {ours.port: (link, far) for link, ours, far in topology.neighbours(node.name)}
        for port in node.ports:
            link, far = cables[port.name]
            yield _row(
                node,
                port.name,
                mac=port.mac,
                address=str(port.address or ""),
                fep=fep_number(topology, node, port.name) if node.feps else "",
                bridge=port.bridge or "",
                subnet=_subnet(node, port),
                far=far,
                rate_bps=link.rate_bps,
            )


def to_csv(topology: Topology) -> str:
    """Return the table with the names of :class:`AddressRow` as its first line.

    RFC 4180, but with newlines.
    """
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(field.name for field in fields(AddressRow))
    writer.writerows(astuple(row) for row in rows(topology))
    return page.getvalue()


def _row(  # noqa: PLR0913  each is a field of what it makes
    node: Node,
    port: str,
    *,
    mac: str = "",
    address: str = "",
    fep: str = "",
    bridge: str = "",
    subnet: str = "",
    far: CableEnd | None = None,
    rate_bps: int | None = None,
) -> AddressRow:
    return AddressRow(
        node=node.name,
        role=node.role.value,
        port=port,
        mac=mac,
        address=address,
        fep=fep,
        bridge=bridge,
        subnet=subnet,
        far_node=far.node if far else "",
        far_port=far.port if far else "",
        rate_bps=rate_bps,
    )


def _subnet(node: Node, port: Port) -> str:
    if port.address is not None:
        return str(port.address.network)
    bridge = next(bridge for bridge in node.bridges if bridge.name == port.bridge)
    return str(bridge.gateway.network) if bridge.gateway else ""


EXPORTS.register(Export("csv", "table of addresses", (".csv",), to_csv))
