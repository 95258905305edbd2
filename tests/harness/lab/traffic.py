"""Traffic for tests: datagrams of a process in a node, and what arrived."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from emulator.dataplane.lab import Lab

#: argv: destination, size, TOS, number of datagrams (0: until killed)
BLAST = """
import itertools, socket, sys
to, size, tos, count = sys.argv[1], *map(int, sys.argv[2:])
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
if count:  # hand all over without waiting; else the socket's limit keeps it from spinning
    out.setsockopt(socket.SOL_SOCKET, 32, count * (size + 4096))  # SO_SNDBUFFORCE
print("ready", flush=True)
for _ in range(count) if count else itertools.count():
    out.sendto(bytes(size), (to, 9))
"""
PYTHON = "/usr/bin/python3"


def blast(
    lab: Lab, node: str, to: str, *, size: int, tos: int = 0, count: int = 0
) -> subprocess.Popen[bytes]:
    """A process in ``node`` that sends UDP datagrams of ``size`` octets as fast as it can.

    It keeps some 100 KiB in its port's queue; with ``count``, it queues so many and exits.
    """
    argv = [PYTHON, "-c", BLAST, to, str(size), str(tos), str(count)]
    process = lab.popen(node, argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def send_flows(lab: Lab, node: str, to: str, ports: Iterable[int]) -> None:
    """One small UDP datagram from each source port to port 4793 of ``to``."""

    def send() -> None:
        for port in ports:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                out.bind(("", port))
                out.sendto(b"x", (to, 4793))

    lab.inside(node, send)


def pings(
    lab: Lab, pairs: Iterable[tuple[str, str]], *, wait_s: int = 5
) -> dict[tuple[str, str], int]:
    """Ping ``(node, address)`` pairs, all at once; exit status by pair, in ``wait_s`` at most."""
    ping = ["ping", "-c1", f"-W{wait_s}"]
    running = {
        pair: lab.popen(pair[0], [*ping, pair[1]], stdout=subprocess.DEVNULL, stderr=2)
        for pair in pairs
    }
    return {pair: process.wait() for pair, process in running.items()}


def within(seconds: float, condition: Callable[[], bool], what: str) -> None:
    """Poll until ``condition()``; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.005)


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """The processes do nothing during the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def kill(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
