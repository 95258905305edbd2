"""The ASIC of every switch of a lab: what it does to traffic, and who can reach it."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from emulator.dataplane import cleanup, lab_record
from emulator.dataplane.kernel import namespaces
from emulator.dataplane.kernel.fabric.cable_delay import for_kernel_traffic
from emulator.dataplane.lab import Lab
from emulator.dataplane.settings import CableDelay, FabricSettings
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.layout import DropReason, Queue, TrafficClass
from emulator.dataplane.switch.bpf.switch_program import Size
from emulator.dataplane.switch.fabric_asic import FabricAsic
from emulator.dataplane.switch.port_faults import NONE, Faults
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.switch_counters import AsicCounters, ClassCounters
from emulator.errors import UserError
from tests.harness.lab.endpoint_process import Endpoint, serving
from tests.harness.lab.traffic import blast, kill, pings, within
from tests.harness.runs.processes import completed as uetemu
from tests.system.conftest import SMALL, LabFactory
from tests.system.fabric.test_lab import nothing_left, python
from topologies import catalogue
from topologies.addressing import gpu_address
from topologies.model import CableEnd
from uet.wire.codes import NackCode, PacketType
from uet.wire.frame import decode_frame

pytestmark = pytest.mark.root

SPEC = "rail_clos:hosts=3,gpus_per_host=2,mtu=4200"
DILATION, SIZE = 20_000, 4000
ECT = 2  # ECN-capable (RFC 3168)
TRIM_BYTES = 60_000
SHALLOW = f"shallow:balance=packet,data.kmin_bytes=20KB,data.trim_bytes={TRIM_BYTES}"
BUDGET_S = 20.0
ETH_P_ALL = 0x0003


@pytest.fixture
def asic_lab(lab: LabFactory) -> LabFactory:
    def build(switch: str = SHALLOW, spec: str = SPEC, **settings: Any) -> Lab:
        return lab(spec, **{"dilation": DILATION, "switch": parse(switch)} | settings)

    return build


def asic_of(lab: Lab) -> FabricAsic:
    assert lab.asic is not None
    return lab.asic


def seen_at(lab: Lab, end: CableEnd | str) -> AsicCounters:
    return asic_of(lab).counters()[str(end)]


def data_at(lab: Lab, end: CableEnd | str) -> ClassCounters:
    return seen_at(lab, end).classes[TrafficClass.DATA]


def port_to(lab: Lab, node: str) -> CableEnd:
    """The switch port that ``node`` is plugged into."""
    ((_, _, theirs),) = lab.topology.neighbours(node)
    return theirs


def uplinks(lab: Lab, rail: str) -> list[str]:
    return [
        str(ours)
        for _, ours, theirs in lab.topology.neighbours(rail)
        if lab.topology.node(theirs.node).is_switch
    ]


def address(lab: Lab, gpu: str) -> str:
    return str(gpu_address(lab.topology.node(gpu)).ip)


Senders = Callable[..., list[subprocess.Popen[bytes]]]


@pytest.fixture
def senders() -> Iterator[Senders]:
    """``senders(lab, "h0g0", ..., to="h2g0")``: each sends as fast as it can, until the end."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(lab: Lab, *nodes: str, to: str) -> list[subprocess.Popen[bytes]]:
        begun = [blast(lab, node, address(lab, to), size=SIZE, tos=ECT) for node in nodes]
        running.extend(begun)
        return begun

    yield begin
    kill(*running)


INCAST = ("h0g0", "h0g1", "h1g1")  # one on the rail of h2g0 (bridged), two beyond (routed)


