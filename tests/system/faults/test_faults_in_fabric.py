"""Cables of a running lab are struck and healed, and nothing of what they had is lost for good."""

import json
import random
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from emulator.cli.labs import inject_verb, status_verb
from emulator.dataplane import cleanup
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch import switch_choice as choice
from emulator.dataplane.switch.bpf.layout import PORT_KEY, Queue
from emulator.errors import UserError
from emulator.run.faults import grammar
from emulator.run.faults.condition import SOUND, Condition, element
from emulator.run.faults.fault_injector import FaultInjector, recorded
from tests.harness.lab.traffic import blast, kill, pings, send_flows, within
from tests.system.conftest import SMALL, LabFactory
from topologies import catalogue

pytestmark = pytest.mark.root

DUAL = "rail_clos:hosts=2,gpus_per_host=2,nic_ports=2"
SHARED = "rail_clos:hosts=2,gpus_per_host=2,gpus_per_nic=2"
#: Switches with several routing tables.
TABLES = "dragonfly:groups=2,gpus_per_host=1,routing=valiant"
BUDGET_S = 20.0


def dump(lab: Lab) -> dict[str, str]:
    """Dump what the kernel has in every node: addresses, routes, bridges, queues, filters,
    and what the ASICs work by."""
    found = {}
    for node in lab.topology.nodes:
        words = ["ip addr", "ip route show table all", "ip rule", "ip neigh", "bridge fdb"]
        for port in node.ports:
            words += [f"tc qdisc show dev {port.name}", f"tc class show dev {port.name}"]
            words += [f"tc filter show dev {port.name} {way}" for way in ("egress", "ingress")]
        script = "; ".join(f"echo '# {word}'; {word} | sort" for word in words)
        found[node.name] = lab.exec(node.name, ["sh", "-c", script]).stdout
    if lab.asic is not None:
        for name, at in lab.asic.ports.items():
            found[name] = lab.asic.program.settings.get(PORT_KEY.pack(at.index)).hex()
    return found


def faulted(lab: Lab, text: str, before: Condition = SOUND) -> Condition:
    for clause in grammar.parse(text, lab.topology):
        before = grammar.after(before, clause)
    return before


def routes(lab: Lab, node: str, destination: str) -> list[str]:
    """The lines of the route of ``node``: one for each hop of several."""
    return lab.exec(node, ["ip", "route", "show", destination]).stdout.splitlines()


@pytest.mark.parametrize("topology", [SMALL, DUAL, SHARED, TABLES])
def test_whatever_was_pulled_comes_back_as_it_was(lab: LabFactory, topology: str) -> None:
    balance = "packet" if topology == TABLES else "round-robin"
    made = lab(topology, switch=choice.parse(f"shallow:balance={balance}"))
    before = dump(made)
    injector, rng = FaultInjector(made), random.Random(topology)
    for _ in range(4):
        condition = injector.condition
        for cable in rng.sample(made.topology.links, 4):
            one = element("link", str(cable.a), made.topology)
            down = one in condition.down
            condition = condition.raised(one) if down else condition.lowered(one)
        injector.apply(condition)
        ends = {str(end) for cable in condition.dead for end in cable.ends}
        assert without_carrier(made) == ends
    assert dump(made) != before
    injector.apply(SOUND)
    assert dump(made) == before
    assert recorded(made.name, made.topology) == SOUND


def test_the_other_hops_carry_what_a_dead_one_did(lab: LabFactory) -> None:
    made = lab(switch=choice.parse("shallow"))
    injector = FaultInjector(made)
    injector.apply(faulted(made, "link rail0:up0 down"))
    alive = [line for line in routes(made, "rail0", "10.0.2.0/24") if "dead" not in line]
    assert [line.split()[4] for line in alive if "nexthop" in line] == ["up1"]
    assert "dead linkdown" in routes(made, "spine0", "10.0.1.0/24")[0]
    pairs = [("h0g0", "10.0.2.2"), ("h0g0", "10.0.2.3"), ("h1g0", "10.0.2.2")]
    # The other rail switch is not told: what it sends by spine0 is lost there, and counted.
    before = made.unrouted()
    send_flows(made, "h0g1", "10.0.1.2", range(20_000, 20_032))
    within(BUDGET_S, lambda: made.unrouted() > before, "packets without a route counted")
    injector.apply(SOUND)
    assert set(pings(made, pairs).values()) == {0}


