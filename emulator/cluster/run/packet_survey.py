"""What captures have, by tshark; a watch over management, whose packets are all to be its own."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from emulator.cluster.run.cluster_context import ClusterContext
from emulator.cluster.services import kinds
from emulator.cluster.services.service_plan import KINDS
from emulator.errors import UserError
from emulator.rocev2.wire import codes as rocev2_codes
from topologies.addressing import NETWORK_BLOCKS
from topologies.cluster import MANAGEMENT_SWITCH
from topologies.model import FRONTEND, MANAGEMENT, STORAGE
from uet.wire import codes

LONGEST_S = 120.0
#: Sources and destinations that belong to every network (RFC 1122, RFC 1112).
COMMON = tuple(map(IPv4Network, ("0.0.0.0/32", "255.255.255.255/32", "224.0.0.0/4")))
_FIELDS = ("ip.src", "ip.dst", "_ws.col.Protocol")
_PORTS = ("tcp.srcport", "tcp.dstport", "udp.srcport", "udp.dstport")


@dataclass(frozen=True)
class PacketSurvey:
    """``packets`` of a capture by protocol, and the ``foreign`` ones as texts.

    ``by_port`` counts packets by each of their TCP and UDP ports.
    """

    packets: Counter[str] = field(default_factory=Counter)
    foreign: Counter[str] = field(default_factory=Counter)
    by_port: Counter[int] = field(default_factory=Counter)

    def row(self, what: str, **more: object) -> dict[str, object]:
        """Return a row of a result, which is right if there are packets and none is foreign."""
        return {
            "what": what,
            "packets": sum(self.packets.values()),
            **more,
            "foreign": sum(self.foreign.values()),
            "such_as": next(iter(self.foreign), None),
            "ok": not self.foreign and bool(self.packets),
        }


def survey(
    path: Path, own: Iterable[IPv4Network], foreign_ports: Container[int] = ()
) -> PacketSurvey:
    """Return what the capture ``path`` has.

    Packets outside the networks ``own`` are foreign, and those of ``foreign_ports``.  Raises
    UserError if tshark cannot read it.
    """
    argv = ["tshark", "-n", "-r", str(path), "-T", "fields"]
    for name in (*_FIELDS, *_PORTS):
        argv += ["-e", name]
    try:
        printed = subprocess.run(
            argv, capture_output=True, text=True, check=True, timeout=LONGEST_S
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"{path} cannot be read by tshark: {error}") from None
    found, allowed = PacketSurvey(), (*own, *COMMON)
    for line in printed.splitlines():
        fields = line.split("\t")
        source, destination, protocol = [*fields, "", "", ""][: len(_FIELDS)]
        ports = {int(one) for value in fields[len(_FIELDS) :] for one in value.split(",") if one}
        found.packets[protocol] += 1
        found.by_port.update(ports)
        addresses = [one for one in (*source.split(","), *destination.split(",")) if one]
        if any(port in foreign_ports for port in ports) or not all(
            any(IPv4Address(one) in network for network in allowed) for one in addresses
        ):
            found.foreign[f"{source} > {destination} {protocol}"] += 1
    return found


@dataclass(frozen=True, kw_only=True)
class ManagementWatch:
    """Captures of all packets of management, and of those of the rendezvous ``elsewhere``."""

    management: Path
    elsewhere: Sequence[Path]

    def rows(self) -> Iterator[Mapping[str, object]]:
        """Yield the rows of what both have seen; call it after the watch."""
        block = [NETWORK_BLOCKS[MANAGEMENT]]
        found = survey(self.management, block, foreign_ports())
        yield found.row("packets on management")
        others = sum(survey(path, block).by_port[kinds.RENDEZVOUS_PORT] for path in self.elsewhere)
        yield {
            "what": "packets of the rendezvous",
            "on_management": found.by_port[kinds.RENDEZVOUS_PORT],
            "elsewhere": others,
            "watched_switches": len(self.elsewhere),
            "ok": found.by_port[kinds.RENDEZVOUS_PORT] > 0 and not others,
        }


def foreign_ports() -> frozenset[int]:
    """Return the TCP and UDP ports of training, and of services of other networks."""
    own = {kind.port for kind in KINDS.values() if kind.network == MANAGEMENT}
    others = {kind.port for kind in KINDS.values() if kind.network not in (None, MANAGEMENT)}
    found = {rocev2_codes.UDP_PORT, codes.UDP_PORT, *others} - own
    return frozenset(port for port in found if port is not None)


@contextmanager
def management_watched(run: ClusterContext) -> Iterator[ManagementWatch]:
    """Capture at the management switch, and at each leaf of frontend and storage, meanwhile."""
    with ExitStack() as capturing:
        elsewhere = [
            capturing.enter_context(
                run.watched(leaf, f"rendezvous-{leaf}", f"tcp port {kinds.RENDEZVOUS_PORT}")
            )
            for leaf in _server_leaves(run)
        ]
        management = capturing.enter_context(run.watched(MANAGEMENT_SWITCH, "management"))
        yield ManagementWatch(management=management, elsewhere=elsewhere)


def _server_leaves(run: ClusterContext) -> Iterator[str]:
    """Yield the switches of frontend and storage that have a cable to a server."""
    for network in (FRONTEND, STORAGE):
        if network in run.cluster.labs:
            wiring = run.cluster.labs[network].topology
            found = (
                theirs.node
                for server in run.machines.servers
                for _, _, theirs in wiring.neighbours(server)
            )
            yield from dict.fromkeys(found)