# --- what it does ------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", ["nic", "netem"])
def test_incast_is_marked_and_trimmed_at_the_last_hop(
    asic_lab: LabFactory, senders: Senders, delay: CableDelay
) -> None:
    if delay == "netem" and for_kernel_traffic() != "netem":
        pytest.skip("the kernel has no netem")
    lab = asic_lab(cable_delay=delay)
    assert asic_of(lab).measured == (delay == "nic")
    last = port_to(lab, "h2g0")
    begun = senders(lab, *INCAST, to="h2g0")
    within(BUDGET_S, lambda: data_at(lab, last).trimmed > 50, "trimmed packets")
    kill(*begun)

    def settled() -> bool:
        rows = lab.counters().values()
        return not any(row.data.backlog_packets or row.control.backlog_packets for row in rows)

    within(BUDGET_S, settled, "empty queues everywhere")
    within(
        BUDGET_S,
        lambda: not any(queue.bytes for queue in seen_at(lab, last).queues.values()),
        "empty queues in the model",
    )
    seen, kernels = seen_at(lab, last), lab.counters()[str(last)]
    data = seen.classes[TrafficClass.DATA]
    assert data.marked > 0
    assert data.drops[DropReason.TAIL] == 0
    assert seen.queues[Queue.LOW].max_bytes <= TRIM_BYTES
    # every one that the model admitted went to the kernel's queue, once, nothing else did
    assert kernels.control.packets == seen.classes[TrafficClass.TRIMMED].packets
    assert kernels.data.packets + kernels.data.drops == data.packets
    assert kernels.control.drops == 0
    if asic_of(
        lab
    ).measured:  # else a kernel whose timers are late has a longer queue than the model
        assert kernels.data.drops == 0


def test_the_model_is_as_deep_as_the_kernels_queue(asic_lab: LabFactory) -> None:
    # what HTB has let go and what has not arrived yet is between the two: a frame or two
    frame = SIZE + 28 + 38
    lab = asic_lab("lossless:pfc=off", dilation=100_000)
    last = port_to(lab, "h2g0")
    asic_of(lab).inject(str(last), Faults(rate=0.02))  # until all of them wait there
    senders = [
        blast(lab, node, address(lab, "h2g0"), size=SIZE, count=100) for node in ("h0g0", "h1g0")
    ]
    for sender in senders:
        sender.wait()  # until it has handed over all that it had
    kill(*senders)

    def kernels(end: str) -> int:
        queue = lab.counters()[end].data
        return queue.backlog_bytes + 24 * queue.backlog_packets

    nics = ("h0g0:eth0", "h1g0:eth0")
    within(BUDGET_S, lambda: not any(kernels(nic) for nic in nics), "all beyond the NICs")
    asic_of(lab).inject(str(last), NONE)
    found = set()

    def empty() -> bool:
        before = seen_at(lab, last).queues[Queue.LOW].bytes
        holds = kernels(str(last))
        after = seen_at(lab, last).queues[Queue.LOW].bytes
        found.add(holds)
        assert before >= holds
        assert after <= holds + 2 * frame
        return after == 0

    within(BUDGET_S, empty, "an empty queue")
    assert max(found) > 100 * frame
    assert len(found) > 5


def test_trimmed_packets_tell_whether_the_last_hop_trimmed_them(
    asic_lab: LabFactory, senders: Senders
) -> None:
    # two uplinks of h0's rail to one spine, at a hundredth of the NICs' rate: they trim first
    slow = "rail_clos:hosts=3,gpus_per_host=2,mtu=4200,uplink_rate=4G,uplinks_per_spine=1"
    lab = asic_lab("shallow:data.trim_bytes=20KB", spec=slow)
    points = asic_of(lab).fitted.profile(lab.topology.links[0]).code_points
    heard = lab.inside("h2g0", _raw_socket)
    try:
        senders(lab, "h0g1", "h1g1", to="h2g0")
        within(BUDGET_S, lambda: points.trimmed in _code_points(heard), "packets trimmed before")
        senders(lab, "h0g0", "h1g0", to="h2g0")
        within(
            BUDGET_S,
            lambda: points.trimmed_last_hop in _code_points(heard),
            "packets trimmed at the last hop",
        )
    finally:
        heard.close()


