"""Load balancing: real multipath routes of the kernel, whose choice the program makes.

::

    source --- 21 router 31..34 ==== sink (four cables)
"""

import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Network
from typing import Any

import pytest

from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.switch.balancing import Balancing, LoadBalancing
from emulator.dataplane.switch.bpf import port_program as ports
from emulator.dataplane.switch.bpf.switch_program import SwitchProgram
from emulator.dataplane.switch.switch_profile import port_settings
from emulator.errors import UserError
from tests.harness.asic.port_bench import (
    LAST,
    Namespace,
    at_a_standstill,
    cable,
    native,
    profile,
    udp,
)

pytestmark = pytest.mark.root

ARRIVAL, DEPARTURES = 21, (31, 32, 33, 34)
HOPS = len(DEPARTURES)
DESTINATION = IPv4Network("10.9.0.0/16")
DESTINATION_6 = IPv6Network("fd09::/16")
SWITCH = 3


class Router:
    """A switch of one arrival and four equal departures, with the program on all five ports."""

    def __init__(self, program: SwitchProgram, stack: ExitStack) -> None:
        self.program = program
        self.source, self.router, self.sink = (Namespace() for _ in range(3))
        for namespace in (self.source, self.router, self.sink):
            stack.callback(namespace.close)
        for name, value in (
            ("ipv4/ip_forward", "1"),
            ("ipv4/fib_multipath_hash_policy", "1"),
            ("ipv6/conf/all/disable_ipv6", "0"),
            ("ipv6/conf/default/disable_ipv6", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/router_solicitations", "0"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv6/fib_multipath_hash_policy", "1"),
        ):
            self.router.sysctl(name, value)
        cable(self.router, self.source, ARRIVAL, ARRIVAL - 10)
        kernel = self.router.kernel
        kernel_object.address(
            kernel, ARRIVAL, IPv4Interface("10.0.0.254/24"), subject="arrival address"
        )
        hops = []
        for index in DEPARTURES:
            cable(self.router, self.sink, index, index + 10)
            here, there = (IPv4Address(f"10.1.{index}.{n}") for n in (1, 2))
            kernel_object.address(kernel, index, IPv4Interface(f"{here}/24"), subject="address")
            mac = f"02:00:00:00:00:{index + 10:02x}"
            kernel_object.neighbour(kernel, index, there, mac, subject="neighbour")
            kernel.flush()
            self.ip("addr", "add", f"fd01:{index}::1/64", "dev", f"p{index}", "nodad")
            neighbour = f"fd01:{index}::2"
            self.ip("neigh", "add", neighbour, "lladdr", mac, "dev", f"p{index}")
            hops.append((index, there, False))
        kernel_object.route(kernel, DESTINATION, hops, subject="route")
        kernel.flush()
        ways = " ".join(f"nexthop via fd01:{index}::2 dev p{index}" for index in DEPARTURES)
        self.ip("route", "add", str(DESTINATION_6), *ways.split())
        for index in (ARRIVAL, *DEPARTURES):
            ports.attach(kernel, index, program, subject="port")
        kernel.flush()
        self.out = stack.enter_context(self.source.raw(ARRIVAL - 10))
        self.heard = [stack.enter_context(self.sink.raw(index + 10)) for index in DEPARTURES]
        self.enders = [stack.enter_context(self.router.raw(index)) for index in DEPARTURES]
        self.configure(Balancing.KERNEL)

    def ip(self, *arguments: str) -> None:
        def run() -> None:
            subprocess.run(["ip", "-6", *arguments], check=True)

        self.router.inside(run)

    def configure(self, method: Balancing, **way: Any) -> None:
        balancing = LoadBalancing(method=method, switch=SWITCH, **way)
        for index in (ARRIVAL, *DEPARTURES):
            settings = port_settings(
                profile("lossless"),
                rate_bps=1e9,
                dilation=1,
                seed=index,
                balancing=balancing,
            )
            ports.configure(self.program, index, at_a_standstill(settings))

    def tell_routes(self) -> None:
        for destination in (DESTINATION, DESTINATION_6):
            ports.set_route(self.program, SWITCH, destination, DEPARTURES)

    def path(self, frame: bytes) -> int:
        """Return which of the departures ``frame`` takes."""
        (taken,) = self.paths([frame])
        return taken

    def paths(self, frames: Iterable[bytes]) -> list[int]:
        """Return the departure of each frame; they differ in the first octets of their payload."""
        order = {}
        for place, frame in enumerate(frames):
            self.out.send(frame)
            order[place] = frame
        found: dict[bytes, list[int]] = {}
        for number, (ender, heard) in enumerate(zip(self.enders, self.heard, strict=True)):
            ender.send(LAST)
            while (arrived := heard.recv(65536)) != LAST:
                if arrived[12:14] in (b"\x08\x00", b"\x86\xdd"):
                    found.setdefault(arrived[-64:], []).append(number)
        return [number for frame in order.values() for number in found.pop(frame[-64:], [])]


