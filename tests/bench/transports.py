"""What the two stacks cost in memory: two endpoints in one process, a list as the wire.

One flow of large writes, 4 KiB payloads, no congestion control.  Frames are copied once on the way,
as a socket would.  The rates are those of sender and receiver together on one processor; their
ratio means the same on any machine.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

from emulator.rocev2.config import Connection, HcaConfig
from emulator.rocev2.hca import HostChannelAdapter
from uet.config import FepConfig
from uet.fep import FabricEndpoint
from uet.transport import Transport, Write

HERE, THERE = "10.0.1.1", "10.0.1.2"
_MACS = {HERE: "02:00:00:00:00:01", THERE: "02:00:00:00:00:02"}
_KEY = 1
_MESSAGE = 4 << 20
_BATCH = 32
_NS_A_TURN = 2_000
#: The first half of a notification has a completion of its own; its last one says it all.
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
        here.post(Write(peer=THERE, key=_KEY, offset=0, payload=source, header_data=_HEADER_DATA))
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


def measure(*, messages: int = 12, rounds: int = 5) -> dict[str, float]:
    """Median rates of both stacks, and RoCEv2's over Ultra Ethernet's, measured in turn."""
    makers: dict[str, Callable[[], Ends]] = {"uet": uet_ends, "rocev2": rocev2_ends}
    rates: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(rounds):
        for name, make in makers.items():
            rates[name].append(packets_per_s(make(), messages))
    return {
        "uet_memory_packets_per_s": statistics.median(rates["uet"]),
        "rocev2_memory_packets_per_s": statistics.median(rates["rocev2"]),
        "rocev2_memory_ratio": statistics.median(
            ours / theirs for ours, theirs in zip(rates["rocev2"], rates["uet"], strict=True)
        ),
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201
