"""A survey of captured packets: whose they are, by addresses and ports, and what they carry."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from emulator.errors import UserError

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
