"""The tables of modelled tunnel ports, from what the control plane has told a switch.

zebra (FRR 8.4) writes them into a kernel: a MAC behind one far end of a tunnel, or, on an Ethernet
segment, behind a group of next hops in the order of ``zebra_evpn_es_vtep_cmp``.
"""

from __future__ import annotations

from emulator.dataplane.control_plane.advertised_members import AdvertisedMembers
from emulator.dataplane.model.model_tunnel import TunnelTable
from topologies.model import Topology


def tunnel_table(
    topology: Topology, advertised: AdvertisedMembers, switch: str, vni: int
) -> tuple[TunnelTable, dict[bytes, bytes]]:
    """Return the table of the tunnel port of ``vni`` in ``switch``, and who is a neighbour by it.

    Neighbours are IPv4 address -> MAC.  To everybody a frame goes in the order of the topology.
    """
    behind: dict[bytes, tuple[bytes, ...]] = {}
    neighbours: dict[bytes, bytes] = {}
    for gpu, owners in advertised.elsewhere(switch, vni):
        ends = tuple(sorted((_loopback(topology, one) for one in owners), key=_as_zebra_sorts))
        for port in topology.node(gpu).ports if ends else ():
            assert port.address is not None  # a member of a subnet
            mac = bytes.fromhex(port.mac.replace(":", ""))
            behind[mac] = ends
            neighbours[port.address.ip.packed] = mac
    everybody = tuple(_loopback(topology, one) for one in advertised.others(switch, vni))
    return TunnelTable(everybody, behind), neighbours


def _as_zebra_sorts(address: bytes) -> int:
    """Return ``address`` as the number that a little-endian machine takes its octets for."""
    return int.from_bytes(address, "little")


def _loopback(topology: Topology, switch: str) -> bytes:
    address = topology.node(switch).loopback
    assert address is not None  # the topology is valid
    return address.packed
