"""A survey of captured packets: whose they are, by their addresses, and what they carry."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from emulator.errors import UserError

LONGEST_S = 120.0
#: Sources and destinations that belong to every network (RFC 1122, RFC 1112).
COMMON = tuple(map(IPv4Network, ("0.0.0.0/32", "255.255.255.255/32", "224.0.0.0/4")))
_FIELDS = ("ip.src", "ip.dst", "_ws.col.Protocol")


@dataclass(frozen=True)
class PacketSurvey:
    """``packets`` of a capture by protocol, and those of ``foreign`` addresses as texts."""

    packets: Counter[str] = field(default_factory=Counter)
    foreign: Counter[str] = field(default_factory=Counter)

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


def survey(path: Path, own: Iterable[IPv4Network]) -> PacketSurvey:
    """Return what the capture ``path`` has; packets outside the networks ``own`` are foreign.

    Raises UserError if tshark cannot read it.
    """
    argv = ["tshark", "-n", "-r", str(path), "-T", "fields"]
    for name in _FIELDS:
        argv += ["-e", name]
    try:
        printed = subprocess.run(
            argv, capture_output=True, text=True, check=True, timeout=LONGEST_S
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"{path} cannot be read by tshark: {error}") from None
    found, allowed = PacketSurvey(), (*own, *COMMON)
    for line in printed.splitlines():
        source, destination, protocol = [*line.split("\t"), "", "", ""][:3]
        found.packets[protocol] += 1
        for address in (*source.split(","), *destination.split(",")):
            if address and not any(IPv4Address(address) in network for network in allowed):
                found.foreign[f"{source} > {destination} {protocol}"] += 1
                break
    return found
