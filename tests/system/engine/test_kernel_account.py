"""The kernel keeps the account: every frame that goes in comes out, or is counted, by reason."""

import random
from collections import Counter

import pytest

from emulator.dataplane.account import Account
from emulator.run.faults.condition import SOUND
from emulator.sim.event_queue import PS
from emulator.sim.line import LOW, Line
from tests.harness.lab.wire_tap import datagram, ear, received, tunnelled
from tests.system.conftest import LabFactory
from tests.system.engine.test_faults_in_labs import ARRIVES_NS, OCTETS, RAIL, SPINES, Bench, benched
from topologies.model import VXLAN_OVERHEAD, CableEnd

pytestmark = pytest.mark.root

#: More ports than the kernel hands on at a time (64, net.core.dev_weight).
WIDE = "rail_clos:hosts=100,gpus_per_host=1,nic_rate=8Gbps,nic_delay=100ns"
#: 512 GPUs and 512 cables between switches.
LARGE = "clos:hosts=64,gpus_per_host=8,spines=8"
STRETCHED = (
    "clos:segments=2,hosts=1,gpus_per_host=1,spines=1,subnets=stretched,nic_rate=8Gbps,"
    "uplinks_per_spine=1"
)
BROADCAST, GROUP, NOBODY = "ffffffffffff", "01005e000005", "029999999999"


def account(bench: Bench) -> Account:
    """The account, of which every frame has one fate."""
    kept = bench.network.account
    assert kept.injected == kept.delivered + kept.dropped.total()
    assert bench.network.under_way() == 0
    return kept


@pytest.mark.parametrize("switch", ["shallow", None])
def test_flood_is_whole_at_one_instant(lab: LabFactory, switch: str | None, busy: None) -> None:
    floods = 100
    with benched(lab, WIDE, switch) as bench:
        frame = datagram(bench.lab, "h0g0", "h1g0", octets=OCTETS)
        line = bench.network.lines[CableEnd("h0g0", "eth0")]
        for number in range(floods):
            address = (BROADCAST, GROUP, NOBODY)[number % 3]
            line.enqueue(bytes.fromhex(address) + frame[6:], LOW)
        bench.events.run()
        others = {gpu.name for gpu in bench.lab.topology.gpus} - {"h0g0"}
        assert Counter(gpu for _, gpu in bench.arrived) == dict.fromkeys(others, floods)
        assert set(Counter(ns for ns, _ in bench.arrived).values()) == {len(others)}
        assert account(bench).injected == floods


@pytest.mark.parametrize("switch", ["shallow", None])
def test_frame_that_goes_back_where_it_came_from_is_alone(
    lab: LabFactory, switch: str | None
) -> None:
    """A router would tell the sender of the shorter way (RFC 1122, 3.2.2.2), at no virtual time."""
    with benched(lab, RAIL, switch) as bench:
        rail = bench.lab.topology.gateway_of(CableEnd("h0g0", "eth0"))
        assert rail is not None
        frame = datagram(bench.lab, "h0g0", "h1g0", octets=OCTETS)
        hears = ear(bench.lab, CableEnd("h0g0", "eth0"))
        for _ in range(50):
            redirected = bytes.fromhex(rail.mac.replace(":", "")) + frame[6:]
            bench.network.lines[CableEnd("h0g0", "eth0")].enqueue(redirected, LOW)
        bench.events.run()
        assert Counter(gpu for _, gpu in bench.arrived) == {"h1g0": 50}
        assert bench.arrived[0][0] == ARRIVES_NS
        assert account(bench).delivered == 50
        assert received(hears) == []
        hears.close()


def test_packets_without_a_way_get_no_answer_by_the_hosts_clock(lab: LabFactory) -> None:
    """A router would report some of them (RFC 1812, 5.2.7.1), so many a second of this machine."""
    with benched(lab, SPINES) as bench:
        down = bench.down("switch", "spine0").lowered(bench.element("switch", "spine1"))
        bench.at(0, down)
        hears = ear(bench.lab, CableEnd("h0g0", "eth0"))
        bench.send("h0g0", "h0g1", 20)
        bench.events.run()
        assert account(bench).dropped == {"rail0: no route": 20}
        assert received(hears) == []
        hears.close()


