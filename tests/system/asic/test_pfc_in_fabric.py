"""Priority flow control over real cables: frames, gates, storms, the watchdog, the agent's life."""

import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emulator.dataplane import lab_record
from emulator.dataplane.clock import Clock
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.lab import Lab
from emulator.dataplane.switch import pauses as pause_requests
from emulator.dataplane.switch.bpf.layout import (
    PAUSE_STATE,
    PORT_KEY,
    DropReason,
    Queue,
    TrafficClass,
)
from emulator.dataplane.switch.cable_counters import PauseCounters
from emulator.dataplane.switch.cable_fitting import allowance_ns, device_ns
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.pause import ETHERTYPE, LONGEST, frame, quanta
from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.switch_fitting import fit
from emulator.errors import UserError
from emulator.run.faults.condition import SOUND, Condition, element
from emulator.run.faults.fault_injector import FaultInjector
from emulator.sim.endpoint.nic.packet_nic import Nic
from tests.harness.lab.traffic import blast, kill, within
from tests.system.conftest import LabFactory
from topologies.addressing import gpu_address
from topologies.catalogue import load
from topologies.model import CableEnd

pytestmark = [pytest.mark.root, pytest.mark.alone]  # how late a pause is depends on who else runs

MTU = 4200
ONE_RAIL = f"rail_clos:hosts=3,gpus_per_host=1,mtu={MTU}"
TWO_RAILS = "rail_clos:hosts=3,gpus_per_host=2,spines=1,uplinks_per_spine=1,mtu=4200"
SIZE = 4000
OCTETS = SIZE + 42 + 24  # of such a datagram on the wire
ECT, EF = 2, 0xB8
STORM = Faults(pause_storm=True)
BUDGET_S = 20.0
LOST_AFTER_NS = 1.2e9  # of the host: queue.h, and a little more
ETH_P_ALL = 0x0003
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
Pausing = Callable[..., Lab]


@pytest.fixture
def pausing(lab: LabFactory) -> Pausing:
    def build(switch: str = "lossless", spec: str = ONE_RAIL, **settings: Any) -> Lab:
        return lab(spec, switch=parse(switch), **settings)

    return build


@pytest.fixture
def blasting() -> Iterator[Callable[[Lab, str, str], None]]:
    """``blasting(lab, "h1g0", "h0g0")``: data without end, until the test is over."""
    running = []

    def begin(lab: Lab, node: str, to: str) -> None:
        running.append(blast(lab, node, address(lab, to), size=SIZE, tos=ECT))

    yield begin
    kill(*running)


def asic_of(lab: Lab) -> FabricAsic:
    assert lab.asic is not None
    return lab.asic


def address(lab: Lab, gpu: str) -> str:
    return str(gpu_address(lab.topology.node(gpu)).ip)


def port_to(lab: Lab, gpu: str) -> str:
    ((_, _, theirs),) = lab.topology.neighbours(gpu)
    return str(theirs)


def nic_of(lab: Lab, gpu: str) -> str:
    ((_, ours, _),) = lab.topology.neighbours(gpu)
    return str(ours)


def pauses(lab: Lab, port: str) -> PauseCounters:
    return asic_of(lab).pauses.counters()[port]


def is_paused(lab: Lab, port: str) -> Callable[[], bool]:
    """Whether the port is not allowed to send: its time of pause grows."""

    def look() -> bool:
        return pauses(lab, port).paused_ns < pauses(lab, port).paused_ns

    return look


def left(lab: Lab, port: str) -> tuple[int, int]:
    """Packets of control and of data that have left the queues of a port."""
    counters = lab.counters()[port]
    return counters.control.packets, counters.data.packets


def drops(lab: Lab) -> dict[DropReason, int]:
    found = dict.fromkeys(DropReason, 0)
    for port in asic_of(lab).counters().values():
        for row in port.classes.values():
            for reason, count in row.drops.items():
                found[reason] += count
    for counters in lab.counters().values():
        assert counters.data.drops == counters.control.drops == 0
    return {reason: count for reason, count in found.items() if count}


def send(lab: Lab, node: str, to: str, count: int, *, tos: int = ECT) -> None:
    process = blast(lab, node, address(lab, to), size=SIZE, tos=tos, count=count)
    assert process.wait() == 0
    kill(process)


