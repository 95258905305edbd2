"""Fabric profiles: what they make, and what is said of those that are wrong, line by line."""

import json
import re
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from emulator.cli import validate_verb
from emulator.cli.graph import graph_verb
from emulator.dataplane import lab_record
from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.fabric_choice import choose, shipped
from emulator.dataplane.switch import switch_choice as choice
from emulator.dataplane.switch import switch_profile
from emulator.dataplane.switch.balancing import METHODS
from emulator.errors import UserError
from topologies import catalogue
from topologies.parts.design_parameters import ParameterKind
from topologies.profile import fabric_file
from topologies.profile.fabric_keys import CLOS, CLUSTER, KEYS, PAUSING, SECTIONS, schema
from topologies.profile.yaml_lines import TextError
from topologies.stretch import stretch_of

SMALL = """\
segment:
  hosts: 2
  gpus_per_host: 2
  gpu_io:
    nic_rate: 200Gbps
  rail_switch:
    rails_per_switch: 1
pod:
  segments: 1
  spine:
    spines: 2
multi_pod:
global:
  mtu: 4096
"""


def problems(text: str) -> list[tuple[int, str]]:
    with pytest.raises(TextError) as refused:
        fabric_file.read(text, "f.yaml")
    return [(problem.line, problem.stated) for problem in refused.value.problems]


# --- what they make ------------------------------------------------------------------------------


def test_every_parameter_of_clos_has_its_place_once() -> None:
    names = [key.name for keys in SECTIONS.values() for key in keys]
    assert sorted(set(names)) == sorted(names)
    chosen = {"networks"}  # by the sections that there are
    assert {key.name for key in KEYS.values() if key.parameter} == (CLOS.keys() | CLUSTER) - chosen


def test_what_a_computed_parameter_is_may_be_left_to_the_fabric() -> None:
    stated = "segment:\n  rail_switch: {uplink_rate: auto, switch_ports: auto}\n"
    assert fabric_file.read(stated, "f").topology == fabric_file.read("segment:\n", "f").topology


def test_times_are_those_of_the_control_planes() -> None:
    interval, multiplier = KEYS["bfd_interval"].kind, KEYS["bfd_multiplier"].kind
    assert isinstance(interval, ParameterKind)
    assert isinstance(multiplier, ParameterKind)
    ms = control_plane.INTERVAL_MS
    assert (interval.minimum, interval.maximum) == (ms[0] * 10**6, ms[-1] * 10**6)
    assert range(multiplier.minimum, multiplier.maximum + 1) == control_plane.MULTIPLIER


def test_choices_are_those_of_the_switches() -> None:
    assert set(KEYS["load_balancing"].kind.words) == set(METHODS)  # type: ignore[union-attr]
    assert set(KEYS["switch"].kind.words) == {*switch_profile.PROFILES, "none"}  # type: ignore[union-attr]
    assert set(PAUSING) == switch_profile.PAUSING


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_profile_is_the_design_of_its_name(name: str) -> None:
    chosen = choose(name)
    design = catalogue.load(name.removesuffix(".yaml"))
    for part in ("servers", "nodes", "links"):
        assert getattr(chosen.topology, part) == getattr(design, part)
    assert chosen.topology.parameters == design.parameters
    control_plane.of(chosen.topology)


def test_a_profile_is_the_same_as_a_spec() -> None:
    read = fabric_file.read(SMALL, "f.yaml")
    spec = "clos:hosts=2,gpus_per_host=2,nic_rate=200G,spines=2,mtu=4096"
    assert read.topology == catalogue.load(spec)
    assert read.switch is None
    assert catalogue.load(catalogue.spec_of(read.topology)) == read.topology


