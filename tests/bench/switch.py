"""Measure what the switch ASIC costs a hop, over plain forwarding through the same switches.

A bare socket sends 4 KiB packets across a lab, with the program taken off all ports and put on
again in turn, so that both see the same machine::

    h0g1 -- rail1 -- spine -- rail0 -- h1g0        three switches
    h0g1 -- rail1 -- h1g1                          one

The kernel carries a packet through the whole path before the send returns, so the time of a send
is that of the path; half of what the longer one takes more is a hop of plain forwarding.  Links
are too fast to limit, and the last port drops what it has received.

In the modelled queues there seem to be megabytes all the time, so every packet is drawn for
before it is not marked.  The programs do all that they do for a packet on its way through a full
fabric: classify, choose among the spines, queue, mark, count, and tell the last hop's queue.
"""

import json
import secrets
import socket
import statistics
import struct
import time

from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.kernel.icmp_guard import guard_interface
from emulator.dataplane.kernel.programs.bpf_syscall import LOCKED
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch.balancing import METHODS
from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf.layout import PORT_KEY, QUEUE_STATE, STATE_HEAD, Queue
from emulator.dataplane.switch.switch_choice import parse
from tests.bench import raw
from topologies import catalogue

SPEC = "rail_clos"
DILATION = 10  # a link of 400 Gb/s at 40: more than a socket fills
SOURCE, ACROSS, BESIDE = "h0g1", "h1g0", "h1g1"
HOPS = 3  # on the way across
PACKETS, ROUNDS = 2_000, 41
WAITING = 20_000_000
#: Marks one packet in a hundred at that depth, so the next switch has a packet to draw for, too.
CHOICE = "deep:data.kmin_bytes=0,data.kmax_bytes=2000000000,data.limit_bytes=2000000000,balance="
ECN_CAPABLE = 2
DRAINED_AT = 8
LOW_DEPTH = STATE_HEAD.size + Queue.LOW * QUEUE_STATE.size


def measure(spec: str = SPEC, *, rounds: int = ROUNDS) -> dict[str, float]:
    """Medians over ``rounds``: ns of one hop plainly forwarded, and what each balancing adds.

    ``switch_us_a_hop`` is the most that any of them adds; ``switch_ratio`` is that of a whole hop
    with the switch to one without.
    """
    name = f"bench-{secrets.token_hex(4)}"
    topology = catalogue.load(spec)
    method = next(iter(METHODS))
    with Lab.create(
        name,
        topology,
        FabricSettings(dilation=DILATION, seed=1, spec=spec, switch=parse(CHOICE + method)),
    ) as lab:
        return _measured(lab, rounds)


def _measured(lab: Lab, rounds: int) -> dict[str, float]:
    assert lab.asic is not None
    for target in (ACROSS, BESIDE):
        lab.inside(target, lambda: guard_interface("eth0", TransportFrames()))
    out = lab.inside(SOURCE, _socket)
    across, beside = (_frame(lab, target) for target in (ACROSS, BESIDE))
    added: dict[str, list[float]] = {method: [] for method in METHODS}
    plain: list[float] = []
    with out:
        for frame in (across, beside):
            _time_of(out, frame)
        for _ in range(rounds):
            for method, differences in added.items():
                _take_off(lab)
                without = _time_of(out, across)
                plain.append((without - _time_of(out, beside)) / (HOPS - 1))
                lab.asic.apply(parse(CHOICE + method))
                _put_on(lab)
                _fill(lab)
                differences.append((_time_of(out, across) - without) / HOPS)
        _check_that_it_worked(lab)
    hop = statistics.median(plain)
    costs = {method: statistics.median(differences) for method, differences in added.items()}
    most = max(costs.values())
    figures = {f"switch_{method.replace('-', '_')}_ns": cost for method, cost in costs.items()}
    return {
        "switch_plain_hop_ns": hop,
        **figures,
        "switch_us_a_hop": most / 1000,
        "switch_ratio": (hop + most) / hop,
    }


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.bind(("eth0", 0))
    return made


def _frame(lab: Lab, target: str) -> bytes:
    frame = bytearray(raw.frame_header(lab, SOURCE, target) + bytes(raw.PAYLOAD))
    frame[15] = ECN_CAPABLE
    (checksum,) = struct.unpack_from("!H", frame, 24)
    struct.pack_into("!H", frame, 24, (checksum - ECN_CAPABLE) % 0xFFFF)  # RFC 1624
    return bytes(frame)


def _time_of(out: socket.socket, frame: bytes) -> float:
    """Nanoseconds of a packet on its whole way."""
    send = out.send
    start = time.perf_counter_ns()
    for _ in range(PACKETS):
        send(frame)
    return (time.perf_counter_ns() - start) / PACKETS


def _take_off(lab: Lab) -> None:
    assert lab.fabric is not None
    for end, index in lab.interface_indices().items():
        ports.detach(lab.fabric[end.node].kernel, index, subject=str(end))


def _put_on(lab: Lab) -> None:
    assert lab.asic is not None
    assert lab.fabric is not None
    for end in lab.interface_indices():
        lab.asic.attach(lab.fabric[end.node].kernel, end)
    for node in lab.topology.nodes:
        lab.fabric[node.name].kernel.flush()


def _fill(lab: Lab) -> None:
    """Let there seem to be data in the queue of every port."""
    assert lab.asic is not None
    table = lab.asic.program.ports
    for port in lab.asic.ports.values():
        state = bytearray(table.get(PORT_KEY.pack(port.index), flags=LOCKED))
        struct.pack_into("=Q", state, LOW_DEPTH, WAITING)
        struct.pack_into("=Q", state, DRAINED_AT, time.monotonic_ns())  # or it would be forgotten
        table.put(PORT_KEY.pack(port.index), bytes(state), flags=LOCKED)


def _check_that_it_worked(lab: Lab) -> None:
    """All packets of the last stretch passed all three switches, and were drawn for."""
    assert lab.asic is not None
    rows = [row for port in lab.asic.counters().values() for row in port.classes.values()]
    assert sum(row.packets for row in rows) >= HOPS * PACKETS
    assert 0 < sum(row.marked for row in rows) < HOPS * PACKETS / 20
    assert not any(row.dropped for row in rows)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201
