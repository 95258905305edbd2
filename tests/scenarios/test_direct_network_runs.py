"""AllReduce on fabrics other than a Clos of rails, and what PFC allows there."""

from collections.abc import Callable

import pytest

from emulator.dataplane.switch import switch_choice as choice
from emulator.dataplane.switch.switch_fitting import fit
from emulator.errors import UserError
from emulator.pytest_plugin.runs import RunProcess
from emulator.run.measures.cuts import Crossing, cut_bound_ns
from tests.harness.runs.processes import ended
from topologies.catalogue import load
from topologies.model import Topology

RUNS = (
    ("fat_tree:radix=4,gpus_per_host=2", "uet"),
    ("fat_tree:radix=4,levels=3,gpus_per_host=2,leaves=4", "uet"),
    ("torus:x=3,y=2,routing=up-down", "rocev2"),  # with PFC
    ("torus:x=2,y=2,z=2", "uet"),
    ("dragonfly:gpus_per_host=1", "uet"),
    ("dragonfly:gpus_per_host=1,routing=valiant", "uet"),
    ("dragonfly_plus:gpus_per_host=1,leaves=1,spines=2,groups=3", "uet"),
)


@pytest.mark.parametrize(("spec", "transport"), RUNS)
def test_allreduce_is_right(start: Callable[..., RunProcess], spec: str, transport: str) -> None:
    run = start(
        *("--topology", spec, "--transport", transport, "--sizes", "16KiB"),
        *("--iterations", "1"),
    )
    ended(run)
    (row,) = run.result["rows"]
    assert row["wrong"] == 0
    assert row["time_us"] >= row["ideal_us"]
    assert not run.result["errors"]


@pytest.mark.parametrize(
    ("spec", "cable", "fault"),
    [
        ("torus:x=3,y=3,routing=shortest", "r0-0:xplus0", "down"),
        ("dragonfly:gpus_per_host=1,routing=minimal", "g0-r0:global0", "down"),
        ("dragonfly:gpus_per_host=1,routing=valiant", "g0-r0:local0", "blackhole"),
        ("dragonfly_plus:gpus_per_host=1,routing=valiant", "g0-leaf0:up0", "down"),
    ],
)
def test_cable_that_fails_for_a_while_costs_packets_and_no_octet(
    start: Callable[..., RunProcess], spec: str, cable: str, fault: str
) -> None:
    """The tests' whole runs are held to conservation: each lost packet has its reason."""
    healed = "heal" if fault == "blackhole" else "up"
    timeline = f"t=3us link {cable} {fault}; t=9us {healed}"
    run = start(
        *("--topology", spec, "--sizes", "64KiB", "--iterations", "1", "--fault", timeline),
        *("--capture", "none"),
        scenario="permutation",
    )
    ended(run)
    (row,) = run.result["rows"]
    assert sum(row["lost_packets"].values()) > 0
    assert set(row["lost_packets"]) <= {"black_hole", "in_flight", "in_queue", "no_route"}
    assert row["slowdown"] > 1


# --- PFC -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("design", "routing", "links"),
    [
        ("torus", "dimension-order", "4 links .*r0-0:xplus0 -> r1-0:xminus0, .* and 1 more"),
        ("torus", "shortest", "4 links"),
        ("dragonfly", "minimal", "6 links .* and 3 more"),
        ("dragonfly", "valiant", "5 links"),
    ],
)
def test_pfc_is_refused_where_packets_can_wait_in_a_circle(
    design: str, routing: str, links: str
) -> None:
    topology = load(f"{design}:routing={routing}")
    words = f"routing={routing}, .*{links}.*take routing=up-down"
    with pytest.raises(UserError, match=words) as caught:
        fit(choice.parse("lossless"), topology, 1000)
    assert "\n" not in str(caught.value)
    assert not fit(choice.parse("lossless:pfc=off"), topology, 1000).pauses
    assert fit(choice.parse("lossless"), load(f"{design}:routing=up-down"), 1000).pauses


@pytest.mark.parametrize("balance", ["round-robin", "least-loaded"])
def test_a_balance_that_is_told_next_hops_does_not_go_with_valiant(balance: str) -> None:
    switch = choice.parse(f"shallow:balance={balance}")
    fit(switch, load("dragonfly"), 1000)
    with pytest.raises(
        UserError, match=r"routing=valiant .*: take another, such as balance=packet"
    ):
        fit(switch, load("dragonfly:routing=valiant"), 1000)


# --- ideal times ---------------------------------------------------------------------------------


def exchange(topology: Topology, pairs: list[tuple[str, str]], octets: int) -> float:
    """The bound on the time of messages of ``octets`` between all ``pairs`` of GPUs, in ns."""
    return cut_bound_ns(
        topology,
        [
            Crossing(source=a, destination=b, octets=octets, head_ns=0.0, tail_ns=0.0)
            for a, b in pairs
        ],
    )


def test_half_a_torus_bounds_what_goes_to_the_other_half() -> None:
    """4 x 4 routers of 4 GPUs: 32 GPUs send over 8 cables: four times a NIC's time."""
    topology = load("torus:x=4,y=4,gpus_per_host=4,uplink_delay=0ns,nic_delay=0ns")
    at: dict[tuple[int, ...], list[str]] = {}
    for gpu in topology.gpus:
        (router,) = (far.node for _, _, far in topology.neighbours(gpu.name))
        at.setdefault(topology.node(router).position, []).append(gpu.name)
    pairs = [
        pair
        for (x, y), gpus in at.items()
        if x < 2
        for pair in zip(gpus, at[x + 2, y], strict=True)
    ]
    one = 10**6 * 8e9 / (400 * 10**9)
    assert exchange(topology, pairs, 10**6) == pytest.approx(4 * one)


def test_a_groups_global_links_bound_what_it_sends() -> None:
    """4 GPUs of one group send to another group: its global links are two of half their rate."""
    spec = "dragonfly:gpus_per_host=2,routers=2,global_links=1,groups=3"
    topology = load(f"{spec},global_rate=200G,uplink_delay=0ns,nic_delay=0ns")
    groups = {pod: [g.name for g in topology.gpus if g.pod == pod] for pod in range(3)}
    pairs = list(zip(groups[0], groups[1], strict=True))
    one = 10**6 * 8e9 / (400 * 10**9)
    assert exchange(topology, pairs, 10**6) == pytest.approx(4 * one)