@pytest.mark.parametrize(
    ("stated", "switch"),
    [
        ("load_balancing: packet", "shallow:balance=packet"),
        ("{load_balancing: flowlet, flowlet_gap: 2us}", "shallow:balance=flowlet,flowlet_gap=2us"),
        ("{switch: deep, trimming: on}", "deep:trim=on"),
        ("switch_latency: 650ns", "shallow:latency=650ns"),
        ("{switch: shallow, trimming: false}", "shallow:trim=off"),
        ("{switch: lossless, pfc: true}", "lossless:pfc=on"),
        ("{switch: lossless, pfc: off}", "lossless:pfc=off"),
        ("{switch: lossless, llr: on, cbfc: on}", "lossless:llr=on,cbfc=on"),
        ("llr: on", "shallow:llr=on"),
        ("switch: none", "none"),
        ("{switch: none, load_balancing: kernel, control_class: off}", "none"),
        (
            "{ecn: on, ecn_kmin: 20KiB, ecn_pmax: 0.1}",
            "shallow:data.kmin_bytes=20KiB,data.pmax=0.1,retransmission.kmin_bytes=20KiB,"
            "retransmission.pmax=0.1,untrimmed.kmin_bytes=20KiB,untrimmed.pmax=0.1",
        ),
        (
            "ecn: off",
            "shallow:data.kmax_bytes=none,retransmission.kmax_bytes=none,untrimmed.kmax_bytes=none",
        ),
    ],
)
def test_global_keys_become_a_switch(stated: str, switch: str) -> None:
    read = fabric_file.read(
        f"global: {stated}\n" if "{" in stated else f"global:\n  {stated}\n", "f"
    )
    assert read.switch == switch
    choice.requested(switch)  # which the switches understand


@pytest.mark.parametrize(
    ("stated", "plane"),
    [
        ("control_plane: static", "static"),
        ("control_plane: ebgp", "ebgp"),
        ("{control_plane: ibgp, bfd: off}", "ibgp:bfd=off"),
        (
            "{control_plane: ebgp, bfd: on, bfd_interval: 100ms, bfd_multiplier: 4}",
            "ebgp:bfd=on,interval=100ms,multiplier=4",
        ),
    ],
)
def test_global_keys_become_a_control_plane(stated: str, plane: str) -> None:
    read = fabric_file.read(
        f"global: {stated}\n" if "{" in stated else f"global:\n  {stated}\n", "f"
    )
    assert read.topology.profile.control_plane == plane


STRETCHED = """\
segment:
  rail_switch: {subnets: stretched}
multi_pod:
  pods: 2
  super_spine: {super_spines: 1}
global: {control_plane: evpn, bfd: off, data_plane: vxlan}
"""


def test_rails_are_stretched_over_pods() -> None:
    topology = fabric_file.read(STRETCHED, "f").topology
    assert topology.profile.control_plane == "evpn:bfd=off"
    assert topology.profile.data_plane == "vxlan"
    assert stretch_of(topology) is not None
    control_plane.of(topology)


