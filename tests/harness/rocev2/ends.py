"""Two or more RoCEv2 endpoints in one process, on the network of the Ultra Ethernet tests."""

import random
from typing import Any

from emulator.rocev2.config import HcaConfig
from emulator.rocev2.connections import Connection
from emulator.rocev2.hca import HostChannelAdapter
from tests.harness.uet.network import MACS, MACS6, Impairment, Network
from uet.transport import Completion

HERE, THERE = "10.0.1.1", "10.0.1.2"
HERE6, THERE6 = "fd00::1", "fd00::2"
KEY = 0x77
FIRST_PSN = 0xFF_FFF0  # soon wraps


def qpn(end: int, number: int = 0) -> int:
    """Return the queue pair ``number`` of one of two ends."""
    return 0x100 * (end + 1) + number


def connections(end: int, qps: int = 1, service: str = "rc") -> tuple[Connection, ...]:
    return tuple(
        Connection(
            local_qpn=qpn(end, n),
            remote_qpn=qpn(1 - end, n),
            first_psn=FIRST_PSN + end,
            expected_psn=FIRST_PSN + 1 - end,
            service=service,
        )
        for n in range(qps)
    )


def adapter(
    end: int, *, qps: int = 1, service: str = "rc", ipv6: bool = False, **parameters: Any
) -> HostChannelAdapter:
    """One of two ends: 0 is HERE, 1 is THERE; all retries end within virtual milliseconds."""
    addresses, macs = ((HERE6, THERE6), MACS6) if ipv6 else ((HERE, THERE), MACS)
    own, peer = addresses[end], addresses[1 - end]
    fields: dict[str, Any] = {"timeout": 5, "mtu": 1024, "min_rnr_timer": 1, **parameters}
    config = HcaConfig(
        address=own,
        mac=macs[own],
        neighbours={peer: macs[peer]},
        connections={peer: connections(end, qps, service)},
        **fields,
    )
    return HostChannelAdapter(config, seed=end)


def pair(
    impairment: Impairment | None = None, *, seed: int = 1, keep: bool = False, **parameters: Any
) -> Network:
    """Two ends on a network; their addresses are the keys of ``endpoints``, in order."""
    ends = [adapter(end, **parameters) for end in (0, 1)]
    return Network(
        {end.config.address: end for end in ends},  # type: ignore[misc]
        random.Random(seed),
        impairment or Impairment(),
        keep=keep,
    )


def ends(network: Network) -> tuple[HostChannelAdapter, HostChannelAdapter]:
    here, there = network.endpoints.values()
    return here, there  # type: ignore[return-value]


def done(network: Network, end: int, kind: str) -> list[Completion]:
    address = list(network.endpoints)[end]
    return [one for one in network.completions[address] if one.kind == kind]
