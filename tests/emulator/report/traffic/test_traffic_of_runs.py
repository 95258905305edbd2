"""``uetemu traffic`` on run folders: what it counts is what tshark, and plain Python, count."""

import json
import math
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet

from emulator.cli.reports.traffic_verb import command
from emulator.errors import UserError
from emulator.report.run.figures import traffic as figures_of_traffic
from emulator.report.run.figures.traffic import traffic_figures
from emulator.report.run_folder import RunRecord
from tests.harness.runs.modelled_run import ModelledRuns
from tests.harness.runs.written_folder import (
    BEGAN_US,
    directed_capture,
    result,
    row,
    write_folder,
)

SPEC = "rail_clos:hosts=3,gpus_per_host=2,spines=2,uplinks_per_spine=1"
EPOCH_S = 946_684_800
FIELDS = (
    *("frame.time_epoch", "frame.interface_name", "frame.packet_flags_direction", "frame.len"),
    *("ip.src", "ip.dst", "udp.srcport", "udp.dstport"),
)


def counted(folder: Path | str, *options: str) -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(command, [str(folder), "--format", "json", *options])
    assert done.exception is None, done.exception
    (source,) = json.loads(done.stdout)
    return {one["figure"]: one for one in source["tables"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A permutation whose flows cross the spines, with every port captured."""
    place = tmp_path_factory.mktemp("traffic")
    runs = ModelledRuns(place)
    options = ("--topology", SPEC, "--capture", "all")
    params = {"sizes": "64KiB", "iterations": "2"}
    yield runs("permutation", *options, params=params).folder
    runs.end()


class Sent:
    """The frames that left each port in the last iteration, by tshark."""

    def __init__(self, folder: Path) -> None:
        facts = json.loads((folder / "result.json").read_text())["rows"][-1]
        events = (folder / "events.jsonl").read_text().splitlines()
        (times,) = (e["times_us"] for e in map(json.loads, events) if e["event"] == "messages")
        self.begin_us, self.span_us = facts["began_us"][-1], times[-1]
        first, last = (
            f"{EPOCH_S + at / 1e6:.9f}" for at in (self.begin_us, self.begin_us + self.span_us)
        )
        argv = ["tshark", "-n", "-r", str(folder / "capture.pcapng"), "-T", "fields"]
        argv += ["-Y", f"frame.time_epoch >= {first} && frame.time_epoch <= {last}"]
        for name in FIELDS:
            argv += ["-e", name]
        printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        self.frames: dict[str, list[tuple[float, int, tuple[str, ...]]]] = defaultdict(list)
        for line in printed.splitlines():
            time, port, way, octets, *five = line.split("\t")
            if int(way, 0) == 2:
                at_us = (int(time.split(".")[0]) - EPOCH_S) * 1e6 + float(
                    f"0.{time.split('.')[1]}"
                ) * 1e6
                self.frames[port].append((at_us - self.begin_us, int(octets), tuple(five)))

    def tier(self, name: str) -> dict[str, list[tuple[float, int, tuple[str, ...]]]]:
        """The ports of a tier: this fabric's names say what they lead to."""
        ports = {"gpu to rail": "eth", "rail to gpu": "down", "rail to spine": "up"}
        node = "spine" if name == "spine to rail" else name[:4].replace("gpu ", "h")
        port = ports.get(name, "down")
        return {
            one: found
            for one, found in self.frames.items()
            if one.startswith(node) and one.partition(":")[2].startswith(port)
        }


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark counts the same")
def test_packets_are_those_that_tshark_counts(folder: Path) -> None:
    tables, sent = counted(folder), Sent(folder)
    tiers = [record["tier"] for record in tables["packets"]["data"]]
    assert sorted(tiers) == ["gpu to rail", "rail to gpu", "rail to spine", "spine to rail"]
    rate_us = 400e9 / 8e6  # octets in a us
    for record in tables["packets"]["data"]:
        lengths = [n for frames in sent.tier(record["tier"]).values() for _, n, _ in frames]
        assert record["links"] == record["of_links"] == len(sent.tier(record["tier"]))
        assert record["packets"] == len(lengths)
        assert record["bytes"] == sum(lengths)
        assert (record["least_bytes"], record["most_bytes"]) == (min(lengths), max(lengths))
        assert record["protocols"] == f"UET:{len(lengths)}"
    for record in tables["packet-sizes"]["data"]:
        lengths = [n for frames in sent.tier(record["tier"]).values() for _, n, _ in frames]
        top = record["up_to_bytes"]
        assert record["count"] == sum(top // 2 < n <= top for n in lengths)
    for record in tables["links"]["data"]:
        frames = sent.frames[record["link"]]
        five = Counter(one for _, _, one in frames).values()
        bits = -sum(n / len(frames) * math.log2(n / len(frames)) for n in five)
        assert record["tuples"] == len(five)
        assert record["flows"] == len({(a, b) for _, _, (a, b, _, _) in frames})
        assert record["entropy_bits"] == pytest.approx(bits, abs=1e-3)
        busy = [(at, (n + 24) / rate_us) for at, n, _ in sorted(frames)]
        bursts, end = 0, -math.inf
        covered = 0.0
        for at, length in busy:
            if at - end >= 1:
                bursts += 1
                begun = at
            covered += max(0.0, at + length - (begun if at - end >= 1 else end))
            end = at + length
        assert record["bursts"] == bursts
        assert record["duty_percent"] == pytest.approx(100 * covered / sent.span_us, abs=0.02)
        used = 100 * sum(length for _, length in busy) / sent.span_us
        assert record["utilisation_percent"] == pytest.approx(used, abs=1e-2)
    by_pair: Counter[tuple[str, str]] = Counter()
    for frames in sent.tier("gpu to rail").values():
        for _, n, (source, destination, _, _) in frames:
            by_pair[source, destination] += n
    (flows,) = tables["packet-flows"]["data"]
    assert flows["flows"] == len(by_pair) == flows["mice"]
    assert (flows["least_bytes"], flows["most_bytes"]) == (
        min(by_pair.values()),
        max(by_pair.values()),
    )


def test_messages_are_those_of_the_run(folder: Path) -> None:
    tables = counted(folder)
    flows = json.loads((folder / "events.jsonl").read_text().splitlines()[-1])
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    (told,) = (event for event in events if event["event"] == "messages")
    assert flows["event"] == "end"
    pairs = {(one["from"], one["to"]): one for one in tables["ranks"]["data"]}
    assert len(pairs) == len(told["flows"])
    for flow in told["flows"]:  # of two iterations
        one = pairs[flow["from"], flow["to"]]
        assert (one["bytes"] * 2, one["messages"] * 2) == (flow["bytes"], flow["messages"])
    (total,) = tables["message-flows"]["data"]
    assert total["flows"] == len(pairs) == total["most_at_once"]
    sent = sum(one["bytes"] for one in pairs.values())
    for name, column in (
        ("messages", "bytes"),
        ("message-sizes", "sum_bytes"),
        ("servers", "bytes"),
    ):
        assert sum(one[column] for one in tables[name]["data"]) == sent
    for gpu in tables["gpus"]["data"]:
        shares = ("computes_percent", "waits_for_fabric_percent", "idle_otherwise_percent")
        assert sum(gpu[share] for share in shares) == pytest.approx(100, abs=0.01)


def test_ports_that_were_not_captured_are_counted_too(folder: Path) -> None:
    tables = counted(folder)
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    (told,) = (event for event in events if event["event"] == "ports")
    up = {port: counts for port, counts in told["ports"].items() if ":up" in port}
    shares = [
        100
        * counts["tx_bytes"]
        / sum(other["tx_bytes"] for name, other in up.items() if name[:5] == port[:5])
        for port, counts in up.items()
    ]
    (parallel,) = tables["parallel-links"]["data"]
    assert parallel["least_percent"] == round(min(shares), 2)
    assert parallel["most_percent"] == round(max(shares), 2)
    assert parallel["worst_mmr"] == pytest.approx(max(shares) / 50, abs=1e-3)
    used = {record["tier"]: record for record in tables["utilisation"]["data"]}
    sent = sum(counts["tx_bytes"] + 24 * counts["tx_packets"] for counts in up.values())
    mean = 100 * sent / len(up) / (50_000 * told["span_us"])
    assert used["rail to spine"]["mean_percent"] == pytest.approx(mean, abs=1e-3)


def test_the_table_has_two_runs_side_by_side(folder: Path) -> None:
    done = CliRunner().invoke(command, [str(folder), str(folder), "--elephant", "64kB"])
    assert done.exception is None, done.exception
    lines = done.stdout.splitlines()
    assert [line[:3] for line in lines[:2]] == ["# 1", "# 2"]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    flows = [cells for cells in rows if "UET" in cells]
    assert [cells[1:3] for cells in flows] == [["1", "UET"], ["2", "UET"]]
    assert [cells[8] for cells in flows] == ["6", "6"]  # all are elephants now


def test_each_table_is_a_csv_file_too(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [str(folder), "permutation", "--csv", str(tmp_path / "csv")])
    assert done.exception is None, done.exception
    packets = (tmp_path / "csv" / "1-packets.csv").read_text().splitlines()
    assert packets[0] == "# Packets; observed at: captured port"
    assert packets[1].startswith("tier,links,of_links,packets,bytes")
    assert len(packets) == 6
    assert "not measured: it needs a fabric" in (tmp_path / "csv" / "2-packets.csv").read_text()


def test_the_report_has_a_chapter_of_the_same_numbers(folder: Path) -> None:
    tables = counted(folder)
    figures, drawn = traffic_figures(RunRecord.read(folder))
    for one in figures:
        assert one.reason is None
        assert one.spec is not None
    by_name = {one.name: one for one in figures}
    sizes = {
        (one["tier"], one["up_to_bytes"]): one["count"] for one in tables["packet-sizes"]["data"]
    }
    assert sizes == {
        (one["tier"], one["up_to_bytes"]): one["count"] for one in by_name["packet-sizes"].records
    }
    assert len(by_name["gpus"].records) == 3 * len(tables["gpus"]["data"])
    (packets,) = (one for one in drawn if one.name == "packets-table")
    assert [row[0] for row in packets.rows] == [one["tier"] for one in tables["packets"]["data"]]


def test_a_page_does_not_read_a_large_capture(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_of_traffic, "LARGEST_CAPTURE", 1000)
    figures, _ = traffic_figures(RunRecord.read(folder))
    reasons = {one.name: one.reason for one in figures}
    assert "uetemu traffic" in str(reasons["packet-sizes"])
    assert reasons["message-sizes"] is None


def test_a_cut_capture_counts_what_it_has(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "cut")
    whole = (folder / "capture.pcapng").read_bytes()
    (tmp_path / "cut/capture.pcapng").write_bytes(whole[: len(whole) - len(whole) // 5])
    packets = counted(tmp_path / "cut")["packets"]
    assert (
        packets["note"]
        == "capture.pcapng ends in the middle of a packet, as of a run that was killed"
    )
    assert 0 < packets["data"][0]["packets"] < counted(folder)["packets"]["data"][0]["packets"]
    (tmp_path / "cut/capture.pcapng").write_bytes(b"no capture")
    tables = counted(tmp_path / "cut")
    for name in ("packets", "packet-phases"):
        assert "is damaged after frame 0" in tables[name]["reason"]
    (tmp_path / "cut/capture.pcapng").rename(tmp_path / "cut/capture.pcapng.gz")
    assert (
        "capture.pcapng.gz is compressed: gunzip it"
        in counted(tmp_path / "cut")["packets"]["reason"]
    )


def test_each_missing_file_is_named_in_its_place(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "bare")
    for name in ("capture.pcapng", "timeline.json", "telemetry.csv", "events.jsonl"):
        (tmp_path / "bare" / name).unlink()
    tables = counted(tmp_path / "bare")
    assert "has no capture.pcapng (--capture none" in tables["bursts"]["reason"]
    assert tables["messages"]["reason"] == "the run folder has no timeline.json"
    assert "telemetry.csv" in tables["utilisation-over-time"]["reason"]
    assert "events.jsonl" in tables["utilisation"]["reason"]


def test_a_row_without_timeline_has_its_reason(tmp_path: Path) -> None:
    place = write_folder(tmp_path / "run", result(row(), row()))
    tables = counted(place, "--row", "1")
    assert tables["messages"]["reason"] == "timeline.json has an iteration of row 2, not of row 1"
    (pair,) = tables["ranks"]["data"]  # of two iterations
    assert (pair["from"], pair["to"], pair["relation"]) == ("h1g0", "h0g0", "rail")
    assert (pair["network"], pair["messages"], pair["bytes"]) == ("backend", 2, 65536)
    (flows,) = tables["message-flows"]["data"]
    assert (flows["flows"], flows["mice"], flows["most_bytes"]) == (1, 1, 65536)
    assert "By flows of events.jsonl" in tables["servers"]["note"]
    assert tables["utilisation"]["data"]
    with pytest.raises(UserError, match="--row 3"):
        CliRunner().invoke(
            command, [str(place), "--row", "3"], standalone_mode=False, catch_exceptions=False
        )


def test_a_timeline_of_calls_alone_counts_neither_messages_nor_waiting(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run" / "timeline.json"
    timeline = json.loads(path.read_text())
    timeline["traceEvents"] = [event for event in timeline["traceEvents"] if "bind_id" not in event]
    path.write_text(json.dumps(timeline))
    found = counted(tmp_path / "run")
    for name in ("messages", "gpus"):
        assert "has no messages" in found[name]["reason"]


def test_rows_of_a_run_stand_side_by_side(tmp_path: Path) -> None:
    place = write_folder(tmp_path / "run", result(row(), row(transport="rocev2")))
    done = CliRunner().invoke(command, [str(place), "--row", "1", "--row", "2"])
    assert done.exception is None, done.exception
    lines = done.stdout.splitlines()
    assert [line.partition(" uet")[0] for line in lines[:1]] == ["# 1: run, row 1:"]
    assert lines[1].startswith("# 2: run, row 2: rocev2")


@pytest.mark.parametrize("kept", [14, 36])
def test_packets_that_are_cut_before_their_ports_have_no_entropy(tmp_path: Path, kept: int) -> None:
    octets = bytes(Ether() / IP() / UDP(sport=1, dport=4793))[:kept]
    frames = [(BEGAN_US + number, "h1g0:eth0 out", octets, 1000) for number in range(3)]
    place = write_folder(tmp_path / "run", result(row()))
    (place / "capture.pcapng").write_bytes(directed_capture(["h1g0:eth0"], frames))
    tables = counted(place)
    assert tables["packets"]["data"][0]["bytes"] == 3000
    assert tables["bursts"]["data"]
    for name in ("entropy", "packet-flows", "links"):
        assert "take a larger --snaplen" in tables[name]["reason"]


def test_other_frames_have_their_names(tmp_path: Path) -> None:
    ends = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    packets = {
        "UET": ends / IP() / UDP(sport=1, dport=4793),
        "RoCEv2": ends / Dot1Q(vlan=5) / IP() / UDP(sport=1, dport=4791),
        "TCP": ends / IPv6() / TCP(sport=1, dport=2),
        "UDP": ends / IP(frag=2) / UDP(sport=1, dport=4793),
        "ICMP": ends / IP() / ICMP(),
        "ARP": ends / ARP(),
        "MAC control": Ether(type=0x8808) / bytes(46),
    }
    frames = [
        (BEGAN_US + 1, "h1g0:eth0 out", bytes(one), len(bytes(one))) for one in packets.values()
    ]
    place = write_folder(tmp_path / "run", result(row()))
    (place / "capture.pcapng").write_bytes(directed_capture(["h1g0:eth0"], frames))
    (record,) = counted(place)["packets"]["data"]
    assert record["protocols"] == " ".join(f"{name}:1" for name in sorted(packets))


def test_services_are_told_by_pds_type_and_opcode(tmp_path: Path) -> None:
    def udp(port: int, head: bytes, ip: Packet | None = None) -> bytes:
        return bytes(Ether() / (ip or IP()) / UDP(sport=1, dport=port) / head.ljust(40, b"\0"))

    def aeth(syndrome: int) -> bytes:
        return b"\x11".ljust(12, b"\0") + bytes([syndrome])

    types = {
        **{1: "secured", 2: "RUD request", 3: "ROD request", 4: "RUDI request", 5: "RUDI response"},
        **{6: "UUD request", 7: "ACK", 10: "NACK", 11: "control", 31: "other"},
    }
    opcodes = {
        **{0x04: "RC send", 0x0A: "RC write", 0x0C: "RC read", 0x0F: "RC read", 0x13: "RC atomic"},
        **{0x81: "CNP", 0x64: "UD send", 0x1C: "other"},
    }
    inner = Ether() / IP() / UDP(sport=1, dport=4793) / bytes([8 << 3]).ljust(40, b"\0")
    packets = [(f"UET {name}", udp(4793, bytes([kind << 3]))) for kind, name in types.items()]
    packets += [(f"RoCEv2 {name}", udp(4791, bytes([code]))) for code, name in opcodes.items()]
    packets += [
        ("RoCEv2 RC ACK", udp(4791, aeth(0x1F))),
        ("RoCEv2 RC NAK", udp(4791, aeth(0x60))),
        ("RoCEv2 RC NAK", udp(4791, aeth(0x20), IPv6())),
        ("UET ACK", bytes(Ether() / IP() / UDP(dport=4789) / VXLAN(vni=7) / inner)),
        ("UET NACK", bytes(Ether() / Dot1Q(vlan=5) / IP() / UDP(dport=4793) / b"\x60")),
        *(("TCP", bytes(Ether() / ip / TCP())) for ip in (IP(), IPv6())),
        *(("other", bytes(one)) for one in (Ether() / ARP(), Ether() / IP() / UDP(dport=9))),
        ("cut before its service", udp(4791, aeth(0))[:50]),
    ]
    frames = [(BEGAN_US + 1, "h1g0:eth0 out", octets, 100) for _, octets in packets]
    place = write_folder(tmp_path / "run", result(row()))
    (place / "capture.pcapng").write_bytes(directed_capture(["h1g0:eth0"], frames))
    found = counted(place)["services"]["data"]
    expected = Counter(name for name, _ in packets)
    assert {one["service"]: one["packets"] for one in found} == expected
    assert {one["service"]: one["bytes"] for one in found} == {
        name: 100 * count for name, count in expected.items()
    }
    assert {(one["network"], one["tier"]) for one in found} == {("backend", "gpu to rail")}
    assert sum(one["bytes_percent"] for one in found) == pytest.approx(100, abs=0.02)


def test_a_run_without_rows_says_so(tmp_path: Path) -> None:
    place = write_folder(tmp_path / "run", result())
    assert {one["reason"] for one in counted(place).values()} == {
        "nothing was measured before the run ended"
    }


OF_MESSAGES = ("messages", "message-sizes", "message-flows", "servers", "ranks")
TIMES = {"first_us", "last_us", "most_at_once", "mean_at_once"}


def test_a_scenario_is_counted_as_its_run_but_for_what_needs_a_fabric(folder: Path) -> None:
    run = counted(folder)
    alone = counted("permutation:sizes=64KiB,iterations=2", "--topology", SPEC)
    for name in OF_MESSAGES:
        assert [
            {key: value for key, value in one.items() if key not in TIMES}
            for one in run[name]["data"]
        ] == [
            {key: value for key, value in one.items() if key not in TIMES}
            for one in alone[name]["data"]
        ]
    assert all(
        one[key] is None for one in alone["message-flows"]["data"] for key in one.keys() & TIMES
    )
    assert "Times need a fabric" in alone["messages"]["note"]
    for name in run.keys() - set(OF_MESSAGES):
        assert "needs a fabric" in alone[name]["reason"]


def test_a_trace_is_counted_by_its_schedules(tmp_path: Path) -> None:
    (tmp_path / "step.goal").write_text(
        "num_ranks 2\n"
        "rank 0 {\nl1: send 5000b to 1 tag 1\nl2: recv 70000b from 1 tag 2\n}\n"
        "rank 1 {\nl1: recv 5000b from 0 tag 1\nl2: send 70000b to 0 tag 2\n}\n"
    )
    tables = counted(tmp_path / "step.goal")
    assert {(one["from"], one["to"], one["bytes"]) for one in tables["ranks"]["data"]} == {
        ("h0g0", "h1g0", 5000),
        ("h1g0", "h0g0", 70000),
    }


def test_llm_has_a_line_for_each_phase_of_its_parallelism() -> None:
    phases = {
        (one["network"], one["phase"]): one
        for one in counted("llm:tp=2,dp=2,pp=1", "--topology", "rail_clos:hosts=2,gpus_per_host=2")[
            "messages"
        ]["data"]
    }
    assert ("scale-up", "TP AllGather") in phases
    assert ("backend", "layer gradients DP AllReduce") in phases


@pytest.mark.parametrize("layout", ["tp=2,dp=1", "tp=1,dp=2"])
def test_a_matrix_marks_rails_and_stages(layout: str) -> None:
    options = ["--topology", "rail_clos:hosts=2,gpus_per_host=2"]
    done = CliRunner().invoke(command, [f"llm:{layout},pp=2", *options])
    assert done.exception is None, done.exception
    matrix = done.stdout.partition("| backend, B from |")[2].splitlines()
    to_h0 = next(line.split("|")[2] for line in matrix if line.startswith("| h1 "))
    assert to_h0.split()[1] == "rp"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["runs/absent"], "there is no folder, trace or scenario runs/absent"),
        (["allreduce:sizes"], "'sizes' is not NAME=VALUE"),
        (["allreduce:sizes=1MiB", "--row", "2"], "has rows 1 to 1"),
        ([".", "--param", "sizes=1MiB"], "--param and --topology are of scenarios and traces"),
    ],
)
def test_what_cannot_be_counted_has_a_sentence(words: list[str], sentence: str) -> None:
    refusal = CliRunner().invoke(command, words).exception
    assert isinstance(refusal, UserError)
    assert sentence in str(refusal)
