"""The yardstick: how many 4 KiB packets a bare raw socket carries through the same fabric.

Plain Python at both ends, no protocol: ``sendmsg`` of header and payload as fast as it goes,
``recv_into`` and a count.  Two processes, each in its GPU's namespace.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.kernel.icmp_guard import guard_interface
from emulator.dataplane.lab import Lab
from tests import CHECKOUT
from topologies.addressing import gpu_address, next_hops

PAYLOAD = 4096
#: Octets before the payload, as many as an Ultra Ethernet data packet has.
HEADER = 98
UDP_PORT = TransportFrames().udp_ports[0]
_ETH_P_ALL = 0x0003
_PACKET_IGNORE_OUTGOING = 23
_SOL_PACKET = 263
_SO_RCVBUFFORCE = 33
_IDLE_SECONDS = 10.0


def packet_rate(lab: Lab, source: str, target: str, seconds: float) -> float:
    """Packets per second received at GPU ``target`` from GPU ``source`` over ``seconds``."""
    with flow(lab, source, target, seconds) as receiver:
        assert receiver.stdout is not None
        report = json.loads(receiver.stdout.readline())
    return float(report["packets"] / report["seconds"])


@contextmanager
def flow(lab: Lab, source: str, target: str, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A sender at ``source`` and a receiver at ``target``, which is yielded, while in the block.

    The receiver reports after ``seconds``; they end with the block at the latest.
    """
    header = frame_header(lab, source, target).hex()
    module = [sys.executable, "-m", "tests.bench.raw"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    receiver = lab.popen(
        target,
        [*module, "receive", str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert receiver.stdout is not None
    receiver.stdout.readline()  # it listens
    sender = lab.popen(source, [*module, "send", header], env=environment)
    try:
        yield receiver
    finally:
        for process in (sender, receiver):
            process.kill()
            process.wait()
        receiver.stdout.close()


def frame_header(lab: Lab, source: str, target: str, payload: int = PAYLOAD) -> bytes:
    """Ethernet, IPv4 and UDP header from ``source`` to ``target``, and zeros up to the payload.

    ``payload`` is how many octets follow.
    """
    sender, receiver = (lab.topology.node(name) for name in (source, target))
    theirs = gpu_address(receiver).ip
    next_hop = next_hops(lab.topology, source)[str(theirs)]
    length = HEADER - 14 + payload
    addresses = gpu_address(sender).ip.packed + theirs.packed
    ip = struct.pack("!BBHHHBBH", 0x45, 0, length, 0, 0x4000, 64, socket.IPPROTO_UDP, 0)
    total = sum(struct.unpack("!10H", ip + addresses))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", total ^ 0xFFFF) + addresses
    udp = struct.pack("!HHHH", 50_000, UDP_PORT, length - 20, 0)
    macs = bytes.fromhex((next_hop + sender.ports[0].mac).replace(":", ""))
    return (macs + b"\x08\x00" + ip + udp).ljust(HEADER, b"\0")


def send(header: bytes) -> None:
    """Send until killed."""
    payload = memoryview(bytearray(os.urandom(PAYLOAD)))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        raw.bind(("eth0", 0))
        message = (header, payload)
        sendmsg = raw.sendmsg
        while True:
            sendmsg(message)


def receive(seconds: float) -> dict[str, float]:
    """Count packets for ``seconds`` from the first one on."""
    guard_interface(
        "eth0", TransportFrames()
    )  # as an endpoint does, so that the kernel has no more to do
    buffer = memoryview(bytearray(HEADER + PAYLOAD + 64))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        raw.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
        raw.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        raw.settimeout(_IDLE_SECONDS)
        raw.bind(("eth0", _ETH_P_ALL))
        print("listening", flush=True)  # noqa: T201
        raw.recv_into(buffer)
        raw.settimeout(None)
        recv_into = raw.recv_into
        packets = 0
        start = now = time.perf_counter()
        while now - start < seconds:
            for _ in range(256):
                recv_into(buffer)
            packets += 256
            now = time.perf_counter()
    return {"packets": packets, "seconds": now - start}


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(bytes.fromhex(sys.argv[2]))
    else:
        print(json.dumps(receive(float(sys.argv[2]))), flush=True)  # noqa: T201