def test_a_switch_that_is_down_is_nobodys(lab: LabFactory) -> None:
    made = lab()  # without ASIC, too
    injector = FaultInjector(made)
    injector.apply(faulted(made, "switch rail0 down"))
    assert routes(made, "rail0", "10.0.2.0/24") == []
    ping = ["ping", "-c1", "-W1", "10.0.1.3"]
    assert made.exec("h0g0", ping).returncode != 0
    injector.apply(SOUND)
    assert set(pings(made, [("h0g0", "10.0.1.3"), ("h1g0", "10.0.2.2")]).values()) == {0}


def test_the_model_forgets_what_was_in_the_queue_of_a_pulled_cable(lab: LabFactory) -> None:
    made = lab(dilation=100_000, switch=choice.parse("deep"))
    asic, injector = made.asic, FaultInjector(made)
    assert asic is not None

    def depth() -> int:
        return asic.counters()["rail0:down1"].queues[Queue.LOW].bytes

    sender = blast(made, "h0g0", "10.0.1.3", size=1400)
    other = blast(made, "h0g1", "10.0.1.3", size=1400)
    try:
        # enough that a busy machine does not drain it before the cable is pulled
        within(BUDGET_S, lambda: depth() > 100_000, "a queue at the port of the receiver")
        injector.apply(faulted(made, "nic h1g0 down"))
    finally:
        kill(sender, other)
    assert injector.flushed > 0
    left = depth()
    assert left > 0
    within(
        BUDGET_S,
        lambda: made.counters(["h0g0"])["h0g0:eth0"].data.backlog_packets == 0,
        "the sender's queue empty",
    )
    injector.apply(SOUND)
    assert depth() == 0
    counted = asic.counters()["rail0:down1"].classes.values()
    assert sum(row.lost_bytes for row in counted) >= left  # and no receiver's


def test_silent_faults_of_a_nics_cable_strike_both_ways(lab: LabFactory) -> None:
    made = lab(switch=choice.parse("shallow"))
    asic, injector = made.asic, FaultInjector(made)
    assert asic is not None
    before = dump(made)
    injector.apply(faulted(made, "link h0g0:eth0 blackhole; link h1g0:eth0 loss=100% rate=100Gbps"))
    assert without_carrier(made) == set()
    made.exec("h0g0", ["ping", "-c1", "-W1", "10.0.1.1"])
    made.exec("h1g0", ["ping", "-c1", "-W1", "10.0.1.1"])
    counted = asic.counters()
    for port, reason in (("rail0:down0", "BLACK_HOLE"), ("rail0:down1", "LOSS")):
        drops = [row.drops for row in counted[port].classes.values()]
        assert sum(row[number] for row in drops for number in row if number.name == reason) == 1
    rate = "rate 100Mbit"
    for node, port in (("h1g0", "eth0"), ("rail0", "down1")):
        assert rate in made.exec(node, ["tc", "class", "show", "dev", port]).stdout
    injector.apply(SOUND)
    assert dump(made) == before
    assert set(pings(made, [("h0g0", "10.0.1.3")]).values()) == {0}


def test_what_cannot_be_changes_nothing(lab: LabFactory) -> None:
    plain = lab()
    with pytest.raises(UserError, match="no switch ASIC, which injects"):
        FaultInjector(plain).apply(faulted(plain, "link rail0:up0 down; link rail0:up1 loss=1%"))
    assert recorded(plain.name, plain.topology) == SOUND
    assert without_carrier(plain) == set()
    made = lab(dilation=100_000, switch=choice.parse("shallow"))
    with pytest.raises(UserError, match="link rail0:up1, too little to count in"):
        FaultInjector(made).apply(faulted(made, "link rail0:up0 down; link rail0:up1 rate=1Mbps"))
    assert without_carrier(made) == set()


