"""Measure a packet in the stacks alone, at one frame a turn, as a virtual clock asks for it.

Two endpoints in one process, configured as runs configure them for two GPUs of one rail, send
through a line of the NIC's rate and half the base round trip to each other.  A first run in virtual
time writes down every call, as :mod:`emulator.sim.gpu_endpoint` makes them:
``receive([frame], now)`` for a frame that has come, ``transmit(now, 1)`` when the line is idle,
``completions()`` after each, and ``next_deadline()`` where the line stays idle.  What is measured
is the same list of calls on endpoints made anew, which answer in the same way: nothing of the
events, and nothing of the line.

Times are microseconds of both ends together for a data packet with what answers it, or for a whole
message.  A figure is the median of its rounds, in which all transports take turns.
"""

import gc
import heapq
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from emulator.dataplane.switch.switch_choice import parse
from emulator.sim.endpoint.endpoint_spec import make_transport
from emulator.transports import TransportChoice, default_switch, fit
from topologies import catalogue
from topologies.analysis.round_trip import base_rtt_ns
from topologies.ethernet import FRAMING_OCTETS
from topologies.model import Topology
from topologies.parts.attachment import nic_rate_bps
from uet.transport import Transport, WriteRequest

_FABRIC = "rail_clos"
_KEY = 1
_TAG = 7
#: As a ring AllReduce of some MiB posts them.
_LARGE, _LARGE_COUNT = 512 << 10, 8
_SMALL, _SMALL_COUNT = 8, 2_000
_SEED = 1

_POST, _TRANSMIT, _RECEIVE = range(3)
#: What is called, of which end, with what.
Call = tuple[int, int, object, int]


@dataclass
class Calls:
    """The calls of one run, in order, and what they have moved."""

    calls: list[Call] = field(default_factory=list)
    data_packets: int = 0
    frames: int = 0


@dataclass(frozen=True)
class Pair:
    """Two endpoints as a run makes them, and the line between them."""

    make: Callable[[], tuple[Transport, Transport]]
    addresses: tuple[str, str]
    bits_per_ns: float
    delay_ns: int
    data_packets: str


def pair(transport: str, topology: Topology) -> Pair:
    """The first GPUs of the first two servers of ``topology``, which speak ``transport``."""
    choice: TransportChoice = fit(
        transport, topology, seed=_SEED, switch=parse(default_switch(transport, topology))
    )
    gpus = [server.gpus[0] for server in topology.servers[:2]]
    names = [gpu if isinstance(gpu, str) else gpu.name for gpu in gpus]
    configs = [dict(choice.configs[name]) for name in names]
    rtt = base_rtt_ns(topology, choice.wire.payload_mtu + choice.wire.around_bytes)

    def make() -> tuple[Transport, Transport]:
        here, there = (
            make_transport(choice.factory, dict(config), _SEED + place)
            for place, config in enumerate(configs)
        )
        return here, there

    return Pair(
        make=make,
        addresses=(str(configs[0]["address"]), str(configs[1]["address"])),
        bits_per_ns=nic_rate_bps(topology, names[0]) / 1e9,
        delay_ns=rtt // 2,
        data_packets=choice.data_packets,
    )


