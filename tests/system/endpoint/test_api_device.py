"""The API over real ports: two namespaces, every operation once, and waits that end."""

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from emulator.dataplane.lab import Lab
from emulator.errors import UserError
from emulator.sim.endpoint.device import Device
from emulator.sim.endpoint.nic import interface
from tests.harness.lab.endpoint_lab import small_lab
from topologies.addressing import gpu_address, next_hops
from uet.api import (
    AddressVector,
    AtomicOpcode,
    CompletionQueue,
    CqEntry,
    Datatype,
    Domain,
    Endpoint,
    EndpointType,
    ErrorAvailable,
    Flag,
    Order,
)
from uet.config import FepConfig

pytestmark = pytest.mark.root

#: Bounds a failure only; ns of wall time.
TIME_LIMIT = 30_000_000_000


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with small_lab() as lab:
        yield lab


@dataclass
class Side:
    """One end, with what completed there."""

    device: Device
    domain: Domain
    endpoint: Endpoint
    av: AddressVector
    cq: CompletionQueue
    entries: list[CqEntry] = field(default_factory=list)

    def one(self) -> CqEntry:
        (entry,) = self.cq.wait(TIME_LIMIT, count=1)
        return entry

    def serve(self, stop: threading.Event) -> None:
        """Answer the peer until it needs nothing more."""
        while not stop.is_set():
            self.entries += self.cq.wait()


Opener = Callable[..., Side]


@pytest.fixture
def opened(lab: Lab) -> Iterator[Opener]:
    """``opened(0)``: an enabled endpoint on the first GPU's port."""
    sides: list[Side] = []
    gpus = lab.topology.gpus

    def open_side(
        index: int,
        type: EndpointType = EndpointType.RDM,
        *,
        msg_order: Order = Order.NONE,
        **parameters: Any,
    ) -> Side:
        gpu = gpus[index]
        peers = next_hops(lab.topology, gpu.name)

        def make() -> tuple[Device, Domain]:
            device = Device(gpu.ports[0].name)
            config = device.config(peers, **parameters)
            return device, Domain(config, device)

        device, domain = lab.inside(gpu.name, make)
        endpoint, av, cq = (
            domain.endpoint(type, msg_order=msg_order),
            domain.av_open(),
            domain.cq_open(),
        )
        endpoint.bind(av)
        endpoint.bind(cq, Flag.TRANSMIT | Flag.RECV)
        endpoint.enable()
        sides.append(Side(device, domain, endpoint, av, cq))
        return sides[-1]

    yield open_side
    for side in sides:
        side.device.detach(side.domain)


@dataclass
class Link:
    a: Side
    b: Side
    peer: int


def linked(opened: Opener, *arguments: object, **options: Any) -> Link:
    a, b = opened(0, *arguments, **options), opened(1, *arguments, **options)
    b.av.insert(a.endpoint.getname())
    return Link(a, b, a.av.insert(b.endpoint.getname()))


