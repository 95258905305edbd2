"""Datagrams at a steady rate: ``python -m emulator.cluster.run.clients.udp_burst JSON``.

They carry the destination port of RoCEv2, and nothing that a NIC would take for it: load for a
backend, from a namespace of a GPU.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

#: Of RoCEv2 (InfiniBand Architecture, Annex A17).
ROCEV2_PORT = 4791
#: Datagrams are sent in groups this far apart (s).
TICK_S = 0.01


@dataclass(frozen=True, kw_only=True)
class UdpBurst:
    """``octets`` a datagram to each of ``peers`` in turn, ``rate_bps`` for ``seconds``."""

    peers: Sequence[str]
    octets: int
    rate_bps: float
    seconds: float


def send(burst: UdpBurst) -> int:
    """Send ``burst``; return how many datagrams have left."""
    began, sent, refused = time.monotonic(), 0, 0
    per_second = burst.rate_bps / 8 / burst.octets
    payload = bytes(burst.octets)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        while (now := time.monotonic() - began) < burst.seconds:
            while sent + refused < now * per_second:
                try:
                    out.sendto(payload, (burst.peers[sent % len(burst.peers)], ROCEV2_PORT))
                    sent += 1
                except OSError:
                    refused += 1
            time.sleep(TICK_S)
    return sent


def main(text: str) -> None:
    """Send what ``text`` describes and print how many datagrams have left."""
    json.dump({"sent": send(UdpBurst(**json.loads(text)))}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
