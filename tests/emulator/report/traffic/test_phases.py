"""``uetemu traffic --phase``: the packets of a phase are those that tshark shows in its times."""

import json
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from emulator.cli.reports.traffic_verb import command
from emulator.errors import UserError
from emulator.report.run_folder import RunRecord
from emulator.report.traffic.frames import CapturedTraffic, FiveTuple, LinkFrames
from emulator.report.traffic.measures import entropy_bits
from emulator.report.traffic.messages import Messages
from emulator.report.traffic.phases import packets_of
from tests.harness.runs.modelled_run import ModelledRuns
from tests.harness.runs.written_folder import result, row, write_folder
from topologies.addressing import gpu_address
from topologies.catalogue import load
from topologies.model import CableEnd

SPEC = "rail_clos:hosts=4,gpus_per_host=1,spines=1"
EPOCH_S = 946_684_800


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two stages of two replicas: gradients of several phases pass at the same time."""
    params = {"scale": "65536", "layers": "2", "batch": "2", "tp": "1", "dp": "2", "pp": "2"}
    runs = ModelledRuns(tmp_path_factory.mktemp("phases"))
    yield runs("llm", "--topology", SPEC, "--capture", "all", params=params).folder
    runs.end()


def counted(source: Path | str, *options: str) -> dict[str, dict[str, dict[str, Any]]]:
    """The tables by name, of each phase."""
    done = CliRunner().invoke(command, [str(source), "--format", "json", *options])
    assert done.exception is None, done.exception
    return {
        one["source"].partition(", phase ")[2]: {table["figure"]: table for table in one["tables"]}
        for one in json.loads(done.stdout)
    }


def joined(times: Sequence[tuple[float, float]]) -> list[list[float]]:
    found: list[list[float]] = []
    for begin, end in sorted(times):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return found


def unnumbered(event: dict[str, Any]) -> str:
    return re.sub(r" \d+", "", event["name"])


def epoch(at_us: float) -> str:
    """The time in the file, with every ns."""
    return f"{EPOCH_S}.{round(at_us * 1000):09d}"


class Shown:
    """What tshark shows of a phase: filtered by the ends and times of its messages."""

    def __init__(self, folder: Path, phase: str) -> None:
        record = RunRecord.read(folder)
        assert record.topology is not None
        assert record.timeline is not None
        begun = record.began_us(1)[-1]
        address = {gpu.name: str(gpu_address(gpu).ip) for gpu in record.topology.gpus}
        names = list(address)
        sent: dict[str, tuple[str, str, float, float]] = {}
        for event in record.timeline["traceEvents"]:
            if event.get("flow_out") and event["cat"] == "NIC" and phase in unnumbered(event):
                ends = names[event["pid"] - 1], event["name"].rpartition(" to ")[2]
                sent[event["bind_id"]] = (*ends, event["ts"], event["ts"] + event["dur"])
            elif event.get("flow_in") and event["bind_id"] in sent:
                source, destination, begin, end = sent[event["bind_id"]]
                sent[event["bind_id"]] = (source, destination, begin, max(end, event["ts"]))
        spans: dict[frozenset[str], list[tuple[float, float]]] = defaultdict(list)
        for source, destination, begin, end in sent.values():
            spans[frozenset((address[source], address[destination]))].append((begin, end))
        self.time_us = sum(
            end - begin for begin, end in joined([one for times in spans.values() for one in times])
        )
        chosen = [
            " && ".join(f"ip.addr == {one}" for one in sorted(ends))
            + f" && frame.time_epoch >= {epoch(begun + begin - 0.001)}"
            + f" && frame.time_epoch <= {epoch(begun + end + 0.001)}"
            for ends, times in spans.items()
            for begin, end in times
        ]
        argv = ["tshark", "-n", "-r", str(folder / "capture.pcapng"), "-T", "fields"]
        argv += ["-Y", "frame.packet_flags_direction == 2 && (" + " || ".join(chosen) + ")"]
        for name in ("frame.interface_name", "frame.len", "ip.src", "ip.dst", "udp.srcport"):
            argv += ["-e", name]
        printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        self.frames = [line.split("\t") for line in printed.splitlines()]

    def at(self, port: str) -> list[tuple[int, tuple[str, ...]]]:
        return [(int(n), tuple(five)) for name, n, *five in self.frames if port in name]


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark shows the same")
@pytest.mark.parametrize("phase", ["layer gradients DP AllReduce", "outputs to stage"])
def test_packets_of_a_phase_are_those_that_tshark_shows(folder: Path, phase: str) -> None:
    tables, shown = counted(folder, "--phase", phase)[phase], Shown(folder, phase)
    links = {one["link"]: one for one in tables["links"]["data"]}
    assert set(links) == {frame[0] for frame in shown.frames}
    for port, link in links.items():
        frames = shown.at(port)
        assert link["packets"] == len(frames)
        assert link["bytes"] == sum(octets for octets, _ in frames)
        assert link["flows"] == len({(a, b) for _, (a, b, _) in frames})
        bits = entropy_bits(list(Counter(five for _, five in frames).values()))
        assert link["entropy_bits"] == pytest.approx(bits, abs=1e-3)
        used = sum(octets + 24 for octets, _ in frames) / 50_000 / shown.time_us
        assert link["utilisation_percent"] == pytest.approx(100 * used, abs=1e-2)
    from_gpus = shown.at("h")
    for record in tables["packet-sizes"]["data"]:
        if record["tier"] == "gpu to rail":
            top = record["up_to_bytes"]
            assert record["count"] == sum(top // 2 < octets <= top for octets, _ in from_gpus)
    sizes: Counter[tuple[str, str]] = Counter()
    for octets, (source, destination, _) in from_gpus:
        sizes[source, destination] += octets
    (flows,) = tables["packet-flows"]["data"]
    assert flows["flows"] == len(sizes)
    assert (flows["least_bytes"], flows["most_bytes"]) == (
        min(sizes.values()),
        max(sizes.values()),
    )
    (line,) = (one for one in counted(folder)[""]["packet-phases"]["data"] if one["phase"] == phase)
    assert (line["packets"], line["flows"]) == (len(from_gpus), len(sizes))
    assert line["bytes"] == sum(octets for octets, _ in from_gpus)
    assert line["time_us"] == pytest.approx(shown.time_us, abs=0.01)


def test_phases_stand_side_by_side_and_have_all_messages(folder: Path) -> None:
    whole, phases = counted(folder)[""], counted(folder, "--phase", "*")
    assert list(phases) == list(dict.fromkeys(one["phase"] for one in whole["messages"]["data"]))
    found = [one for tables in phases.values() for one in tables["messages"]["data"]]
    assert sorted(found, key=str) == sorted(whole["messages"]["data"], key=str)
    for name, tables in phases.items():
        (used,) = (one for one in tables["utilisation"]["data"] if one["tier"] == "gpu to rail")
        assert used["links"] == 4
        assert used["most_percent"] == max(
            one["utilisation_percent"]
            for one in tables["links"]["data"]
            if name and "h" in one["link"]
        )


def test_a_scenario_has_its_phases_without_a_fabric() -> None:
    phases = counted("llm:tp=2,dp=2,pp=1,batch=2", "--phase", "TP *")
    assert set(phases) == {"TP ReduceScatter", "TP AllGather", "TP AllReduce"}
    for name, tables in phases.items():
        assert {one["phase"] for one in tables["messages"]["data"]} == {name}
        assert "needs a fabric" in tables["packets"]["reason"]


def test_packets_of_a_tunnel_count_by_time_alone() -> None:
    topology = load(SPEC)
    first, second, *_ = (str(gpu_address(gpu).ip) for gpu in topology.gpus)
    numbers, ones = np.arange(4), np.ones(1, np.int64)
    link = LinkFrames(
        sender=CableEnd("rail0", "up0"), tier="rail to spine", injects=False, delivers=False,
        rate_bps=10**9, begin_us=np.array([1.0, 1.0, 1.0, 9.0]), octets=np.full(4, 100),
        tuples=np.array([0, 1, 2, 1]), services=numbers, ttl=numbers,
        packets=numbers,
    )  # fmt: skip
    traffic = CapturedTraffic(
        links=[link],
        tuples=[
            FiveTuple(first, second, 17, 1, 4793),
            FiveTuple("192.0.2.1", "192.0.2.2", 17, 1, 4789),
            FiveTuple(first, "10.0.1.4", 17, 1, 4793),
        ],
        services=("UET",),
        times=(np.array([0.0]), np.array([10.0])),
    )
    messages = Messages(
        gpus=[gpu.name for gpu in topology.gpus], phases=("p",), phase=0 * ones, source=0 * ones,
        destination=ones, octets=ones, over_fabric=ones > 0,
        begin_us=np.array([0.5]), end_us=np.array([2.0]), over_us=np.array([3.0]),
    )  # fmt: skip
    found = packets_of(messages, traffic, topology)
    assert found.links[0].services.tolist() == found.links[0].packets.tolist() == [0, 1]
    assert found.length_us == 2.5


def test_a_phase_without_a_message_is_none(tmp_path: Path) -> None:
    ranks = "rank 0 {\nl1: calc 5000\n}\nrank 1 {\nl1: calc 5\n}\n"
    (tmp_path / "idle.goal").write_text(f"num_ranks 2\n{ranks}")
    refusal = CliRunner().invoke(command, [f"{tmp_path}/idle.goal", "--phase", "*"]).exception
    assert "has no phase '*'; it has no message" in str(refusal)


def test_what_has_no_such_phase_has_a_sentence(folder: Path, tmp_path: Path) -> None:
    bare = write_folder(tmp_path / "run", result(row(), row()))
    for source, options, sentence in (
        (folder, ["--phase", "absent"], "has no phase 'absent'; it has outputs to stage"),
        (folder, ["--phase", "*", "--gpu-hour", "2"], "leave --phase or the prices out"),
        (bare, ["--phase", "*", "--row", "1"], "not of row 1; leave --phase out"),
    ):
        refusal = CliRunner().invoke(command, [str(source), *options]).exception
        assert isinstance(refusal, UserError)
        assert sentence in str(refusal)