def sniffer(lab: Lab, port: CableEnd) -> socket.socket:
    """Hears what arrives at a port, in front of the switch program."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        made.bind((port.port, ETH_P_ALL))
        made.setblocking(False)
        return made

    return lab.inside(port.node, make)


def mac_control(heard: socket.socket) -> list[bytes]:
    found = []
    while select.select([heard], [], [], 0)[0]:
        octets = heard.recv(65536)
        if int.from_bytes(octets[12:14], "big") == ETHERTYPE:
            found.append(octets)
    return found


@pytest.mark.conformance("R-044")
def test_a_paused_port_sends_control_but_no_data(pausing: Pausing) -> None:
    lab = pausing()
    port = port_to(lab, "h0g0")
    asic_of(lab).inject(port, STORM)
    within(BUDGET_S, is_paused(lab, port), "paused")
    control, data = left(lab, port)
    send(lab, "h1g0", "h0g0", 8)
    send(lab, "h1g0", "h0g0", 8, tos=EF)
    within(BUDGET_S, lambda: left(lab, port)[0] - control >= 8, "control through")
    assert left(lab, port)[1] - data <= 1  # the frame in flight
    seen = asic_of(lab).counters()[port].classes
    assert seen[TrafficClass.DATA].packets == 8
    assert seen[TrafficClass.CONTROL].packets == 8
    asic_of(lab).inject(port, NONE)
    within(BUDGET_S, lambda: left(lab, port)[1] - data == 8, "data through")
    counted = pauses(lab, port)
    assert counted.pauses == 1
    assert counted.paused_ns == counted.longest_pause_ns > 0
    assert pauses(lab, nic_of(lab, "h0g0")).xoff_sent == counted.xoff_received >= 1
    assert drops(lab) == {}


def test_who_fills_a_buffer_is_paused_and_held_back(
    pausing: Pausing, blasting: Callable[[Lab, str, str], None]
) -> None:
    lab = pausing()
    hot, nic = port_to(lab, "h0g0"), nic_of(lab, "h1g0")
    asic_of(lab).inject(hot, STORM)
    within(BUDGET_S, is_paused(lab, hot), "hot spot paused")
    blasting(lab, "h1g0", "h0g0")
    within(BUDGET_S, is_paused(lab, nic), "sender paused")
    (rules,) = asic_of(lab).fitted.pauses.values()
    full = pauses(lab, port_to(lab, "h1g0"))
    assert rules.xoff_bytes < full.max_held_bytes <= rules.ceiling_bytes
    # its data for somebody else wait behind, its control does not
    _, data = left(lab, port_to(lab, "h2g0"))
    ping = ["ping", "-c1", "-W5", address(lab, "h2g0")]
    assert lab.exec("h1g0", [*ping, "-Q", hex(EF)], timeout=10).returncode == 0
    assert left(lab, port_to(lab, "h2g0"))[1] == data
    asic_of(lab).inject(hot, NONE)
    within(BUDGET_S, lambda: pauses(lab, nic).xon_received > 0, "sender goes on")
    _, data = left(lab, hot)
    within(BUDGET_S, lambda: left(lab, hot)[1] > data + 100, "data through")
    assert drops(lab) == {}


#: Slow enough for a pause to be in time on most machines: the allowance is ten of its milliseconds.
CALM_DILATION = 120_000
#: As slow as the standards allow at 400 Gb/s: the computed headroom leaves room for no more.
SLOWEST = f"pfc_response={device_ns(400 * 10**9)}ns"


@pytest.mark.conformance("R-045")
def test_the_computed_headroom_is_enough_and_needed(
    pausing: Pausing, blasting: Callable[[Lab, str, str], None]
) -> None:
    """Two senders at line rate into a port that stands: what arrives after XOFF finds room.

    The machine may be later with a pause than hardware is. So there is twice the headroom here,
    and what it holds beyond the computed octets has to be what arrives in that time.
    """
    kind = f"lossless:{SLOWEST}"
    (computed,) = fit(parse(kind), load(ONE_RAIL), CALM_DILATION).pauses.values()
    assert computed.headroom_bytes == computed.needed_bytes
    lab = pausing(f"{kind},headroom={2 * computed.needed_bytes}", dilation=CALM_DILATION)
    asic_of(lab).inject(port_to(lab, "h0g0"), STORM)
    within(BUDGET_S, is_paused(lab, port_to(lab, "h0g0")), "hot spot paused")
    for gpu in ("h1g0", "h2g0"):
        blasting(lab, gpu, "h0g0")
    for gpu in ("h1g0", "h2g0"):
        within(BUDGET_S, is_paused(lab, nic_of(lab, gpu)), f"{gpu} paused")
    (rules,) = asic_of(lab).fitted.pauses.values()
    assert rules.xoff_bytes == computed.xoff_bytes
    for gpu in ("h1g0", "h2g0"):
        ends = [pauses(lab, port(lab, gpu)) for port in (nic_of, port_to)]
        late_ns = sum(end.late_ns for end in ends) - allowance_ns(rules.rate_bps, MTU)
        late_octets = max(0, late_ns) * rules.rate_bps // (8 * 10**9)
        used = ends[1].max_held_bytes - rules.xoff_bytes
        assert 0.85 * computed.needed_bytes < used <= computed.needed_bytes + late_octets
    assert drops(lab) == {}


@pytest.mark.conformance("R-045")
@pytest.mark.parametrize(("response", "headroom"), [(SLOWEST, "0.8"), ("pfc_response=0ns", "0.2")])
def test_less_headroom_is_not_enough(
    pausing: Pausing, blasting: Callable[[Lab, str, str], None], response: str, headroom: str
) -> None:
    needed = next(iter(fit(parse("lossless"), load(ONE_RAIL), 1000).pauses.values())).needed_bytes
    octets = round(float(headroom) * needed)
    lab = pausing(f"lossless:{response},headroom={octets}", dilation=20_000)
    asic_of(lab).inject(port_to(lab, "h0g0"), STORM)
    within(BUDGET_S, is_paused(lab, port_to(lab, "h0g0")), "hot spot paused")
    blasting(lab, "h1g0", "h0g0")
    within(BUDGET_S, is_paused(lab, nic_of(lab, "h1g0")), "sender paused")
    assert set(drops(lab)) == {DropReason.HEADROOM}
    (rules,) = asic_of(lab).fitted.pauses.values()
    assert pauses(lab, port_to(lab, "h1g0")).max_held_bytes <= rules.ceiling_bytes


def test_an_endpoint_sends_control_while_its_data_are_paused(pausing: Pausing) -> None:
    lab = pausing()
    nic_port, switch_side = nic_of(lab, "h1g0"), port_to(lab, "h1g0")
    assert pause_requests.ask(lab.name, f"storm {switch_side} on")
    within(BUDGET_S, is_paused(lab, nic_port), "NIC paused")
    control, data = left(lab, nic_port)
    nic = lab.inside(
        "h1g0", lambda: Nic("eth0", Clock.start(1000), frames=TransportFrames(), by_class=True)
    )
    try:
        mac = bytes(lab.topology.node("h1g0").port("eth0").mac.replace(":", ""), "ascii")
        ethernet = bytes.fromhex(mac.decode()) * 2 + b"\x08\0"

        def header(traffic: int) -> bytes:
            return ethernet + bytes((0x45, traffic)) + bytes(26)

        nic.send([(header(ECT), bytes(SIZE))] * 30 + [(header(EF), bytes(40))] * 4)
        assert nic.room() == 0
        assert 0 < nic.backlog < 30
        assert nic.blocked == [nic.fileno()]
        within(BUDGET_S, lambda: left(lab, nic_port)[0] - control >= 4, "control out")
        assert left(lab, nic_port)[1] - data <= 1
        pause_requests.ask(lab.name, f"storm {switch_side} off")

        def all_out() -> bool:
            nic.send([])
            return left(lab, nic_port)[1] - data >= 30

        within(BUDGET_S, all_out, "data out")
        assert nic.counters()["frames_out"] == 34
    finally:
        nic.close()


@pytest.mark.conformance("R-043", "R-048")
def test_pause_frames_stay_on_their_link(
    pausing: Pausing, blasting: Callable[[Lab, str, str], None]
) -> None:
    lab = pausing()
    hot, nic = port_to(lab, "h0g0"), nic_of(lab, "h1g0")
    heard = {
        gpu.name: sniffer(lab, CableEnd(gpu.name, gpu.ports[0].name)) for gpu in lab.topology.gpus
    }
    at_switch = sniffer(lab, CableEnd(*hot.split(":")))
    asic_of(lab).inject(hot, STORM)
    blasting(lab, "h1g0", "h0g0")
    within(BUDGET_S, is_paused(lab, nic), "sender paused")
    ours = lab.topology.node(hot.split(":")[0]).port(port_to(lab, "h1g0").split(":")[1])
    source = bytes.fromhex(ours.mac.replace(":", ""))
    frames = mac_control(heard["h1g0"])
    assert frames
    assert frames[0] == frame(source, {0: LONGEST})
    assert all(quanta(octets[:6], octets[14:]) is not None for octets in frames)
    assert mac_control(at_switch)  # those of the storm
    assert mac_control(heard["h0g0"]) == mac_control(heard["h2g0"]) == []
    for one in (*heard.values(), at_switch):
        one.close()


@pytest.mark.conformance("R-043")
def test_only_what_means_the_class_pauses_it(pausing: Pausing) -> None:
    """A frame for another class, IEEE 802.3's for the whole link, and noise: all are taken off."""
    lab = pausing()
    port, source = port_to(lab, "h0g0"), bytes.fromhex("020000000077")
    other = frame(source, {5: LONGEST})
    whole_link = other[:14] + bytes.fromhex("0001ffff") + bytes(42)
    noise = other[:14] + b"\xff" * 46
    elsewhere = lab.topology.node("h1g0").ports[0].mac
    to_a_station = bytes.fromhex(elsewhere.replace(":", "")) + frame(source, {0: LONGEST})[6:]
    heard = sniffer(lab, CableEnd("h1g0", "eth0"))

    def make() -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made.bind(("eth0", 0))
        return made

    with lab.inside("h0g0", make) as out:
        for octets in (other, whole_link, noise, to_a_station):
            out.send(octets)
    within(BUDGET_S, lambda: pauses(lab, port).malformed == 3, "counted")
    counted = pauses(lab, port)
    assert counted.xoff_received == counted.pauses == 0
    send(lab, "h1g0", "h0g0", 4)
    within(BUDGET_S, lambda: left(lab, port)[1] >= 4, "data through")
    assert mac_control(heard) == []
    heard.close()