# --- uetemu inject -------------------------------------------------------------------------------


@pytest.fixture
def running(lab_name: str) -> Iterator[str]:
    """A lab as ``uetemu up`` leaves it."""
    Lab.create(
        lab_name,
        catalogue.load(SMALL),
        FabricSettings(
            dilation=1000, seed=1, spec=SMALL, switch=choice.parse("shallow"), persistent=True
        ),
    ).close()
    yield lab_name
    cleanup.take_down(lab_name)


def inject(*arguments: str) -> str:
    reported = CliRunner().invoke(inject_verb.command, list(arguments), catch_exceptions=False)
    assert reported.exit_code == 0
    return reported.output


def test_a_later_process_heals_what_an_earlier_one_struck(running: str) -> None:
    assert inject(running, "link rail0:up0 down; link rail1:up0 loss=1%").splitlines() == [
        f"lab {running}: link rail0:up0 down",
        f"lab {running}: link rail1:up0 loss=1%",
    ]
    inject(running, "nic h0g0 down")
    listed = json.loads(inject(running, "--list", "--format", "json"))
    assert listed["struck"] == [
        "link rail0:up0 down",
        "nic h0g0 down",
        "link rail1:up0 loss=1%",
    ]
    shown = CliRunner().invoke(status_verb.command, [running]).output
    down = [line.split()[0] for line in shown.splitlines() if " down " in line and ":" in line]
    assert {"rail0:up0", "spine0:down0", "h0g0:eth0", "rail0:down0"} <= set(down)
    assert "struck: nic h0g0 down" in shown
    assert "400 Gbps (loss=1%)" in shown
    inject(running, "link spine0:down0 up")
    assert inject(running, "heal") == f"lab {running}: nothing is struck\n"
    with Lab.attach(running) as found:
        assert without_carrier(found) == set()
        assert set(pings(found, [("h0g0", "10.0.2.3")]).values()) == {0}


def test_a_dead_server_has_no_carrier_until_all_is_healed(running: str) -> None:
    assert inject(running, "server h1 dead") == f"lab {running}: server h1 dead\n"
    with Lab.attach(running) as found:
        assert {"h1g0:eth0", "h1g1:eth0", "rail0:down1", "rail1:down1"} == without_carrier(found)
    with pytest.raises(UserError, match="server h1 is dead already"):
        inject(running, "server h1 dead")
    inject(running, "heal")
    with Lab.attach(running) as found:
        assert without_carrier(found) == set()
        assert set(pings(found, [("h0g0", "10.0.1.3")]).values()) == {0}


def test_inject_refuses_in_one_sentence(running: str) -> None:
    for arguments, words in (
        (["link rail0:up9 down"], "no port 'up9'"),
        (["t=1ms link rail0:up0 down"], "inject strikes at once; take t= away"),
        (["link rail0:up0 flap every=1ms for=2ms"], "take down and up in turn"),
        (["link rail0:up0 up"], "not down then"),
        (["gpu h0g0 dead"], "a lab of uetemu up runs no process on its GPUs that could die"),
        (["server h0 up"], "happens to a server: a server dies"),
        ([], "say what is to happen"),
        ([" "], "say what is to happen"),
        (["heal", "--list"], "say what is to happen"),
    ):
        with pytest.raises(UserError, match=words):
            inject(running, *arguments)
    assert inject(running, "--list") == f"lab {running}: nothing is struck\n"


def test_a_lab_of_a_run_is_the_runs_to_strike(lab: LabFactory) -> None:
    made = lab()
    with pytest.raises(UserError, match=r"that of a uetemu run.*--fault"):
        inject(made.name, "link rail0:up0 down")


def without_carrier(lab: Lab) -> set[str]:
    found = set()
    for node in lab.topology.nodes:
        links = json.loads(lab.exec(node.name, ["ip", "-j", "link"]).stdout)
        found |= {
            f"{node.name}:{one['ifname']}"
            for one in links
            if "LOWER_UP" not in one["flags"]
            and one["ifname"] in {port.name for port in node.ports}
        }
    return found