@pytest.fixture
def router(program: SwitchProgram) -> Iterator[Router]:
    with ExitStack() as stack:
        yield Router(program, stack)


def packets(
    count: int, *, version: int = 4, flows: int = 1, entropies: bool = False
) -> list[bytes]:
    """``count`` frames to the sink, of so many flows; every frame's last octets are its own."""
    made = []
    for n in range(count):
        flow = n % flows
        frame = bytearray(
            native(200, entropy=flow)
            if entropies
            else udp(200, dscp=20, ecn=0, sport=flow, version=version)
        )
        frame[:6] = bytes.fromhex(f"0200000000{ARRIVAL:02x}")
        if version == 4:
            frame[30:34] = IPv4Address("10.9.7.7").packed
            finished(frame)
        else:
            frame[38:54] = DESTINATION_6[0x77].packed
        frame[-4:] = n.to_bytes(4, "big")
        made.append(bytes(frame))
    return made


def finished(frame: bytearray) -> bytes:
    """Put the IPv4 header checksum in its place."""
    frame[24:26] = bytes(2)
    total = sum(int.from_bytes(frame[at : at + 2], "big") for at in range(14, 34, 2))
    total = (total & 0xFFFF) + (total >> 16)
    frame[24:26] = (~((total & 0xFFFF) + (total >> 16)) & 0xFFFF).to_bytes(2, "big")
    return bytes(frame)


def evenly(taken: Iterable[int], count: int) -> bool:
    """Each hop's share is within five standard deviations of a quarter (seeds are fixed)."""
    mean = count / HOPS
    counted = Counter(taken)
    return sum(counted.values()) == count and all(
        abs(counted[hop] - mean) < 5 * mean**0.5 for hop in range(HOPS)
    )


@pytest.mark.parametrize("version", [4, 6])
def test_flow_keeps_its_path_and_flows_spread(router: Router, version: int) -> None:
    router.configure(Balancing.FLOW, seed=1)
    assert len(set(router.paths(packets(50, version=version)))) == 1
    assert evenly(router.paths(packets(800, flows=800, version=version)), 800)


def test_entropy_header_is_part_of_the_flow(router: Router) -> None:
    router.configure(Balancing.FLOW, seed=1)
    assert len(set(router.paths(packets(50, entropies=True)))) == 1
    assert evenly(router.paths(packets(800, flows=800, entropies=True)), 800)
    # another protocol number: nothing known of its first octets
    router.configure(Balancing.FLOW, seed=1, native_protocol=254)
    assert len(set(router.paths(packets(50, flows=50, entropies=True)))) == 1


def test_fragments_stay_together(router: Router) -> None:
    router.configure(Balancing.FLOW, seed=1)
    first, later = packets(60, flows=60), packets(60, flows=60)
    taken = [
        router.paths([with_fragment(frame, field) for frame in frames])
        for frames, field in ((first, 0x2000), (later, 0x0019))
    ]
    assert len({*taken[0], *taken[1]}) == 1