def test_pauses_spread_from_switch_to_switch(
    pausing: Pausing, blasting: Callable[[Lab, str, str], None]
) -> None:
    lab = pausing("lossless:xoff=30KiB", TWO_RAILS)
    asic_of(lab).inject(port_to(lab, "h0g0"), STORM)
    blasting(lab, "h1g1", "h0g0")
    nic = nic_of(lab, "h1g1")
    within(BUDGET_S, is_paused(lab, nic), "the pause has come to the sender")
    asked = [name for name, port in asic_of(lab).pauses.counters().items() if port.xoff_sent]
    places = {name.split(":")[0] for name in asked}
    assert places == {"h0g0", "rail0", "spine0", "rail1"}
    assert drops(lab) == {}


@pytest.mark.conformance("R-046")
def test_marks_come_before_the_first_pause(pausing: Pausing) -> None:
    lab = pausing()
    hot, source = port_to(lab, "h0g0"), port_to(lab, "h1g0")
    asic_of(lab).inject(hot, STORM)
    within(BUDGET_S, is_paused(lab, hot), "paused")
    sent = marked = 0
    while not pauses(lab, source).xoff_sent:
        marked = asic_of(lab).counters()[hot].classes[TrafficClass.DATA].marked
        send(lab, "h1g0", "h0g0", 1)
        sent += 1
        arrived = asic_of(lab).counters
        within(
            BUDGET_S,
            lambda: arrived()[hot].classes[TrafficClass.DATA].packets == sent,  # noqa: B023
            "in the queue",
        )
    assert sent > 10
    assert marked > 0


