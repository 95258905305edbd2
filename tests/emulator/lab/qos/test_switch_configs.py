"""Emulated queueing as configuration: values, names, and what is said to be lost."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emulator.cli.graph.qos_verb import command
from emulator.dataplane.switch.switch_choice import parse
from emulator.dataplane.switch.switch_fitting import fit
from emulator.errors import UserError
from emulator.lab.qos import FORMATS
from emulator.lab.qos.emulated_qos import UNVERIFIED, WARNING, EmulatedQos, emulated_qos
from topologies import catalogue

SPEC = "rail_clos:hosts=2,gpus_per_host=1,spines=1"
MARKS = "data.kmin_bytes=20000,data.kmax_bytes=80000,data.pmax=0.2"


def qos_of(switch: str, *, nos: str = "sonic", data_class: str = "data") -> EmulatedQos:
    topology = catalogue.load(SPEC)
    node = topology.node("rail0")
    return emulated_qos(
        topology,
        fit(parse(switch), topology, 1.0, clock="virtual"),
        node=node,
        names=[FORMATS[nos].port(number) for number in range(len(node.ports))],
        data_class=data_class,
        title="a switch",
    )


def sonic(switch: str, **more: str) -> dict[str, Any]:
    tables: dict[str, Any] = json.loads(FORMATS["sonic"].write(qos_of(switch, **more)).text)
    return tables


@pytest.mark.parametrize("nos", FORMATS)
def test_every_configuration_says_that_nobody_has_tried_it(nos: str) -> None:
    config = FORMATS[nos].write(qos_of("shallow", nos=nos))
    assert config.notes[0] == WARNING
    assert UNVERIFIED in config.text.replace("-", "_")


def test_thresholds_of_the_emulator_are_those_of_the_switch() -> None:
    switch = f"shallow:{MARKS}"
    wred = sonic(switch)["WRED_PROFILE"][UNVERIFIED]
    assert (wred["green_min_threshold"], wred["green_max_threshold"]) == ("20000", "80000")
    assert (wred["green_drop_probability"], wred["ecn"]) == ("20", "ecn_all")
    nvue = FORMATS["nvue"].write(qos_of(switch, nos="nvue")).text
    for words in ("min-threshold 20000", "max-threshold 80000", "probability 20", "ecn enable"):
        assert f"nv set qos congestion-control {UNVERIFIED} traffic-class 3 {words}\n" in nvue
    eos = FORMATS["eos"].write(qos_of(switch, nos="eos")).text
    assert (
        "random-detect ecn minimum-threshold 20000 bytes maximum-threshold 80000 bytes "
        "max-mark-probability 20 weight 0" in eos
    )


@pytest.mark.parametrize(
    ("switch", "data", "trimmed", "control"),
    [
        ("shallow", 3, 6, 6),
        ("shallow:trimmed_queue=medium", 3, 5, 6),
        ("lossless:pfc_priority=4", 4, None, 6),
        ("lossless:pfc_priority=6", 6, None, 7),
    ],
)
def test_every_code_point_waits_where_it_does_in_the_emulator(
    switch: str, data: int, trimmed: int | None, control: int
) -> None:
    """CS6 and EF are control; 10 and 12 are what the switch writes into trimmed packets."""
    classes = sonic(switch)["DSCP_TO_TC_MAP"][UNVERIFIED]
    assert len(classes) == 64
    assert {classes["46"], classes["48"]} == {str(control)}
    if trimmed is not None:
        assert {classes["10"], classes["12"]} == {str(trimmed)}
    rest = {point: one for point, one in classes.items() if point not in ("10", "12", "46", "48")}
    assert set(rest.values()) == {str(data)}


def test_all_formats_map_the_same_code_points() -> None:
    expected = {int(k): int(v) for k, v in sonic("shallow")["DSCP_TO_TC_MAP"][UNVERIFIED].items()}
    nvue = FORMATS["nvue"].write(qos_of("shallow", nos="nvue")).text
    pairs = re.findall(r"dscp (\d+) switch-priority (\d+)", nvue)
    assert {int(point): int(number) for point, number in pairs} == expected
    eos = FORMATS["eos"].write(qos_of("shallow", nos="eos")).text
    maps = re.findall(r"^qos map dscp ([\d ]+) to traffic-class (\d+)$", eos, re.MULTILINE)
    assert {int(one): int(number) for points, number in maps for one in points.split()} == expected


def test_pfc_has_its_priority_its_watchdog_and_what_is_left_to_the_chip() -> None:
    switch = "lossless:pfc_priority=3,pfc_watchdog=200ms,pfc_watchdog_action=forward"
    tables = sonic(switch)
    maps = tables["PORT_QOS_MAP"]["Ethernet0"]
    assert (maps["pfc_enable"], maps["pfcwd_sw_enable"]) == ("3", "3")
    assert tables["TC_TO_PRIORITY_GROUP_MAP"][UNVERIFIED]["3"] == "3"
    assert tables["PFC_WD"]["Ethernet0"]["detection_time"] == "200"
    assert tables["PFC_WD"]["Ethernet0"]["action"] == "forward"
    notes = " ".join(FORMATS["sonic"].write(qos_of(switch)).notes)
    assert "headroom of" in notes
    nvue = FORMATS["nvue"].write(qos_of(switch, nos="nvue")).text
    assert f"nv set qos pfc {UNVERIFIED} switch-priority 3" in nvue
    eos = FORMATS["eos"].write(qos_of(switch, nos="eos")).text
    assert "priority-flow-control priority 3 no-drop" in eos
    assert "watchdog default timeout 0.200" in eos
    short = "lossless:pfc_watchdog=20us"
    assert "PFC_WD" not in sonic(short)
    assert "20000 ns is left out" in " ".join(FORMATS["sonic"].write(qos_of(short)).notes)


def test_trimming_is_configured_where_the_operating_system_has_it() -> None:
    trimming = sonic("shallow:trim_size=94")["SWITCH_TRIMMING"]["GLOBAL"]
    assert trimming == {"size": "128", "dscp_value": "10", "queue_index": "6"}
    nvue = FORMATS["nvue"].write(qos_of("shallow", nos="nvue"))
    assert "packet-trim size 256" in nvue.text
    assert "code point 12" in " ".join(nvue.notes)
    assert "is left out" in " ".join(FORMATS["eos"].write(qos_of("shallow", nos="eos")).notes)
    assert "SWITCH_TRIMMING" not in sonic("deep")


def test_ports_that_do_not_mark_have_a_profile_without_marks() -> None:
    tables = sonic("shallow:last_hop_ecn=off")
    marked = {key for key, value in tables["QUEUE"].items() if "wred_profile" in value}
    node = catalogue.load(SPEC).node("rail0")
    up = [f"Ethernet{8 * n}|3" for n, port in enumerate(node.ports) if port.name.startswith("up")]
    assert marked == set(up)
    assert set(tables["WRED_PROFILE"]) == {tables["QUEUE"][up[0]]["wred_profile"]}


def test_thresholds_that_share_a_queue_are_named() -> None:
    """RoCEv2's data are of the class untrimmed; others wait in the same queue."""
    qos = qos_of(f"shallow:{MARKS}", data_class="untrimmed")
    assert any("data and retransmission" in note for note in qos.lost())
    wred = json.loads(FORMATS["sonic"].write(qos).text)["WRED_PROFILE"][UNVERIFIED]
    assert wred["green_min_threshold"] == str(qos.profile.untrimmed.kmin_bytes) != "20000"


