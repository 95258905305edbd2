"""The firewall of a cluster's border router, by nftables: what users may begin, and how much not.

Users reach model servers by HTTP, and may ping.  Answers to what began inside pass.  All else that
they send is dropped and counted.
"""

from __future__ import annotations

import json
import subprocess
from typing import NamedTuple

from emulator.errors import UserError
from emulator.lab import Lab
from topologies.cluster.machine_networks import BORDER, MODEL_PORT, USERS_BRIDGE

TABLE = "border"
COUNTER = "refused"
RULES = f"""
table inet {TABLE} {{
  counter {COUNTER} {{ }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname != "{USERS_BRIDGE}" accept
    ct state established,related accept
    tcp dport {MODEL_PORT} ct state new accept
    icmp type echo-request accept
    counter name "{COUNTER}" drop
  }}
}}
"""
ANSWER_S = 20.0


class Refused(NamedTuple):
    """What the firewall has dropped."""

    packets: int
    octets: int


def is_there(lab: Lab) -> bool:
    """Return whether ``lab`` has a border router."""
    return BORDER in lab.topology.by_name


def build(lab: Lab) -> None:
    """Put the rules into the border router of ``lab``.  Raises UserError if nft refuses them."""
    _nft(lab, "-f", "-", text=RULES)


def refused(lab: Lab) -> Refused:
    """Return what the border router of ``lab`` has refused since it was built."""
    answer = json.loads(_nft(lab, "-j", "list", "counter", "inet", TABLE, COUNTER))
    (counter,) = (row["counter"] for row in answer["nftables"] if "counter" in row)
    return Refused(counter["packets"], counter["bytes"])


def _nft(lab: Lab, *arguments: str, text: str = "") -> str:
    with lab.popen(
        BORDER,
        ["nft", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, err = process.communicate(text, timeout=ANSWER_S)
    if process.returncode:
        stated = err.strip().splitlines() or ["no reason"]
        raise UserError(f"the firewall of {BORDER} cannot be set or read: {stated[0]}")
    return str(out)