def test_frames_that_wait_out_a_long_pause_are_not_taken_for_lost(pausing: Pausing) -> None:
    lab = pausing()
    hot = port_to(lab, "h0g0")
    asic_of(lab).inject(hot, STORM)
    within(BUDGET_S, is_paused(lab, hot), "paused")
    send(lab, "h1g0", "h0g0", 4)
    before = pauses(lab, hot).paused_ns
    longer = LOST_AFTER_NS / lab.settings.dilation

    def waited() -> bool:
        return pauses(lab, hot).paused_ns > before + longer

    within(BUDGET_S, waited, "a long pause")
    send(lab, "h1g0", "h0g0", 1)
    assert asic_of(lab).counters()[hot].queues[Queue.LOW].bytes == 4 * OCTETS  # one is in the NIC


@pytest.mark.conformance("R-047")
@pytest.mark.parametrize("action", ["drop", "forward"])
def test_the_watchdog_ends_a_storm(pausing: Pausing, action: str) -> None:
    lab = pausing(f"lossless:pfc_watchdog=100us,pfc_watchdog_action={action}")
    port = port_to(lab, "h0g0")
    asic_of(lab).inject(port, STORM)
    within(BUDGET_S, lambda: pauses(lab, port).watchdog_storms == 1, "storm found")
    send(lab, "h1g0", "h0g0", 8)
    if action == "drop":
        within(BUDGET_S, lambda: drops(lab) == {DropReason.WATCHDOG: 8}, "dropped")
    else:
        within(BUDGET_S, lambda: left(lab, port)[1] >= 8, "through")
    asic_of(lab).inject(port, NONE)

    def restored() -> bool:
        return pauses(lab, port).watchdog_ns == pauses(lab, port).watchdog_ns > 0

    within(BUDGET_S, restored, "restored")
    _, data = left(lab, port)
    send(lab, "h1g0", "h0g0", 8)
    within(BUDGET_S, lambda: left(lab, port)[1] >= data + 8, "through again")
    assert sum(drops(lab).values()) == (8 if action == "drop" else 0)


