"""Fat trees, tori and dragonflies in the kernel: who reaches whom, and over which way."""

import json
import re
from collections import Counter
from ipaddress import IPv4Address

import pytest

from emulator.dataplane.lab import Lab
from tests.harness.lab.traffic import pings, send_flows, within
from tests.system.conftest import LabFactory
from topologies.addressing import gpu_address
from topologies.model import Topology
from topologies.routing.forwarding import LookupPlace, RouteTable, forwarding_of
from topologies.routing.static_routes import static_routes

pytestmark = pytest.mark.root

SMALL_DRAGONFLY = "dragonfly:gpus_per_host=1"  # a = 2, p = 1, h = 1: three groups
FABRICS = (
    "fat_tree:radix=4,levels=3,gpus_per_host=2",
    "torus:x=3,y=3",
    "torus:x=3,y=2,z=2,routing=shortest",
    "torus:x=4,y=2,routing=up-down",
    SMALL_DRAGONFLY,
    f"{SMALL_DRAGONFLY},routing=valiant",
    "dragonfly_plus:gpus_per_host=1,leaves=2,spines=2,groups=3,routing=valiant",
    "dragonfly_plus:gpus_per_host=1,leaves=2,spines=2,groups=3,routing=up-down",
)


def address(topology: Topology, gpu: str) -> str:
    return str(gpu_address(topology.node(gpu)).ip)


def router_of(topology: Topology, gpu: str) -> str:
    return next(far.node for _, _, far in topology.neighbours(gpu))


@pytest.mark.parametrize("spec", FABRICS)
def test_every_gpu_reaches_every_other_by_the_computed_next_hops(
    lab: LabFactory, spec: str
) -> None:
    made = lab(spec)
    topology = made.topology
    names = [gpu.name for gpu in topology.gpus]
    pairs = [(a, address(topology, b)) for a in names for b in names if a != b]
    status = pings(made, pairs)
    assert set(status.values()) == {0}, [pair for pair, code in status.items() if code]
    far = names[-1]
    for name in {names[0], names[len(names) // 2]}:
        follow(made, name, far)


def follow(lab: Lab, source: str, destination: str) -> None:
    """Ask the kernel of every switch on every way to ``destination`` where a packet goes next."""
    topology, forwarding = lab.topology, forwarding_of(lab.topology)
    owner = router_of(topology, destination)
    start = router_of(topology, source)
    (entry,) = forwarding.entries(start)
    front: list[tuple[LookupPlace, str]] = [(entry, forwarding.graph.hosts[start][0])]
    seen = set(front)
    for place, interface in front:  # which grows
        if place.node == owner:
            continue
        steps = forwarding.next_steps(owner, place)
        argv = ["ip", "-j", "route", "get", address(topology, destination)]
        argv += ["from", address(topology, source), "iif", interface]
        (answer,) = json.loads(lab.exec(place.node, argv).stdout)
        assert answer["dev"] in {step.port for step in steps}, (place, answer)
        for step in steps:
            there = forwarding.arrival(place, step), step.arrives
            if there not in seen:
                seen.add(there)
                front.append(there)


@pytest.mark.parametrize(
    "spec", ["torus:x=4,y=2,routing=up-down", f"{SMALL_DRAGONFLY},routing=valiant"]
)
def test_kernel_tables_are_the_computed_ones(lab: LabFactory, spec: str) -> None:
    made = lab(spec)
    computed = static_routes(made.topology)
    for switch in made.topology.switches:
        argv = ["ip", "-j", "route", "show", "table", "all", "proto", "static"]
        kernel = {}
        for row in json.loads(made.exec(switch.name, argv).stdout):
            hops = row.get("nexthops") or [row]
            key = (row["dst"].removesuffix("/32"), row.get("table", "main"))
            kernel[key] = {(hop["dev"], IPv4Address(hop["gateway"])) for hop in hops}
        numbers = {RouteTable.MAIN: "main", RouteTable.HOSTS: "101", RouteTable.GROUP: "102"}
        assert kernel == {
            (str(route.destination).removesuffix("/32"), numbers[route.table]): {
                (hop.port, hop.via) for hop in route.hops
            }
            for route in computed[switch.name]
        }


def test_routers_on_the_way_answer_in_the_order_of_the_dimensions(lab: LabFactory) -> None:
    """Traceroute's rule: the packet whose time to live ends at hop n is answered by router n."""
    made = lab("torus:x=5,y=5")
    topology = made.topology
    gpus = {
        topology.node(router_of(topology, gpu.name)).position: gpu.name for gpu in topology.gpus
    }
    owners = {
        str(interface): switch.name
        for switch in topology.switches
        for interface in (
            switch.loopback,
            *(bridge.gateway.ip for bridge in switch.bridges if bridge.gateway),
            *(port.address.ip for port in switch.ports if port.address),
        )
    }
    to = address(topology, gpus[2, 1])
    answered = []
    for hops in range(1, 5):
        argv = ["ping", "-n", "-c1", "-W5", "-t", str(hops), to]
        text = made.exec(gpus[0, 0], argv).stdout
        found = re.search(r"From (\S+) icmp_seq=1 Time to live exceeded", text)
        assert found, text
        answered.append(owners[found[1]])
    assert answered == ["r0-0", "r1-0", "r2-0", "r2-1"]


def transit(lab: Lab, group: int) -> int:
    """Packets that came into ``group`` over its global links."""
    counters = lab.counters()
    return sum(
        counters[f"{switch.name}:{port.name}"].rx_packets
        for switch in lab.topology.switches
        if switch.pod == group
        for port in switch.ports
        if port.name.startswith("global")
    )


@pytest.mark.parametrize(
    "design", [SMALL_DRAGONFLY, "dragonfly_plus:gpus_per_host=1,leaves=2,spines=2,groups=3"]
)
@pytest.mark.parametrize("routing", ["minimal", "valiant"])
def test_only_valiant_goes_through_a_third_group(
    lab: LabFactory, design: str, routing: str
) -> None:
    made = lab(f"{design},routing={routing}")
    topology, flows = made.topology, 400
    first = {pod: next(g.name for g in topology.gpus if g.pod == pod) for pod in range(3)}
    before = transit(made, 2)
    arrived = made.counters()[f"{first[1]}:eth0"].rx_packets
    send_flows(made, first[0], address(topology, first[1]), range(20_000, 20_000 + flows))
    within(
        60,
        lambda: made.counters()[f"{first[1]}:eth0"].rx_packets >= arrived + flows,
        "all flows arrived",
    )
    through = transit(made, 2) - before
    if routing == "minimal":
        assert through == 0
    else:
        assert 0.25 * flows <= through <= 0.75 * flows  # half; five deviations are 50


def test_every_choice_of_valiant_is_used(lab: LabFactory) -> None:
    """Each of the seven other groups carries some of the flows between two."""
    made = lab("dragonfly:gpus_per_host=1,routers=4,global_links=2,routing=valiant")
    topology = made.topology
    assert len({switch.pod for switch in topology.switches}) == 9
    first = {gpu.pod: gpu.name for gpu in reversed(topology.gpus)}
    send_flows(made, first[0], address(topology, first[8]), range(20_000, 20_600))
    within(60, lambda: made.counters()[f"{first[8]}:eth0"].rx_packets >= 600, "all flows arrived")
    through = Counter({group: transit(made, group) for group in range(1, 8)})
    assert min(through.values()) > 10, through