def _raw_socket() -> socket.socket:
    """Return a socket that hears what arrives at eth0, in front of the filter."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    raw.setsockopt(263, 23, 1)  # PACKET_IGNORE_OUTGOING
    raw.bind(("eth0", ETH_P_ALL))
    raw.settimeout(BUDGET_S)
    return raw


def _code_points(raw: socket.socket) -> set[int]:
    return {raw.recv(64)[15] >> 2 for _ in range(20)}


def test_endpoints_are_told_of_trimming_at_the_last_hop(asic_lab: LabFactory) -> None:
    """Two windows meet in front of one NIC; no packet is lost without trace."""
    lab = asic_lab("shallow:data.trim_bytes=40KB")
    heard = lab.inside("h0g0", _raw_socket)
    heard.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    heard.setblocking(False)
    try:
        with serving("fep", lab, "h2g0", "--no-pdc-events") as target:
            sources = [
                Endpoint(
                    *("fep", "initiator", "--gpu", f"{lab.name}:{gpu}", "-p", "h2g0"),
                    *("--set", "cc=none", "--in-flight", "0", "write:64k,count=16,offset=" + place),
                )
                for gpu, place in (("h0g0", "0"), ("h1g0", "1M"))
            ]
            assert [source.end() for source in sources] == [0, 0]
        codes = {
            packet.fields["pds.nack_code"]
            for packet in map(decode_frame, _frames(heard))
            if packet.fields.get("pds.type") == PacketType.NACK
        }
    finally:
        heard.close()
    assert codes == {NackCode.TRIMMED_LASTHOP}
    trimmed = data_at(lab, port_to(lab, "h2g0")).trimmed
    assert target.counters["rx_trimmed"] == trimmed > 0


def _frames(heard: socket.socket) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        while True:
            yield heard.recv(65536)


@pytest.mark.parametrize("balance", ["packet", "round-robin", "least-loaded"])
def test_one_flow_takes_all_uplinks(asic_lab: LabFactory, senders: Senders, balance: str) -> None:
    lab = asic_lab(f"shallow:balance={balance}")
    up = uplinks(lab, "rail1")
    senders(lab, "h0g1", to="h2g0")
    within(
        BUDGET_S,
        lambda: all(data_at(lab, end).packets > 20 for end in up),
        "packets on every uplink",
    )


def test_the_choice_of_a_running_lab_changes(asic_lab: LabFactory, senders: Senders) -> None:
    lab = asic_lab("shallow")
    asic, up = asic_of(lab), uplinks(lab, "rail1")
    senders(lab, "h0g1", to="h2g0")

    def used() -> int:
        return sum(data_at(lab, end).packets > 20 for end in up)

    within(BUDGET_S, lambda: used() == 1, "the flow on its one uplink")
    asic.apply(parse("deep:balance=round-robin,data.limit_bytes=20bdp,data_share=0.2"))
    within(BUDGET_S, lambda: used() == len(up), "packets on every uplink")
    assert asic.choice.profile == "deep"
    assert Lab.attach(lab.name).record.switch == asic.choice.spec
    # the kernel's queues have grown with the limit
    limit = asic.fitted.profile(lab.topology.links[0]).data.limit_bytes
    shown = lab.exec("rail1", ["tc", "-s", "qdisc", "show", "dev", "up0"]).stdout
    assert limit is not None
    assert f"limit {2 * limit}b" in shown
    before = lab.record.switch
    with pytest.raises(UserError, match=r"data\.kmin_bytes is 1000000, above"):
        asic.apply(parse("shallow:data.kmin_bytes=1MB"))
    assert asic.choice.profile == "deep"
    assert before is not None


def test_reset_counts_from_zero(asic_lab: LabFactory, senders: Senders) -> None:
    lab = asic_lab("shallow")
    last = port_to(lab, "h1g0")
    begun = senders(lab, "h0g0", to="h1g0")
    within(BUDGET_S, lambda: data_at(lab, last).packets > 20, "packets")
    kill(*begun)
    within(BUDGET_S, lambda: not lab.counters()["h0g0:eth0"].data.backlog_packets, "all sent")
    asic_of(lab).reset()
    assert data_at(lab, last).packets <= 1  # what is on its way at this moment


# --- faults ------------------------------------------------------------------------------------


def test_a_black_hole_swallows_and_heals(asic_lab: LabFactory) -> None:
    lab = asic_lab("shallow", dilation=1000)
    asic, last = asic_of(lab), str(port_to(lab, "h1g0"))
    pair = ("h0g0", address(lab, "h1g0"))
    assert pings(lab, [pair])[pair] == 0
    asic.inject(last, Faults(black_hole=True))
    lost = lab.exec("h0g0", ["ping", "-c3", "-i0.2", "-W1", pair[1]])
    assert "100% packet loss" in lost.stdout
    assert data_at(lab, last).drops[DropReason.BLACK_HOLE] == 3
    asic.apply(parse("deep"))  # another switch does not mend a cable
    assert "100% packet loss" in lab.exec("h0g0", ["ping", "-c1", "-W1", pair[1]]).stdout
    asic.inject(last, NONE)
    assert pings(lab, [pair])[pair] == 0


def test_a_reduced_rate_is_the_models_and_the_kernels(asic_lab: LabFactory) -> None:
    lab = asic_lab("shallow", dilation=1000)
    asic, port = asic_of(lab), "rail0:up0"

    def kernels() -> str:
        return lab.exec("rail0", ["tc", "class", "show", "dev", "up0", "classid", "1:1"]).stdout

    assert "rate 400Mbit" in kernels()
    asic.inject(port, Faults(rate=0.25, loss=0.1))
    assert "rate 100Mbit" in kernels()
    asic.apply(parse("shallow:data_share=0.3"))
    assert "rate 100Mbit" in kernels()
    assert "rate 30Mbit" in lab.exec("rail0", ["tc", "class", "show", "dev", "up0"]).stdout
    asic.inject(port, NONE)
    assert "rate 400Mbit" in kernels()


def test_what_cannot_strike(asic_lab: LabFactory) -> None:
    asic = asic_of(asic_lab("shallow"))
    with pytest.raises(
        UserError, match=r"choose a share of at least 0\.0026, which is [0-9.]+ Gbps$"
    ):
        asic.inject("rail0:up1", Faults(rate=0.001))
    with pytest.raises(UserError, match="did you mean rail0:up1"):
        asic.inject("rail0:upl1", Faults(loss=0.1))
    with pytest.raises(UserError, match="the switch has rail0:down0"):
        asic.inject("h0g0:eth0", Faults(loss=0.1))


# --- from elsewhere ----------------------------------------------------------------------------

READ = """
import json, sys
from emulator.dataplane.switch.port_faults import Faults
from emulator.dataplane.lab import Lab
with Lab.attach({name!r}) as lab:
    lab.asic.inject("rail0:up0", Faults(rate=0.5))
    rows = {{port: row.as_dict() for port, row in lab.asic.counters().items()}}
    print(json.dumps({{"spec": lab.asic.choice.spec, "rows": rows}}))