def test_pauses_come_and_go_with_the_choice(pausing: Pausing) -> None:
    lab = pausing()
    asic = asic_of(lab)
    assert len(lab_record.processes(lab.name)) == 1
    for switch, agents in (("shallow", 0), ("lossless", 1), ("lossless:pfc=off", 0)):
        asic.apply(parse(switch))
        assert len(lab_record.processes(lab.name)) == agents
        assert bool(asic.pauses.counters()) is bool(agents)
        queues = lab.exec("h0g0", ["tc", "qdisc", "show", "dev", "eth0"]).stdout
        assert ("tbf" in queues) is bool(agents)
        ping = ["ping", "-c1", "-W5", address(lab, "h1g0")]
        assert lab.exec("h0g0", ping, timeout=10).returncode == 0
    with pytest.raises(UserError, match="take --switch lossless"):
        asic.inject(port_to(lab, "h0g0"), STORM)


def test_frames_that_are_lost_below_are_forgotten(pausing: Pausing) -> None:
    """A queue is emptied by hand: who filled it must not be paused for ever."""
    lab = pausing("lossless:xoff=20KiB")
    hot, source = port_to(lab, "h0g0"), port_to(lab, "h1g0")
    asic_of(lab).inject(hot, STORM)
    within(BUDGET_S, is_paused(lab, hot), "paused")
    send(lab, "h1g0", "h0g0", 10)
    within(BUDGET_S, is_paused(lab, nic_of(lab, "h1g0")), "sender paused")
    node, interface = hot.split(":")
    for state in ("down", "up"):
        done = lab.exec(node, ["ip", "link", "set", interface, state], timeout=10)
        assert done.returncode == 0
    asic_of(lab).inject(hot, NONE)
    within(BUDGET_S, lambda: pauses(lab, source).xon_sent > 0, "sender may go on")
    _, data = left(lab, port_to(lab, "h2g0"))
    send(lab, "h1g0", "h2g0", 4)
    within(BUDGET_S, lambda: left(lab, port_to(lab, "h2g0"))[1] >= data + 4, "data through")


def held(lab: Lab, port: str) -> int:
    """Octets that the lossless buffer of a port counts now."""
    asic = asic_of(lab)
    state = asic.program.pause_states.get(PORT_KEY.pack(asic.port(port).index))
    return int(PAUSE_STATE.unpack(state)[0])