# --- what is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "stated"),
    [
        ("", 1, "not a mapping"),
        ("- 1\n", 1, "not a mapping"),
        ("segment:\n  hosts: [2\n", 3, "not YAML"),
        ("segment:\n  hosts: 2\n  hosts: 3\n", 3, "duplicate key"),
        ("a: &a [*a]\n", 1, "has no 'a'"),
        ("segment:\n  hosts: 2\x00\n", 2, "the character #x0000 is not allowed"),
        ("segment:\n---\npod:\n", 2, "another document begins here"),
        ("segment:\n  hosts: !!bool x\n", 2, "not YAML: 'x' cannot be read as bool"),
        ("segment:\n  hosts: 2001-13-45\n", 2, "'2001-13-45' cannot be read as timestamp"),
        (f"segment:\n  hosts: {'9' * 5000}\n", 2, f"'{'9' * 40}...' cannot be read as int"),
        ("".join(f"{' ' * depth}a:\n" for depth in range(300)), 1, "nested too deeply"),
        ("[" * 5000, 1, "more than 64 brackets are open"),
        ("a: b" * 50_000, 1, "longer than 65536 characters"),
        ("segment:\n  host: 2\n", 2, "segment has no 'host'; did you mean hosts?"),
        ("segments:\n", 1, "has no 'segments'; did you mean segment?"),
        ("pod:\n  mtu: 9000\n", 2, "pod has no 'mtu'; it belongs in global"),
        ("gpu_io: {}\n", 1, "it belongs in segment"),
        ("global:\n  qwertz: 1\n", 2, "global has no 'qwertz'; known are control_plane, bfd,"),
        ("1: 2\n", 1, "has no 1; known are segment, "),
        ("? {a: 1}\n: 1\n", 1, "has no such key; known are segment, "),
        ("true: 1\n", 1, "has no true; known are segment, "),
        ("segment: 3\n", 1, "segment is 3, not a mapping of hosts, gpus_per_host"),
        ("segment:\n  hosts: {a: 1}\n", 2, "hosts is a mapping, not a single value"),
        ("segment:\n  hosts:\n", 2, "hosts is empty, not a single value"),
        ("segment:\n  hosts: [1, 2]\n", 2, "hosts is a list, not a single value"),
        ("segment:\n  hosts: 2001-12-14\n", 2, "hosts is a date, not a single value"),
        ("segment:\n  hosts: !km 3\n", 2, "hosts is '3' with a tag, not a single value"),
        ("segment: !!set {hosts}\n", 1, "segment is a set, not a mapping of"),
        ("segment:\n  hosts: !!binary aGk=\n", 2, "hosts is binary, not a single value"),
        ("segment:\n  hosts: auto\n", 2, "hosts: 'auto' is not a whole number"),
        ("segment:\n  hosts: /4\n", 2, "hosts: '/4' is not a whole number"),
        ("segment:\n  hosts: six\n", 2, "hosts: 'six' is not a whole number"),
        ("segment:\n  hosts: 0\n", 2, "hosts is 0; it must lie in 1"),
        ("segment:\n  hosts: -1\n", 2, "hosts is -1; it must lie in 1 .. 16384"),
        ("segment:\n  hosts: 99999999999\n", 2, "hosts is 99999999999; it must lie in"),
        ("segment:\n  hosts: true\n", 2, "hosts: 'on' is not a whole number"),
        ("segment:\n  gpu_io:\n    nic_rate: 400\n", 3, "nic_rate: '400' has no unit"),
        ("segment:\n  gpu_io:\n    nic_rate: 0Gbps\n", 3, "nic_rate is 0 bps"),
        ("global:\n  switch: cisco\n", 2, "switch is 'cisco'; it is one of shallow, deep"),
        ("global:\n  ecn_kmin: much\n", 2, "ecn_kmin is 'much', not a depth"),
        ("global:\n  bfd_interval: 1ms\n", 2, "bfd_interval is 1 ms; it must lie in 10 ms"),
        ("global:\n  bfd_multiplier: 256\n", 2, "bfd_multiplier is 256; it must lie in 2 .. 255"),
        ("global:\n  ecn_pmax: 2\n", 2, "ecn_pmax is '2', not a share"),
        # what the fabric itself refuses, at the line of the key that it names
        ("segment:\n  hosts: 4\n  gpus_per_host: 256\n", 3, "leaves room for 255 rails"),
        (
            "segment:\n  gpus_per_host: 8\n  rail_switch:\n    rails_per_switch: 3\n",
            4,
            "rails_per_switch is 3 and a server has 8 rails",
        ),
        (
            "segment:\n  hosts: 30\n  rail_switch: {subnet_prefix: /28}\n",
            2,
            "hosts is 30 and subnet_prefix=/28",
        ),
        (
            "segment:\n  hosts: 30\n  rail_switch:\n    switch_ports: 32\n",
            4,
            "switch_ports is 32 and a rail switch would need",
        ),
        # where the switch is a word of the message, not the key
        (
            "global: {switch: deep}\nsegment:\n  hosts: 5000\n  rail_switch: {subnet_prefix: 18}\n",
            3,
            "hosts is 5000 and spines 2: a rail switch would have 10000 ports",
        ),
        (
            "segment:\n  rail_switch: {subnets: divided, subnet_prefix: 20}\n",
            2,
            "the rail of a switch does not fit in one /24",
        ),
        ("global:\n  mtu: 9000\n  buffer: 4KiB\n", 3, "buffer is 4 KiB, less than one frame"),
        # contradictions
        (
            "global:\n  mtu: 9000\n  pfc: on\n",
            3,
            "pfc is on and switch shallow, which has no lossless",
        ),
        ("global:\n  switch: deep\n  pfc: on\n", 3, "pfc is on and switch deep"),
        ("global:\n  switch: deep\n  cbfc: on\n", 3, "cbfc is on and switch deep"),
        ("global:\n  switch: lossless\n  pfc: on\n  cbfc: on\n", 4, "cbfc and pfc are on"),
        ("global:\n  switch: none\n  llr: on\n", 3, "llr is on and switch none"),
        (
            "global:\n  trimming: on\n  control_class: off\n",
            2,
            "cut packets travel in the control class",
        ),
        ("global:\n  control_class: off\n", 2, "control_class is off and switch shallow"),
        ("global: {switch: none, control_class: on}\n", 1, "plain queues have none of it"),
        ("global:\n  switch: none\n  ecn: on\n", 3, "ecn is on and switch none"),
        ("global:\n  switch: none\n  load_balancing: packet\n", 3, "hashes as Linux does"),
        (
            "global:\n  switch: lossless\n  pfc: on\n  trimming: on\n",
            4,
            "trimming and pfc are on",
        ),
        ("global:\n  switch: lossless\n  trimming: on\n", 3, "trimming is on and switch lossless"),
        ("global:\n  bfd: on\n", 2, "bfd is given and control_plane static"),
        ("global:\n  bfd_interval: 100ms\n", 2, "bfd_interval is given and control_plane static"),
        (
            "global: {control_plane: ebgp, bfd: off, bfd_interval: 100ms}\n",
            1,
            "bfd_interval says nothing with bfd: off",
        ),
        ("global:\n  data_plane: vxlan\n", 2, "data_plane is vxlan and control_plane static"),
        ("global: {control_plane: ebgp, data_plane: vxlan}\n", 1, "only evpn tells"),
        ("global:\n  control_plane: evpn\n", 2, "evpn is for tunnels"),
        (
            "global:\n  control_plane: evpn\n  data_plane: vxlan\n",
            3,
            "no subnet is stretched over pods",
        ),
        (STRETCHED.split("global")[0], 2, "subnets is stretched and data_plane ethernet"),
        (STRETCHED.replace("super_spines: 1", "super_spines: 0"), 4, "nothing joins the pods"),
        ("global:\n  flowlet_gap: 1us\n", 2, "flowlet_gap says nothing without"),
        ("global: {switch: none, switch_latency: 1us}\n", 1, "switch_latency says nothing"),
        ("global:\n  ecn: off\n  ecn_kmax: 1bdp\n", 3, "ecn_kmax says nothing with ecn: off"),
        ("global: {ecn_kmin: 2MiB, ecn_kmax: 1MiB}\n", 1, "ecn_kmin is 2MiB, above"),
        ("global: {ecn_kmin: 2bdp, ecn_kmax: 1bdp}\n", 1, "ecn_kmin is 2bdp, above"),
        (
            "global:\n  control_plane: ebgp\n  load_balancing: round-robin\n",
            3,
            "load_balancing is round-robin and control_plane ebgp",
        ),
        ("pod:\n  segments: 2\n  spine: {spines: 0}\n", 2, "nothing joins the segments"),
        ("multi_pod:\n  pods: 2\n", 2, "nothing joins the pods"),
        (
            "segment:\n  rail_switch: {uplink_rate: 400G}\npod:\n  spine: {spines: 0}\n",
            2,
            "uplink_rate says nothing where spines is 0",
        ),
        ("multi_pod:\n  super_spine: {super_rate: 1T}\n", 2, "super_rate says nothing"),
        ("segment:\n  gpu_io: {pcie_rate: 256G}\n", 2, "pcie_rate is for shared NICs"),
        ("pod:\n  spine: {planes: own}\n", 2, "a second plane needs nic_ports: 2"),
        (
            "segment:\n  gpu_io:\n    interconnect: InfiniBand\n",
            3,
            "interconnect is InfiniBand, whose links and switches are no Ethernet",
        ),
        ("segment:\n  gpu_io: {interconnect: tcp}\n", 2, "'tcp'; it is one of uet, rocev2"),
        (
            "segment:\n  rail_switch:\n    classes:\n      EF: low\n      64: high\n",
            5,
            "classes has a code point '64'; write 0 to 63",
        ),
        (
            "segment:\n  rail_switch:\n    classes:\n      EF: low\n      26: middle\n",
            5,
            "classes puts code point 26 into 'middle'; queues are high, low",
        ),
        (
            "segment:\n  rail_switch:\n    classes:\n      EF: low\n      46: high\n",
            5,
            "classes has code point 46 twice",
        ),
        ("segment:\n  rail_switch:\n    classes: [46]\n", 3, "classes is a list, not a mapping"),
        (
            "segment:\n  rail_switch: {classes: {EF: low}}\nglobal: {switch: none}\n",
            2,
            "classes says nothing with switch: none",
        ),
        (
            "segment:\n  gpu_io: {interconnect: rocev2}\nglobal:\n  trimming: on\n",
            4,
            "trimming is on and interconnect rocev2, whose packets no switch cuts",
        ),
    ],
)
def test_one_problem_is_told_with_its_line(text: str, line: int, stated: str) -> None:
    ((where, what),) = problems(text)
    assert where == line
    assert stated in what