"""


def test_another_process_reads_and_injects(asic_lab: LabFactory, senders: Senders) -> None:
    lab = asic_lab("deep:balance=packet")
    last = str(port_to(lab, "h1g0"))
    senders(lab, "h0g0", to="h1g0")
    within(BUDGET_S, lambda: data_at(lab, last).packets > 20, "packets")
    with python(READ.format(name=lab.name)) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert list(found["rows"]) == list(asic_of(lab).ports)
    assert found["rows"][last]["classes"]["data"]["packets"] > 20
    assert parse(found["spec"]).profile == "deep"
    shown = lab.exec("rail0", ["tc", "class", "show", "dev", "up0", "classid", "1:1"]).stdout
    assert "rate 10Mbit" in shown


def test_a_lab_without_has_none(lab: LabFactory) -> None:
    plain = lab()
    assert plain.asic is None
    assert plain.record.switch is None
    assert not asic_program.pins_of(plain.name).exists()


def test_seeds_follow_from_the_labs(asic_lab: LabFactory) -> None:
    def settings(lab: Lab) -> dict[str, bytes]:
        asic = asic_of(lab)
        return {name: asic.settings_of(port) for name, port in asic.ports.items()}

    first, again, other = (settings(asic_lab("shallow", seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert all(first[name] != other[name] for name in first)
    hashes = {bytes(octets[-16:-8]) for octets in first.values()}  # of a switch's flow hash
    assert len(hashes) == len(catalogue.load(SPEC).switches)


# --- coming and going --------------------------------------------------------------------------


def test_nothing_is_left_after_close(lab_name: str) -> None:
    with Lab.create(
        lab_name,
        catalogue.load(SMALL),
        FabricSettings(dilation=1000, seed=1, spec=SMALL, switch=parse("shallow")),
    ):
        assert asic_program.pins_of(lab_name).exists()
    assert nothing_left(lab_name)
    assert not asic_program.pins_of(lab_name).exists()


def test_nothing_is_left_of_one_that_was_killed(lab_name: str) -> None:
    process = python(f"""
        import os, signal
        from emulator.dataplane.switch.switch_choice import parse
        from emulator.dataplane.lab import Lab
        from emulator.dataplane.settings import FabricSettings
        from topologies import catalogue
        settings = FabricSettings(spec={SMALL!r}, seed=1, dilation=1000, switch=parse("shallow"))
        Lab.create({lab_name!r}, catalogue.load({SMALL!r}), settings)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    process.communicate(timeout=60)
    assert asic_program.pins_of(lab_name).exists()
    done = uetemu("clean", lab_name)
    assert done.returncode == 0, done.stderr
    assert "the switch program" in done.stdout
    assert nothing_left(lab_name)