def test_a_pulled_cable_frees_the_buffers_of_what_waited_for_it_at_once(pausing: Pausing) -> None:
    """What waits for another port stays counted, until it has left."""
    lab = pausing("lossless:xoff=20KiB")
    hot, other, source = (port_to(lab, gpu) for gpu in ("h0g0", "h2g0", "h1g0"))
    injector = FaultInjector(lab)
    for port in (hot, other):
        asic_of(lab).inject(port, STORM)
        within(BUDGET_S, is_paused(lab, port), "paused")
    send(lab, "h1g0", "h2g0", 3)
    within(BUDGET_S, lambda: held(lab, source) == (3 - left(lab, other)[1]) * OCTETS, "waiting")
    send(lab, "h1g0", "h0g0", 10)
    within(BUDGET_S, is_paused(lab, nic_of(lab, "h1g0")), "sender paused")
    injector.apply(Condition((element("nic", "h0g0", lab.topology),)))
    assert held(lab, source) == (3 - left(lab, other)[1]) * OCTETS
    freed = pauses(lab, source).freed_bytes
    assert freed >= 3 * OCTETS
    assert freed % OCTETS == 0
    asic_of(lab).inject(other, NONE)
    within(BUDGET_S, lambda: held(lab, source) == 0, "the others have left")
    assert left(lab, other)[1] == 3
    before = left(lab, hot)[1]
    injector.apply(SOUND)
    send(lab, "h1g0", "h0g0", 4)
    within(BUDGET_S, lambda: left(lab, hot)[1] >= before + 4, "data through")
    within(BUDGET_S, lambda: held(lab, source) == 0, "nothing waits")
    assert pauses(lab, source).freed_bytes == freed  # nobody else had to give anything up


def test_what_arrives_after_it_was_given_up_is_not_freed_twice(pausing: Pausing) -> None:
    lab = pausing()
    hot, source = port_to(lab, "h0g0"), port_to(lab, "h1g0")
    asic_of(lab).inject(hot, STORM)
    within(BUDGET_S, is_paused(lab, hot), "paused")
    send(lab, "h1g0", "h0g0", 5)
    within(BUDGET_S, lambda: held(lab, source) == (5 - left(lab, hot)[1]) * OCTETS > 0, "waiting")
    octets = asic_of(lab).pauses.free(hot)
    assert octets >= 3 * OCTETS
    assert held(lab, source) == 0
    assert asic_of(lab).pauses.free(hot) == 0
    asic_of(lab).inject(hot, NONE)
    within(BUDGET_S, lambda: left(lab, hot)[1] == 5, "all of them have left")
    send(lab, "h1g0", "h0g0", 1)
    within(BUDGET_S, lambda: left(lab, hot)[1] == 6, "and another one")
    within(BUDGET_S, lambda: held(lab, source) == 0, "nothing waits")
    assert pauses(lab, source).freed_bytes == octets


def test_a_storm_is_a_nics(pausing: Pausing) -> None:
    lab = pausing(spec=TWO_RAILS)
    uplink = next(str(e) for e in (p.end for p in asic_of(lab).ports.values()) if "up" in e.port)
    with pytest.raises(UserError, match="name a port that faces a NIC"):
        asic_of(lab).inject(uplink, STORM)


def test_the_agent_ends_with_its_lab_and_lets_data_go(pausing: Pausing) -> None:
    lab = pausing()
    port = port_to(lab, "h0g0")
    (agent,) = lab_record.processes(lab.name)
    asic_of(lab).inject(port, STORM)
    within(BUDGET_S, is_paused(lab, port), "paused")
    send(lab, "h1g0", "h0g0", 8)
    asic_of(lab).pauses.end()
    assert not agent.alive
    within(BUDGET_S, lambda: left(lab, port)[1] >= 8, "data through")
    asic_of(lab).pauses.start()
    (agent,) = lab_record.processes(lab.name)
    lab.close()
    assert not agent.alive


def test_the_agent_ends_with_who_started_it(pausing: Pausing) -> None:
    lab = pausing()
    pauses_of = asic_of(lab).pauses
    (agent,) = lab_record.processes(lab.name)
    pipe = pauses_of._pipe  # noqa: SLF001  the kernel closes it where a process dies
    assert pipe is not None
    pipe.close()  # as when a process dies
    within(BUDGET_S, lambda: not agent.alive, "ended")


def test_netem_would_count_as_a_queue(lab: LabFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="take pfc=off"):
        lab(ONE_RAIL, switch=parse("lossless"), cable_delay="netem")