def test_all_problems_are_told_in_the_order_of_lines() -> None:
    text = SMALL.replace("hosts: 2", "hosts: no").replace("mtu: 4096", "mtu: 1")
    text = text.replace("spines: 2", "spnies: 2")
    assert [line for line, _ in problems(text)] == [2, 11, 14]
    with pytest.raises(TextError, match=r"^f.yaml:2: hosts: 'no' .* \(2 more: uetemu validate f"):
        fabric_file.read(text, "f.yaml")


def test_a_key_that_a_merge_brought_is_known_by_its_section() -> None:
    text = "segment:\n  <<: {hosts: 0}\n"
    assert [line for line, _ in problems(text)] == [1]


@given(st.text(max_size=80))
def test_any_text_is_a_fabric_or_a_refusal(text: str) -> None:
    with suppress(TextError):
        assert fabric_file.read(text, "f").topology.gpus


def test_the_interconnect_is_the_transport_and_decides_the_usual_switch() -> None:
    read = fabric_file.read("segment: {gpu_io: {interconnect: rocev2}}\n", "f")
    assert (read.transport, read.switch) == ("rocev2", None)
    text = "segment: {gpu_io: {interconnect: rocev2}}\nglobal: {load_balancing: packet}\n"
    read = fabric_file.read(text, "f")
    assert (read.switch, read.names_switch) == ("lossless:balance=packet", False)
    read = fabric_file.read(text.replace("{load", "{switch: deep, load"), "f")
    assert (read.switch, read.names_switch) == ("deep:balance=packet", True)
    assert fabric_file.read(SMALL, "f").transport is None