@pytest.mark.parametrize("switch", ["shallow", "shallow:balance=packet", None])
def test_tunnels_keep_the_account(lab: LabFactory, switch: str | None) -> None:
    count = 100
    with benched(lab, tunnelled(STRETCHED), switch) as bench:
        bench.send("h0g0", "h1g0", count)
        bench.send("h1g0", "h0g0", count)
        bench.events.run()
        assert Counter(gpu for _, gpu in bench.arrived) == {"h0g0": count, "h1g0": count}
        assert account(bench).injected == 3 * 2 * count  # rail, spine, rail
        frames = {str(end): line.counts for end, line in bench.network.lines.items()}
        for port in ("rail0:up0", "rail1:up0"):
            assert frames[port].octets == count * (OCTETS + 42 + VXLAN_OVERHEAD)
        for port in ("rail0:down0", "rail1:down0"):
            assert frames[port].octets == count * (OCTETS + 42)
        if switch is not None:
            black = SOUND.faulted(bench.element("link", "rail1:up0").links, black_hole=True)
            bench.injector.apply(black)
            bench.send("h0g0", "h1g0", count)
            bench.events.run()
            assert account(bench).dropped == {"spine0: switch": count}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("switch", ["shallow:balance=packet", "shallow:balance=round-robin", None])
def test_carrier_that_comes_and_goes_keeps_the_account(
    lab: LabFactory, switch: str | None, seed: int
) -> None:
    """Frames of two senders, and cables of both kinds that change at any moment between them."""
    count = 60
    with benched(lab, SPINES, switch) as bench:
        rng = random.Random(seed)
        cables = [("link", "rail0:up0"), ("link", "rail1:up1"), ("nic", "h0g1")]
        for _ in range(12):
            faulted = SOUND
            for kind, name in rng.sample(cables, rng.randrange(len(cables))):
                faulted = faulted.lowered(bench.element(kind, name))
            bench.at(rng.randrange(count * 1024), faulted)
        bench.at(count * 1024, SOUND)
        bench.send("h0g0", "h0g1", count)
        bench.send("h0g1", "h0g0", count)
        bench.events.run()
        kept = account(bench)
        lost = [line.counts.in_queue + line.counts.in_flight for line in _lines(bench)]
        assert 2 * count == len(bench.arrived) + sum(lost) + kept.dropped.total()
        assert 0 < len(bench.arrived) < 2 * count
        bench.arrived.clear()
        bench.send("h0g0", "h0g1", count)  # as if nothing had been
        bench.events.run()
        assert len(bench.arrived) == count


def _lines(bench: Bench) -> list[Line]:
    return list(bench.network.lines.values())


@pytest.mark.nightly
@pytest.mark.slow
def test_two_thousand_ends_share_one_ring(lab: LabFactory) -> None:
    with benched(lab, LARGE) as bench:
        gpus = [gpu.name for gpu in bench.lab.topology.gpus]
        assert len(bench.network.lines) == 2048
        for rounds, step in enumerate((8, 1), start=1):  # on its rail, and to another
            for number, gpu in enumerate(gpus):
                bench.send(gpu, gpus[(number + step) % len(gpus)])
            bench.events.run()
            assert Counter(gpu for _, gpu in bench.arrived) == dict.fromkeys(gpus, rounds)
        first = bench.network.lines[CableEnd(gpus[0], "eth0")]
        frame = datagram(bench.lab, gpus[0], gpus[8], octets=OCTETS)
        first.enqueue(bytes.fromhex(BROADCAST) + frame[6:], LOW)
        bench.arrived.clear()
        bench.events.run()
        assert len(bench.arrived) == 63  # its rail, alone
        kept = account(bench)
        sent = sum(line.counts.frames for line in _lines(bench))
        to_gpus = 2 * len(gpus) + len(bench.arrived)
        assert kept.injected == kept.delivered == sent - to_gpus
        assert bench.events.now > PS
