"""The limit of runs in the kernel: the crossings of a packet, made by a loop in C and nothing else.

A frame is sent by a packet socket, and taken from the receive ring where it comes out, as a run
does it at each bar::

    h0g0 eth0 --> inner end | inner end --> rail0 --> inner end | inner end --> eth0 h1g0

Switches have no ASIC.  Times are of the process (us), with softirqs in its system calls.
"""

import ctypes
import secrets
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.kernel.frames.packet_ring import sender
from emulator.dataplane.kernel.icmp_guard import guard_interface
from emulator.dataplane.kernel.programs.classic_bpf import WHOLE_FRAME, attach
from emulator.dataplane.kernel.receive_ring import PACKET_IGNORE_OUTGOING, SOL_PACKET, map_ring
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from tests.bench import virtual
from tests.bench.raw import HEADER, PAYLOAD, frame_header
from topologies import catalogue
from topologies.model import CableEnd, Topology

#: ACKs for a data packet, as UET has them in a ring AllReduce.
ACKS = 0.26
_FRAMES, _ROUNDS = 20_000, 5
_FRAME_OCTETS, _SLOTS = HEADER + PAYLOAD + 64, 64
_ETH_P_ALL = 0x0003
_SOURCE = Path(__file__).with_name("limit.c")


class _Ring(ctypes.Structure):
    _fields_ = (
        ("memory", ctypes.POINTER(ctypes.c_uint8)),
        ("slots", ctypes.POINTER(ctypes.c_uint32)),
        ("count", ctypes.c_uint32),
        ("head", ctypes.c_uint32),
    )


class _Crossing(ctypes.Structure):
    _fields_ = (("socket", ctypes.c_int), ("ring", ctypes.POINTER(_Ring)))


@dataclass(frozen=True)
class Way:
    """The only way through the fabric ``spec`` between the GPUs at its ends."""

    spec: str
    nodes: tuple[str, ...]


ONE_SWITCH = Way("rail_clos:hosts=6,gpus_per_host=4", ("h0g0", "rail0", "h1g0"))
THREE_SWITCHES = Way(
    "rail_clos:hosts=2,gpus_per_host=2,spines=1,uplinks_per_spine=1",
    ("h0g0", "rail0", "spine0", "rail1", "h1g1"),
)


def measure() -> dict[str, float]:
    """What the bare crossings of a data packet with its ACKs take, and how near runs come."""
    one, three = packet_us(ONE_SWITCH), packet_us(THREE_SWITCHES)
    ring, permutation = (
        virtual.packet_us(
            virtual.median([*run, "--sizes", size, *virtual.QUIET]),
            virtual.cost_of(*run, "--sizes", virtual.SMALL, *virtual.QUIET),
        )
        for run, size in ((virtual.RING, "8MiB"), (virtual.SPREAD, "2MiB"))
    )
    return {
        "limit_one_switch_us": one,
        "limit_three_switches_us": three,
        "limit_ring_ratio": one / ring,
        "limit_permutation_ratio": three / permutation,
    }


def packet_us(way: Way) -> float:
    """Return what one data packet with its ACKs takes on ``way``, both in one direction."""
    with _crossing(way) as cross:
        data, ack = (
            statistics.median(cross(octets) for _ in range(_ROUNDS)) for octets in (PAYLOAD, 0)
        )
    return data + ACKS * ack


@contextmanager
def _crossing(way: Way) -> Iterator[Callable[[int], float]]:
    """Yield a function that sends frames with so many octets on ``way``; it returns us a frame."""
    topology = catalogue.load(way.spec)
    settings = FabricSettings(clock="virtual", seed=1, spec=way.spec)
    source, *_, target = way.nodes
    cables = [_cable(topology, *pair) for pair in pairwise(way.nodes)]
    program = _program()
    with (
        ExitStack() as undo,
        Lab.create(f"limit{secrets.token_hex(4)}", topology, settings) as lab,
    ):

        def open_wires() -> list[tuple[tuple[socket.socket, _Ring], socket.socket]]:
            name = lab.wires.name
            return [(_receiver(name(near)), sender(name(far))) for near, far in cables]

        wires = namespaces.visitor().inside(lab.wires_namespace, open_wires)
        senders = [lab.inside(source, lambda: sender("eth0")), *(far for _, far in wires)]
        receivers = [*(near for near, _ in wires), lab.inside(target, _target)]
        for raw in (*senders, *(raw for raw, _ in receivers)):
            undo.callback(raw.close)
        crossings = (_Crossing * len(senders))(
            *(
                _Crossing(raw.fileno(), ctypes.pointer(ring))
                for raw, (_, ring) in zip(senders, receivers, strict=True)
            )
        )

        def cross(octets: int) -> float:
            frame = frame_header(lab, source, target, octets).ljust(HEADER + octets, b"\0")
            before = time.process_time()
            lost = program.cross(crossings, len(crossings), frame, len(frame), _FRAMES)
            if lost:
                raise RuntimeError(f"{way}: crossing {lost} lost a frame (-N: errno N)")
            return 1e6 * (time.process_time() - before) / _FRAMES

        yield cross


def _cable(topology: Topology, near: str, far: str) -> tuple[CableEnd, CableEnd]:
    """The ends of the first cable between two nodes, that at ``near`` first."""
    both = [pair for link in topology.links for pair in (link.ends, link.ends[::-1])]
    return next((one, other) for one, other in both if (one.node, other.node) == (near, far))


def _receiver(interface: str) -> tuple[socket.socket, _Ring]:
    """Open a socket for the transport's frames that come by ``interface``, with its ring."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    memory, slots = map_ring(raw, _FRAME_OCTETS, _SLOTS)
    raw.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    frames = TransportFrames()
    attach(raw, frames.program(matching=WHOLE_FRAME, other=0, only_for_us=False))
    raw.bind((interface, _ETH_P_ALL))
    octets = (ctypes.c_uint8 * len(memory)).from_buffer(memory)
    begins = (ctypes.c_uint32 * len(slots))(*slots)
    return raw, _Ring(octets, begins, len(slots), 0)


def _target() -> tuple[socket.socket, _Ring]:
    """Open the receiver of a GPU, whose kernel answers nothing."""
    opened = _receiver("eth0")
    guard_interface("eth0", TransportFrames())
    return opened


def _program() -> ctypes.CDLL:
    with TemporaryDirectory() as folder:
        library = Path(folder) / "limit.so"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", _SOURCE, "-o", library], check=True)
        return ctypes.CDLL(str(library))