def test_classes_are_code_points_of_the_switch() -> None:
    text = "segment:\n  rail_switch:\n    classes: {EF: low, 26: high, af31: low}\n"
    with pytest.raises(TextError, match="code point 26 twice"):  # AF31 is 26
        fabric_file.read(text, "f")
    read = fabric_file.read(text.replace("af31", "cs1"), "f")
    assert read.switch == "shallow:dscp.46=low,dscp.26=high,dscp.8=low"
    assert choice.parse(read.switch).changes == {
        "dscp.46": "low",
        "dscp.26": "high",
        "dscp.8": "low",
    }


def test_a_class_of_cut_packets_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("segment:\n  rail_switch:\n    classes:\n      CS1: low\n      AF11: low\n")
    status, out = _validate(str(path))
    assert status == 1
    assert out.startswith(f"{path}:5: classes: code point 10 is what this switch writes into")


# --- the command ---------------------------------------------------------------------------------


def _validate(*arguments: str) -> tuple[int, str]:
    run = CliRunner().invoke(validate_verb.command, arguments)
    return run.exit_code, run.stdout


def test_validate_tells_file_line_and_message(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(SMALL)
    bad.write_text(SMALL.replace("hosts: 2", "hsots: 2") + "  pfc: on\n")
    status, out = _validate(str(good), "pod.yaml", "pod:hosts=2")
    assert status == 0
    assert f"{good}: 4 GPUs, 4 switches, 8 links" in out
    assert "pod.yaml: 64 GPUs" in out
    assert "pod:hosts=2: 32 GPUs" in out
    assert _validate("-q", str(good)) == (0, "")
    status, out = _validate("-q", str(good), str(bad), "pod:hosts=0", "nowhere.yaml")
    assert status == 1
    lines = out.splitlines()
    assert lines[0] == f"{bad}:2: segment has no 'hsots'; did you mean hosts?"
    assert lines[1].startswith("pod:hosts=0: hosts is 0; it must lie in")
    assert lines[2] == "nowhere.yaml cannot be read: No such file or directory"
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("text", "line", "stated"),
    [
        (
            "global:\n  switch: lossless\n  buffer: 16KiB\n",
            3,
            "PFC needs xoff .* raise the topology's buffer",
        ),
        (
            "global:\n  uplink_delay: 100ms\n  switch: lossless\n",
            2,
            "uplink_delay: PFC needs xoff .* shorten the cables",
        ),
        (
            "global:\n  switch: shallow\n  ecn: on\n  ecn_kmin: 3bdp\n",
            4,
            r"ecn_kmin is 829800, above ecn_kmax of 221280.*\(switch shallow; one BDP",
        ),
        (
            "global:\n  switch: deep\n  load_balancing: packet\n  ecn_kmax: 10KiB\n",
            4,
            r"ecn_kmin is 55320, above ecn_kmax of 10240.*\(switch deep; one BDP",
        ),
        (
            "global:\n  switch: shallow\n  ecn_kmin: 1.2.3bdp\n",
            3,
            "ecn_kmin of the switch: '1.2.3bdp' is not a size",
        ),
        (
            "global:\n  switch: shallow\n  ecn_kmin: 2bdp\n  ecn_kmax: 3bdp\n",
            3,
            "ecn_kmin of the switch is .* before anything is marked: lower it, or set ecn: off",
        ),
        (
            "pod:\n  spine:\n    spines: 200\nglobal:\n  load_balancing: least-loaded\n",
            5,
            "load_balancing: rail0 has 200 next hops .* chooses among at most 64",
        ),
        (
            "global:\n  switch: deep\nsegment:\n  gpu_io:\n    nic_rate: 1kbps\n"
            "  rail_switch:\n    uplink_rate: 400Gbps\n",
            5,
            "nic_rate: at dilation 1000 this fabric's links are outside of the rates",
        ),
        (
            "global:\n  switch: deep\n  mtu: 1500\nsegment:\n  rail_switch:\n"
            "    uplink_rate: 4Mbps\n    uplinks_per_spine: 1\n",
            6,
            "uplink_rate: at dilation 1000 this fabric's links are outside of the rates",
        ),
        (
            "global:\n  control_plane: ebgp\n  bfd_interval: 10.5ms\n",
            3,
            "bfd_interval: interval is 10.5ms: FRR takes whole milliseconds",
        ),
        (
            f"{STRETCHED[: STRETCHED.index('global')]}global:\n  control_plane: evpn\n"
            "  data_plane: vxlan\n  switch: lossless\n",
            9,
            "PFC can bring this fabric to a standstill",
        ),
    ],
)
def test_what_cannot_be_in_this_fabric_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, stated: str
) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    status, out = _validate(str(path))
    assert status == 1
    assert re.match(f"{re.escape(str(path))}:{line}: {stated}", out), out
    assert "_bytes" not in out  # a profile has no such key