def test_the_verb_writes_files_and_notes(tmp_path: Path) -> None:
    out = tmp_path / "config_db.json"
    done = CliRunner().invoke(command, [SPEC, "--nos", "sonic", "-o", str(out)])
    assert done.exception is None
    assert "PORT_QOS_MAP" in json.loads(out.read_text())
    assert (tmp_path / "config_db.json.notes").read_text().startswith(WARNING)
    rocev2 = CliRunner().invoke(command, [SPEC, "--nos", "eos", "--transport", "rocev2"])
    assert "priority-flow-control priority 3 no-drop" in rocev2.stdout
    assert rocev2.stdout.startswith(f"! {WARNING}")
    named = CliRunner().invoke(
        command, [SPEC, "--nos", "nvue", "--ports", "swp9,swp11,swp13,swp15"]
    )
    assert "nv set interface swp9,swp11,swp13,swp15 qos" in named.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--switch", "none"], "such as shallow"),
        (["--node", "rail9"], "no switch 'rail9'"),
        (["--ports", "swp1"], "give one for each"),
        (["--ports", "swp1,swp1,swp2"], "twice"),
        (["--switch", "lossless:pfc_priority=7"], "pfc_priority=0 to 6"),
        (["--transport", "tcp"], "tcp"),
    ],
)
def test_bad_input_gets_one_sentence(options: list[str], words: str) -> None:
    refusal = CliRunner().invoke(command, [SPEC, "--nos", "nvue", *options]).exception
    assert isinstance(refusal, UserError)
    assert words in str(refusal)
