"""Measure RoCEv2 against Ultra Ethernet: one flow of large writes, 4 KiB payloads, in turn.

In memory: two endpoints in one process, a list as the wire; frames are copied once on the way, as a
socket would.  Over a fabric: as in :mod:`tests.bench.endpoint`, ``uetemu fep`` and ``uetemu hca``
on two GPUs on different rails, without congestion control.  Ratios mean the same on any machine.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

from emulator.rocev2.config import HcaConfig
from emulator.rocev2.connections import Connection
from emulator.rocev2.hca import HostChannelAdapter
from tests.bench import endpoint
from uet.config import FepConfig
from uet.fep import FabricEndpoint
from uet.transport import Transport, WriteRequest

HERE, THERE = "10.0.1.1", "10.0.1.2"
_MACS = {HERE: "02:00:00:00:00:01", THERE: "02:00:00:00:00:02"}
_KEY = 1
_MESSAGE = 4 << 20
_BATCH = 32
_NS_A_TURN = 2_000
#: As of Ultra Ethernet: no congestion control, timers for a host that is much slower than the
#: fabric, 1 MiB in flight.
PLAIN = ("--set", "cc=none", "--set", "timeout=17", "--set", "window_packets=256")
_HEADER_DATA = 7

Ends = tuple[Transport, Transport]


def uet_ends() -> Ends:
    """Two Ultra Ethernet endpoints, reliable unordered delivery."""
    here, there = (
        FabricEndpoint(
            FepConfig(
                address=own,
                mac=_MACS[own],
                neighbours={peer: _MACS[peer]},
                window_bytes=1 << 20,
                rto_init_time=500_000_000,
            ),
            seed=1,
        )
        for own, peer in ((HERE, THERE), (THERE, HERE))
    )
    return here, there


def rocev2_ends() -> Ends:
    """Two RoCEv2 endpoints, one reliable connection."""
    here, there = (
        HostChannelAdapter(
            HcaConfig(
                address=own,
                mac=_MACS[own],
                neighbours={peer: _MACS[peer]},
                connections={peer: (Connection(local_qpn=local, remote_qpn=remote),)},
                timeout=17,
                endless_receives=True,
            )
        )
        for own, peer, local, remote in ((HERE, THERE, 17, 18), (THERE, HERE, 18, 17))
    )
    return here, there


def packets_per_s(ends: Ends, messages: int) -> float:
    """Data packets a second of ``messages`` writes of 4 MiB."""
    here, there = ends
    source, target = memoryview(bytearray(_MESSAGE)), memoryview(bytearray(_MESSAGE))
    there.register(target, key=_KEY)
    for _ in range(messages):
        here.post(
            WriteRequest(peer=THERE, key=_KEY, offset=0, payload=source, header_data=_HEADER_DATA)
        )
    now = done = 0
    start = time.perf_counter()
    while done < messages:
        now += _NS_A_TURN
        for one, other in ((here, there), (there, here)):
            frames = [memoryview(b"".join(frame)) for frame in one.transmit(now, _BATCH)]
            if frames:
                other.receive(frames, now)
        done += len(here.completions())
        there.completions()
    return messages * (_MESSAGE // 4096) / (time.perf_counter() - start)


def compared(where: str, ways: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Median rates of both stacks, and RoCEv2's over Ultra Ethernet's, measured in turn."""
    rates = endpoint.in_turn(ways, endpoint.ROUNDS)
    return {
        f"uet_{where}_packets_per_s": statistics.median(rates["uet"]),
        f"rocev2_{where}_packets_per_s": statistics.median(rates["rocev2"]),
        f"rocev2_{where}_ratio": endpoint.ratio(rates["rocev2"], rates["uet"]),
    }


def measure() -> dict[str, float]:
    """Both, in memory and on the reference fabric."""
    memory = compared(
        "memory",
        {
            "uet": lambda: packets_per_s(uet_ends(), 12),
            "rocev2": lambda: packets_per_s(rocev2_ends(), 12),
        },
    )
    with endpoint.reference_lab() as lab:
        rate = endpoint.packets_per_s
        return memory | compared(
            "fabric",
            {
                "uet": partial(rate, "fep", lab, *endpoint.PLAIN),
                "rocev2": partial(rate, "hca", lab, *PLAIN),
            },
        )


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201