def with_a_peer_that_serves(link: Link, work: Callable[[], None]) -> None:
    """Do ``work`` at ``a`` while ``b`` serves in a thread of its own."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(link.b.serve, stop)
        try:
            work()
        finally:
            stop.set()
            link.b.cq.signal()
        serving.result()


@pytest.mark.parametrize("order", [Order.NONE, Order.SAS])
def test_every_operation_crosses_the_fabric_once(opened: Opener, order: Order) -> None:
    link = linked(opened, msg_order=order)
    a, b, peer = link.a, link.b, link.peer
    memory = bytearray(30_000)
    region = b.domain.mr_reg(memory, idempotent=True)
    inbox, tagged = bytearray(20_000), bytearray(16)
    b.endpoint.recv(inbox, context="recv")
    b.endpoint.trecv(tagged, tag=0x100, ignore=0xFF, context="trecv")
    b.endpoint.recv(bytearray(16), context="inject")
    payload, copy = bytes(range(250)) * 80, bytearray(20_000)
    number = (5).to_bytes(8, "little")

    def operate() -> None:
        a.endpoint.send(payload, peer, "send", flags=Flag.DELIVERY_COMPLETE)
        assert a.one().op_context == "send"
        a.endpoint.tsend(b"tagged", peer, 0x142, "tsend")
        assert a.one().op_context == "tsend"
        a.endpoint.write(payload, peer, 8, region.key, "write")
        assert a.one().len == 20_000
        a.endpoint.writedata(payload, 77, peer, 8, region.key, "writedata")
        assert a.one().len == 20_000
        a.endpoint.read(copy, peer, 8, region.key, "read")
        assert a.one().len == 20_000
        a.endpoint.write(b"again", peer, 29_000, region.key, "rudi", flags=Flag.RUDI)
        assert a.one().op_context == "rudi"
        a.endpoint.atomic(number, peer, 0, region.key, Datatype.UINT64, AtomicOpcode.SUM)
        assert a.one().len == 8
        result = bytearray(8)
        a.endpoint.fetch_atomic(
            number, result, peer, 0, region.key, Datatype.UINT64, AtomicOpcode.SUM
        )
        assert a.one().len == 8
        assert int.from_bytes(result, "little") == 5
        a.endpoint.compare_atomic(
            number,
            (10).to_bytes(8, "little"),
            result,
            peer,
            0,
            region.key,
            Datatype.UINT64,
            AtomicOpcode.CSWAP,
        )
        assert a.one().len == 8
        assert int.from_bytes(result, "little") == 10
        a.endpoint.inject(b"injected", peer)
        a.endpoint.write(b"bad", peer, 0, 1, "refused")
        with pytest.raises(ErrorAvailable, match="BAD_MKEY"):
            a.cq.wait(TIME_LIMIT)
        assert a.domain.close(TIME_LIMIT)

    with_a_peer_that_serves(link, operate)
    assert memory[8:20_008] == payload
    assert bytes(copy) == payload
    assert memory[29_000:29_005] == b"again"
    assert int.from_bytes(memory[:8], "little") == 5
    assert inbox == payload
    assert tagged[:6] == b"tagged"
    ended = [entry.op_context for entry in b.entries]
    assert ended == ["recv", "trecv", None, "inject"]
    assert b.entries[2].data == 77


def test_a_datagram_crosses_the_fabric(opened: Opener) -> None:
    link = linked(opened, EndpointType.DGRAM)
    memory = bytearray(16)
    link.b.endpoint.recv(memory)
    link.a.endpoint.send(b"datagram", link.peer)
    assert link.a.one().len == 8
    assert link.b.one().len == 8
    assert memory[:8] == b"datagram"


def test_native_encapsulation_crosses_the_fabric(opened: Opener) -> None:
    link = linked(opened, native=True, crc=True)
    memory = bytearray(9_000)
    region = link.b.domain.mr_reg(memory)

    def operate() -> None:
        link.a.endpoint.write(bytes([1]) * 9_000, link.peer, 0, region.key)
        link.a.one()

    with_a_peer_that_serves(link, operate)
    assert memory == bytes([1]) * 9_000


class Interrupted(Exception):
    """Raised by a signal handler."""


def test_a_wait_ends_by_its_time_and_by_a_signal_without_spinning(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = opened(0)
    turns = 0
    turn = Device._turn  # noqa: SLF001  a wait that spins differs in nothing else

    def counted(device: Device, now: int) -> bool:
        nonlocal turns
        turns += 1
        return turn(device, now)

    monkeypatch.setattr(Device, "_turn", counted)
    before = side.device.now
    assert side.cq.wait(50_000_000) == []
    assert side.device.now - before >= 50_000_000
    assert turns <= 4, "a wait without traffic sleeps"

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            side.cq.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    thread = threading.Thread(target=side.cq.signal)
    thread.start()
    assert side.cq.wait() == []
    thread.join()
    before = side.device.now
    assert side.cq.wait(20_000_000) == []
    assert side.device.now - before >= 20_000_000, "the signal has ended one wait, and no other"


def test_a_retransmission_timer_wakes_a_wait(opened: Opener) -> None:
    side = opened(0, rto_init_time=5_000_000, max_rto_retx_cnt=2)
    nobody = opened(1)  # its port is open, but nobody serves it
    peer = side.av.insert(nobody.endpoint.getname())
    side.endpoint.write(b"hello", peer, 0, 1)
    with pytest.raises(ErrorAvailable, match="RTO_RETRIES_EXHAUSTED"):
        side.cq.wait(TIME_LIMIT)


def test_a_configuration_takes_what_the_port_says(lab: Lab) -> None:
    gpu, other = lab.topology.gpus[:2]
    peer = str(gpu_address(other).ip)

    def look() -> tuple[Device, FepConfig]:
        device = Device(gpu.ports[0].name)
        return device, device.config([peer])

    device, config = lab.inside(gpu.name, look)
    hops = next_hops(lab.topology, gpu.name)
    assert config == replace(
        config,
        address=str(gpu_address(gpu).ip),
        mac=gpu.ports[0].mac,
        neighbours={peer: hops[peer]},
    )
    assert config.payload_mtu <= device.mtu


def test_what_no_port_can_do_is_one_sentence(
    lab: Lab, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interface, "NEIGHBOUR_S", 0.05)
    gpu = lab.topology.gpus[0]

    def inside(work: Callable[[], object]) -> str:
        with pytest.raises(UserError) as refusal:
            lab.inside(gpu.name, work)
        assert "\n" not in str(refusal.value)
        return str(refusal.value)

    port = gpu.ports[0].name
    assert "there is no interface 'nowhere0'" in inside(lambda: Device("nowhere0"))
    assert "has no IP address" in inside(lambda: Device("lo").config([]))
    unknown = str(gpu_address(gpu).network.broadcast_address - 1)
    assert "no MAC address is known" in inside(lambda: Device(port).config([unknown]))
    wrong = "02:00:00:00:00:99"

    def with_another_mac() -> None:
        device = Device(port)
        Domain(device.config({}, mac=wrong), device)

    assert wrong in inside(with_another_mac)
    side = opened(0)
    assert "serves a domain already" in inside(lambda: Domain(side.domain.config, side.device))
    side.domain.close(TIME_LIMIT)
    with pytest.raises(UserError, match="no domain is open"):
        side.cq.read()


def descriptors() -> set[tuple[str, str]]:
    """The open descriptors of this process, each with what it leads to."""
    folder = "/proc/self/fd"
    return {
        (name, os.readlink(path))
        for name in os.listdir(folder)
        if os.path.islink(path := f"{folder}/{name}")
    }


def test_a_closed_device_leaves_no_descriptor(opened: Opener) -> None:
    gc.collect()  # what earlier tests left must not be closed meanwhile, and its number taken again
    before = descriptors()
    side = opened(0)
    assert descriptors() - before
    assert side.domain.close(TIME_LIMIT)
    assert descriptors() - before == set()
