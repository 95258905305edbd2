"""``python -m tests.bench.plain_tcp``: streams and round trips of plain TCP, which NVMe/TCP is
measured against.

``serve ADDRESS`` answers; ``ask ADDRESS KIND OCTETS COUNT`` prints seconds.  Kinds: ``in`` and
``out``, one stream to the server or from it; ``turns``, the median round trip of a request of 72
octets for so many octets.
"""

import socket
import statistics
import struct
import sys
import time

PORT = 4421
ORDER = struct.Struct("<3sII")
REQUEST = 72  # octets of a CapsuleCmd
PIECE = 1 << 18


def serve(address: str) -> None:
    with socket.create_server((address, PORT)) as listener:
        print("ready", flush=True)  # noqa: T201
        while True:
            one, _ = listener.accept()
            with one:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                kind, octets, count = ORDER.unpack(_exactly(one, ORDER.size))
                if kind == b"in ":
                    _take(one, octets * count)
                    one.sendall(b"k")
                elif kind == b"out":
                    _give(one, octets * count)
                else:
                    data = bytes(octets)
                    for _ in range(count):
                        _exactly(one, REQUEST)
                        one.sendall(data)


def ask(address: str, kind: str, octets: int, count: int) -> float:
    with socket.create_connection((address, PORT)) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        one.sendall(ORDER.pack(kind[:3].ljust(3).encode(), octets, count))
        if kind == "in":
            _give(one, octets * count)
            _exactly(one, 1)
        elif kind == "out":
            _take(one, octets * count)
        else:
            request, times = bytes(REQUEST), []
            for _ in range(count):
                began = time.perf_counter()
                one.sendall(request)
                _exactly(one, octets)
                times.append(time.perf_counter() - began)
            return statistics.median(times)
        return time.perf_counter() - began


def _give(one: socket.socket, octets: int) -> None:
    data = bytes(PIECE)
    while octets:
        piece = min(PIECE, octets)
        one.sendall(data[:piece] if piece < PIECE else data)
        octets -= piece


def _take(one: socket.socket, octets: int) -> None:
    buffer = bytearray(PIECE)
    while octets:
        got = one.recv_into(buffer, min(PIECE, octets))
        if not got:
            raise EOFError
        octets -= got


def _exactly(one: socket.socket, octets: int) -> bytes:
    data = b""
    while len(data) < octets:
        more = one.recv(octets - len(data))
        if not more:
            raise EOFError
        data += more
    return data


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        print(ask(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))  # noqa: T201
