"""DNS and DHCP of the management network, by dnsmasq on the head node.

``h0`` is the machine's management address, ``h0.front`` and ``h0.stor`` are those in the other
networks.  DHCP gives each machine the address that it has, by its MAC.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from emulator.cluster.services.machine_map import MachineMap
from emulator.cluster.services.service_registry import (
    KINDS,
    NeededProgram,
    ServiceKind,
    ServicePlace,
)
from topologies.addressing import PORT_PREFIXES
from topologies.model import MANAGEMENT

PORT = 53
HOSTS, RESERVED, LEASES = "hosts", "reserved", "leases"


def _command(place: ServicePlace) -> Sequence[str]:
    folder = place.directory
    (folder / HOSTS).write_text("".join(_hosts(place.machines)))
    (folder / RESERVED).write_text("".join(_reserved(place.machines)))
    subnet = place.machines.subnet(place.machine, MANAGEMENT)
    return (
        *("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--log-facility=-"),
        *("--no-resolv", "--no-hosts", "--local=//", "--user=root"),
        f"--addn-hosts={folder / HOSTS}",
        *(f"--listen-address={place.address}", "--bind-interfaces", "--except-interface=lo"),
        *("--pid-file=", f"--dhcp-leasefile={folder / LEASES}", "--log-dhcp"),
        *(f"--dhcp-range={subnet.network_address},static,{subnet.netmask}", "--dhcp-authoritative"),
        f"--dhcp-hostsfile={folder / RESERVED}",
    )


def _hosts(machines: MachineMap) -> Iterator[str]:
    """Yield the lines of a hosts file."""
    for machine, networks in machines.addresses.items():
        for network, address in networks.items():
            name = machine if network == MANAGEMENT else f"{machine}.{PORT_PREFIXES[network]}"
            yield f"{address} {name}\n"


def _reserved(machines: MachineMap) -> Iterator[str]:
    """Yield the line of each machine by which dnsmasq knows it."""
    for machine in machines.within(MANAGEMENT):
        port = machines.topology.network_named(MANAGEMENT).node(machine).ports[0]
        yield f"{port.mac},{machines.address(machine, MANAGEMENT)},{machine}\n"


DNS = KINDS.register(
    ServiceKind(
        name="dns",
        meaning="names of all machines, and their addresses by DHCP (dnsmasq)",
        network=MANAGEMENT,
        machines=lambda machines: machines.named("head"),
        command=_command,
        port=PORT,
        programs=(NeededProgram(command="dnsmasq", package="dnsmasq-base"),),
    )
)