def test_a_name_that_no_file_can_have_is_no_file() -> None:
    with pytest.raises(UserError, match="cannot be read: File name too long"):
        choose(f"{'a' * 300}.yaml")


def test_whoever_builds_it_is_told_what_the_routing_daemons_do_not_take(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("global:\n  control_plane: ebgp\n  bfd_interval: 10.5ms\n")
    with pytest.raises(TextError, match=r"f\.yaml:3: bfd_interval: interval is 10.5ms"):
        choose(str(path))


@pytest.mark.parametrize(
    ("file", "lab"),
    [
        ("multi_pod.yaml", "multi-pod"),
        ("My Fabric (v2).yaml", "my-fabric-v2"),
        ("größe.yml", "gr-e"),
        (f"{'a' * 23}_{'b' * 9}.yaml", "a" * 23),
        ("ü.yaml", "fabric"),
    ],
)
def test_any_file_gives_a_lab_its_name(tmp_path: Path, file: str, lab: str) -> None:
    (tmp_path / file).write_text(SMALL)
    chosen = choose(str(tmp_path / file))
    assert chosen.lab == lab
    lab_record.check_name(chosen.lab)


def test_one_is_not_several() -> None:
    status, out = _validate("clos:hosts=1,gpus_per_host=1,spines=0")
    assert (status, out.partition(": ")[2]) == (0, "1 GPU, 1 switch, 1 link\n")


def test_a_misspelt_shipped_profile_is_suggested() -> None:
    with pytest.raises(UserError, match=r"did you mean multi_pod\.yaml"):
        choose("multipod.yaml")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not text in UTF-8"):
        choose(str(path))


def test_graph_draws_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(SMALL)
    run = CliRunner().invoke(graph_verb.command, [str(path), "-f", "json"])
    assert run.exit_code == 0
    assert len(json.loads(run.stdout)["servers"]) == 2


# --- the schema ----------------------------------------------------------------------------------


def accepts(value: object) -> bool:
    """Whether the schema accepts a profile."""
    return Draft202012Validator(schema()).is_valid(value)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("name", shipped())
def test_the_schema_accepts_every_shipped_profile(name: str) -> None:
    from importlib import resources

    from ruamel.yaml import YAML

    text = (resources.files("topologies") / name).read_text()
    content = json.loads(json.dumps(YAML(typ="safe", pure=True).load(text)))
    assert accepts(content)
    assert not accepts(content | {"segmnet": {}})


@pytest.mark.parametrize(
    ("section", "key", "value", "right"),
    [
        ("rail_switch", "vlans", True, True),
        ("rail_switch", "uplink_rate", "auto", True),
        ("rail_switch", "uplink_rate", "800 Gbps", True),
        ("rail_switch", "uplink_rate", "400", False),
        ("rail_switch", "subnet_prefix", "/28", True),
        ("rail_switch", "rails_per_switch", "/4", False),
        ("rail_switch", "classes", {"46": "low", "af31": "high", "CS7": "high"}, True),
        ("rail_switch", "classes", {"64": "low"}, False),
        ("rail_switch", "classes", {"46": "middle"}, False),
        ("rail_switch", "classes", {"voice": "high"}, False),
        ("rail_switch", "classes", "high", False),
        ("gpu_io", "interconnect", "rocev2", True),
        ("gpu_io", "interconnect", "infiniband", False),
        ("gpu_io", "nic_delay", 0, True),
        ("gpu_io", "nic_delay", "1μs", True),
        ("gpu_io", "nic_delay", "1..2us", False),
        ("gpu_io", "nic_rate", "auto", False),
        ("gpu_io", "nic_rate", "1us", False),
        ("gpu_io", "nic_delay", "400G", False),
        ("", "mtu", 9000, True),
        ("", "mtu", 9, False),
        ("", "mtu", "9KiB", True),
        ("", "mtu", "wide", False),
        ("", "ecn_kmin", "0.1 bdp", True),
        ("", "ecn_kmin", 20000, True),
        ("", "ecn_kmin", "deep", False),
        ("", "ecn_pmax", 0.5, True),
        ("", "ecn_pmax", 2, False),
        ("", "bfd_multiplier", 1, False),
    ],
)
def test_the_schema_takes_a_value_as_the_reader_does(
    section: str, key: str, value: object, right: bool
) -> None:
    stated: dict[str, object] = (
        {"segment": {section: {key: value}}} if section else {"global": {key: value}}
    )
    assert accepts(stated) is right
    text = json.dumps(stated, ensure_ascii=False)
    with nullcontext() if right else pytest.raises(TextError):
        fabric_file.read(text, "f")


def test_the_schema_has_every_key_with_its_help() -> None:
    status, out = _validate("--schema")
    assert status == 0
    text = json.dumps(json.loads(out))
    for key in KEYS.values():
        assert f'"{key.name}": {{"description": {json.dumps(key.help)}' in text
