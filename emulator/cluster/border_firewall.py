"""The firewall of a cluster's border router, by nftables: what users may begin, and how much not.

Users reach model servers by HTTP, and may ping.  Answers to what began inside pass.  All else that
they send is dropped and counted.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from emulator.cluster.node_filter import nft
from emulator.dataplane.lab import Lab
from topologies.cluster import BORDER, MODEL_PORT, USERS_BRIDGE

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


class RefusedByBorder(NamedTuple):
    """The packets and octets that the firewall has dropped."""

    packets: int
    octets: int


def is_there(lab: Lab) -> bool:
    """Return whether ``lab`` has a border router."""
    return BORDER in lab.topology.by_name


def build(lab: Lab) -> None:
    """Put the rules into the border router of ``lab``.  Raises UserError if nft refuses them."""
    nft(lab, BORDER, "-f", "-", text=RULES)


def refused(lab: Lab) -> RefusedByBorder:
    """Return what the border router of ``lab`` has refused since it was built."""
    answer = json.loads(nft(lab, BORDER, "-j", "list", "counter", "inet", TABLE, COUNTER))
    (counter,) = (row["counter"] for row in answer["nftables"] if "counter" in row)
    return RefusedByBorder(counter["packets"], counter["bytes"])