def test_pins_alone_are_a_leftover(lab_name: str) -> None:
    asic_program.load(lab_name, Size(ports=4, switches=1, prefixes=1)).close()
    assert lab_name in cleanup.leftovers()
    assert uetemu("clean", lab_name).returncode == 0
    assert nothing_left(lab_name)


@pytest.mark.parametrize(
    ("spec", "switch", "dilation", "sentence"),
    [
        (SMALL, "shallow:data.kmin_bytes=0.9bdp", 1000, "above data.kmax_bytes"),
        (SMALL, "shallow:data.limit_bytes=2000", 1000, "less than one frame of the MTU"),
        (SMALL, "shallow:data.limit_bytes=3MiB", 1000, "raise the topology's buffer"),
        (SMALL, "deep:data.limit_bytes=3GiB", 1000, "the kernel queues at most"),
        (SMALL, "shallow:trim_size=9000", 1000, "less than the MTU"),
        (SMALL, "shallow", 0.5, "choose a dilation of 3.125 to"),
        (f"{SMALL},uplinks_per_spine=40", "shallow:balance=round-robin", 1000, "at most 64"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_built(
    lab_name: str, spec: str, switch: str, dilation: float, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        Lab.create(
            lab_name,
            catalogue.load(spec),
            FabricSettings(dilation=dilation, seed=1, spec=spec, switch=parse(switch)),
        )
    assert nothing_left(lab_name)


def test_what_the_machine_cannot_is_refused_before_a_namespace_exists(
    lab_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_build(*_: object, **__: Any) -> None:
        raise AssertionError("a namespace would have been made")

    monkeypatch.setattr("emulator.dataplane.kernel.fabric.build.build_fabric", no_build)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs the command bpftool"):
        Lab.create(
            lab_name,
            catalogue.load(SMALL),
            FabricSettings(dilation=1000, seed=1, spec=SMALL, switch=parse("shallow")),
        )
    assert nothing_left(lab_name)
    assert namespaces.of_lab(lab_name) == {}
    assert lab_record.load(lab_name) is None