class _Line:
    """Both directions between two endpoints, in virtual time; notes every call."""

    def __init__(self, ends: Pair, calls: Calls) -> None:
        self.pair = ends
        self.ends = ends.make()
        self.calls = calls
        self.now = 0
        self._events: list[tuple[int, int, int, memoryview | None]] = []
        self._number = 0
        self._free = [0, 0]  # when each NIC has nothing on its line
        self._armed: list[int | None] = [None, None]
        self.completed = 0

    def _at(self, when: int, end: int, frame: memoryview | None) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, end, frame))

    def _take_completions(self, end: int) -> None:
        done = self.ends[end].completions()
        if end == 0:
            self.completed += len(done)

    def _arm(self, end: int) -> None:
        deadline = self.ends[end].next_deadline()
        armed = self._armed[end]
        if deadline is not None and (armed is None or deadline < armed or armed <= self.now):
            self._armed[end] = deadline
            self._at(max(deadline, self.now + 1), end, None)

    def pump(self, end: int) -> None:
        """Let ``end`` send, if its line is idle."""
        now = self.now
        if self._free[end] > now:
            return
        self.calls.calls.append((_TRANSMIT, end, None, now))
        frames = self.ends[end].transmit(now, 1)
        for header, payload in frames:
            frame = memoryview(b"".join((header, payload)))
            self.calls.frames += 1
            busy = round((len(frame) + FRAMING_OCTETS) * 8 / self.pair.bits_per_ns)
            self._free[end] = max(self._free[end], now) + busy
            self._at(self._free[end] + self.pair.delay_ns, 1 - end, frame)
            self._at(self._free[end], end, None)
        if not frames:
            self._arm(end)
        self._take_completions(end)

    def run(self, messages: int) -> None:
        """Until so many messages of the first end are complete, and nothing is on the line."""
        while self.completed < messages or any(event[3] is not None for event in self._events):
            self.now, _, end, frame = heapq.heappop(self._events)
            if frame is not None:
                self.calls.calls.append((_RECEIVE, end, [frame], self.now))
                self.ends[end].receive([frame], self.now)
                self._take_completions(end)
            self.pump(end)


def record(ends: Pair, octets: int, messages: int) -> Calls:
    """The calls of a run in which the first end writes so many ``messages`` to the second one."""
    calls = Calls()
    line = _Line(ends, calls)
    memory = memoryview(bytearray(octets))
    line.ends[1].register(memory, key=_KEY)
    for request in _requests(ends, octets, messages):
        calls.calls.append((_POST, 0, request, 0))
        line.ends[0].post(request)
    line.pump(0)
    line.run(messages)
    calls.data_packets = line.ends[0].counters()[ends.data_packets]
    return calls


def _requests(ends: Pair, octets: int, messages: int) -> Sequence[WriteRequest]:
    payload = memoryview(bytearray(octets))
    return [
        WriteRequest(peer=ends.addresses[1], key=_KEY, offset=0, payload=payload, header_data=_TAG)
        for _ in range(messages)
    ]


def replay(ends: Pair, calls: Calls, octets: int) -> float:
    """Seconds that the calls take on endpoints made anew."""
    made = ends.make()
    made[1].register(memoryview(bytearray(octets)), key=_KEY)
    posts = [end.post for end in made]
    transmits = [end.transmit for end in made]
    receives = [end.receive for end in made]
    deadlines = [end.next_deadline for end in made]
    completions = [end.completions for end in made]
    sent = 0
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        for kind, end, argument, now in calls.calls:
            if kind == _RECEIVE:
                receives[end](argument, now)  # type: ignore[arg-type]
            elif kind == _TRANSMIT:
                frames = transmits[end](now, 1)
                if frames:
                    sent += len(frames)
                else:
                    deadlines[end]()
            else:
                posts[end](argument)  # type: ignore[arg-type]
                continue
            completions[end]()
        took = time.process_time() - start
    finally:
        gc.enable()
    if sent != calls.frames:
        raise RuntimeError(f"{sent} frames were sent at the repetition, {calls.frames} before")
    return took


def costs(transports: Mapping[str, str], *, rounds: int = 15) -> dict[str, list[float]]:
    """us a data packet of large messages, and a whole small one, by transport and round."""
    topology = catalogue.load(_FABRIC)
    cases: dict[str, tuple[Pair, Calls, int, int]] = {}
    for name, transport in transports.items():
        ends = pair(transport, topology)
        large = record(ends, _LARGE, _LARGE_COUNT)
        small = record(ends, _SMALL, _SMALL_COUNT)
        cases[f"{name}_turn_us"] = ends, large, _LARGE, large.data_packets
        cases[f"{name}_small_write_us"] = ends, small, _SMALL, _SMALL_COUNT
    measured: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (ends, calls, octets, units) in cases.items():
            measured[name].append(replay(ends, calls, octets) / units * 1e6)
    return measured


def measure(*, rounds: int = 15) -> dict[str, float]:
    """Medians of both transports as runs use them."""
    measured = costs({"uet": "uet", "rocev2": "rocev2"}, rounds=rounds)
    figures = {name: statistics.median(values) for name, values in measured.items()}
    return figures | {f"{name}_least": min(values) for name, values in measured.items()}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201