def with_fragment(frame: bytes, field: int) -> bytes:
    """``frame`` with other flags and fragment offset; the checksum follows."""
    made = bytearray(frame)
    made[20:22] = field.to_bytes(2, "big")
    return finished(made)


def test_switches_of_different_seeds_choose_differently(router: Router) -> None:
    frames = packets(800, flows=800)
    router.configure(Balancing.FLOW, seed=1)
    first = router.paths(frames)
    assert router.paths(frames) == first
    router.configure(Balancing.FLOW, seed=2)
    second = router.paths(frames)
    # of those that one switch sends one way, the other sends a quarter each way: no polarisation
    assert evenly([b for a, b in zip(first, second, strict=True) if a == 0], first.count(0))


@pytest.mark.parametrize("version", [4, 6])
def test_packets_of_one_flow_spread_at_random(router: Router, version: int) -> None:
    router.configure(Balancing.PACKET)
    taken = router.paths(packets(800, version=version))
    assert evenly(taken, 800)
    assert taken != sorted(taken)


@pytest.mark.parametrize("version", [4, 6])
def test_round_robin(router: Router, version: int) -> None:
    router.configure(Balancing.ROUND_ROBIN)
    router.tell_routes()
    assert router.paths(packets(40, version=version)) == [n % HOPS for n in range(40)]


def test_unknown_destination_is_hashed_by_flow(router: Router) -> None:
    router.configure(Balancing.ROUND_ROBIN, seed=1)
    assert len(set(router.paths(packets(50)))) == 1
    router.tell_routes()
    assert len(set(router.paths(packets(50)))) == HOPS


def test_routes_are_those_of_the_switch(router: Router) -> None:
    router.configure(Balancing.ROUND_ROBIN, seed=1)
    ports.set_route(router.program, SWITCH + 1, DESTINATION, DEPARTURES)
    assert len(set(router.paths(packets(50)))) == 1


def test_least_loaded_fills_the_valleys(router: Router) -> None:
    # links that carry nothing: what is sent stays in the model, so the depths are known
    router.configure(Balancing.LEAST_LOADED)
    router.tell_routes()
    for number, loads in enumerate((3, 0, 5, 1)):
        for _ in range(loads):
            router.enders[number].send(udp(3000, dscp=20, ecn=0))
    counted = Counter(router.paths(packets(50)))
    # 266 octets each: 50 of them fill the emptier two, 11.5 frames of the others' being 3066
    assert counted[2] == counted[0] == 0
    assert abs(counted[1] - counted[3] - 3066 / 266) < 2
    assert counted[1] + counted[3] == 50


def test_least_loaded_takes_each_idle_hop_once(router: Router) -> None:
    router.configure(Balancing.LEAST_LOADED)
    router.tell_routes()
    # in which order depends on what the kernel's own neighbour discovery has sent
    assert sorted(router.paths(packets(4))) == [0, 1, 2, 3]


def test_flowlets(router: Router) -> None:
    frames = packets(40)
    router.configure(Balancing.FLOWLET, seed=1, flowlet_gap_ns=3_600_000_000_000)
    assert len(set(router.paths(frames))) == 1  # never a pause that long
    router.configure(Balancing.FLOWLET, seed=1, flowlet_gap_ns=1)
    assert len(set(router.paths(frames))) == HOPS  # always one


def test_routes_that_cannot_be(program: SwitchProgram) -> None:
    with pytest.raises(UserError, match="0 next hops"):
        ports.set_route(program, 0, DESTINATION, [])
    with pytest.raises(UserError, match="65 next hops"):
        ports.set_route(program, 0, DESTINATION, [5] * 65)
    with pytest.raises(UserError, match="interface index 99"):
        ports.set_route(program, 0, DESTINATION, [99])
