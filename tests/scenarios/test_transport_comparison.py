"""Several transports on one fabric: the same work, the same switches, the same measures."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from emulator import scenario as scenarios
from emulator.dataplane.switch import switch_fitting as fitting
from emulator.dataplane.switch.switch_choice import parse
from emulator.errors import UserError
from emulator.pytest_plugin.runs import RunFactory
from emulator.result_rows import NCCL_COLUMNS, TableColumn, settings, short_names, summary
from emulator.run.plan.stages import stages
from emulator.run.plan.variants import COMPARED, variants
from emulator.run.report import comparison
from emulator.run.report import result_table as table
from emulator.transports import default_switch, fit
from tests.emulator.run.plan.test_stages import PLAIN
from topologies.catalogue import load


@pytest.mark.parametrize(
    ("requested", "found"),
    [
        (None, [None]),
        ("uet", ["uet"]),
        ("uet:cc=rccc,spray=oblivious", ["uet:cc=rccc,spray=oblivious"]),
        ("uet,rocev2", ["uet", "rocev2"]),
        ("uet:cc=rccc,rocev2:qps=4,mtu=1024", ["uet:cc=rccc", "rocev2:qps=4,mtu=1024"]),
        ("rocev2,uet:tss=direct,crc=off,uet", ["rocev2", "uet:tss=direct,crc=off", "uet"]),
        (" uet , rocev2 ", ["uet", "rocev2"]),
        ("uet,infiniband:qps=4", ["uet", "infiniband:qps=4"]),  # refused when it is fitted
        ("compare", ["uet", "rocev2:classic", "rocev2:nccl", "rocev2:adaptive"]),
        ("rocev2:adaptive,qps=2,uet", ["rocev2:adaptive,qps=2", "uet"]),
        ("uet@deep,rocev2", ["uet@deep", "rocev2"]),
        ("uet@deep,trim=on,rocev2:qps=4", ["uet@deep:trim=on", "rocev2:qps=4"]),
        (
            "uet,rocev2:adaptive,qps=2@lossless:balance=least-loaded,xoff=1MB,uet@balance=packet",
            [
                "uet",
                "rocev2:adaptive,qps=2@lossless:balance=least-loaded,xoff=1MB",
                "uet@balance=packet",
            ],
        ),
    ],
)
def test_what_is_compared(requested: str | None, found: list[str | None]) -> None:
    assert [variant.label for variant in variants(requested)] == found


def test_a_transport_names_its_switch() -> None:
    (adaptive,) = variants("rocev2:adaptive@lossless:balance=packet")
    assert (adaptive.transport, adaptive.switch) == ("rocev2:adaptive", "lossless:balance=packet")


@pytest.mark.parametrize("requested", ["uet@", "@deep", "uet@deep@shallow"])
def test_an_at_sign_stands_before_one_switch(requested: str) -> None:
    with pytest.raises(UserError, match="one switch follows @, as in uet@deep"):
        variants(requested)


def test_twice_the_same_is_no_comparison() -> None:
    with pytest.raises(UserError, match=r"uet twice.*--seeds N"):
        variants("uet,rocev2,uet")


def test_each_transport_has_the_switch_it_is_run_on() -> None:
    fabric = load("rail_clos:hosts=4,gpus_per_host=1")
    assert default_switch("uet", fabric) == "shallow"
    large = load("rail_clos:hosts=4,gpus_per_host=1,buffer=4MiB")
    marks = "untrimmed.kmin_bytes=800000,untrimmed.kmax_bytes=3200000,untrimmed.pmax=0.2"
    assert default_switch("rocev2:pfc=off", large) == f"lossless:pfc=off,{marks}"
    paused = fitting.fit(parse(default_switch("rocev2:qps=4", fabric)), fabric, 1_000)
    (link, *_) = fabric.links
    rules = paused.pause(link)
    assert rules is not None
    # Marks come first, and the headroom is all there.
    kmin = paused.profile(link).untrimmed.kmin_bytes
    assert kmin < rules.xoff_bytes == link.buffer_bytes - rules.needed_bytes
    # On a quarter of the buffer everything is smaller.
    small = load("rail_clos:hosts=4,gpus_per_host=1,buffer=256KiB")
    choice = parse(default_switch("rocev2:pfc=off", small))
    assert 8 * 9_038 < choice.changes["untrimmed.kmin_bytes"] < 256 * 1024
    fitting.fit(choice, small, 1_000)
    # Too small a buffer for pauses is told as that, not as a threshold that nobody has asked for.
    for size in ("256KiB", "100KiB"):
        tiny = load(f"rail_clos:hosts=4,gpus_per_host=1,buffer={size}")
        with pytest.raises(UserError, match=f"headroom of 258960 B .* buffer of {size[:-3]}"):
            fitting.fit(parse(default_switch("rocev2", tiny)), tiny, 1_000)


def test_who_names_a_switch_gets_it() -> None:
    def switch(asked: str | None, own: str = "") -> str:
        row = replace(PLAIN, switch=own)
        (stage,) = stages(
            [row],
            transport="rocev2",
            switch=asked,
            default_switch=lambda *_: "lossless:xoff=9KB,pfc_response=1us",
        )
        return stage.switch

    assert switch(None) == "lossless:xoff=9KB,pfc_response=1us"
    assert switch("deep") == "deep"
    assert switch("lossless") == "lossless"
    assert switch(None, "deep:trim=on") == "deep:trim=on"
    assert switch(None, "balance=packet") == "lossless:balance=packet,xoff=9KB,pfc_response=1us"
    assert switch("lossless", "balance=packet") == "lossless:balance=packet"
    assert switch(None, "xoff=8KB") == "lossless:xoff=8KB,pfc_response=1us"


def test_what_a_transport_says_of_its_switch_counts_for_it_alone() -> None:
    """What it does not speak of is customary, as ``--switch`` for all would not leave it."""

    def switch(named: str | None, asked: str | None = None) -> str:
        (stage,) = stages(
            [PLAIN],
            transport="rocev2",
            switch=asked,
            named=named,
            default_switch=lambda *_: "lossless:pfc_priority=3,xoff=9KB,untrimmed.pmax=0.2",
        )
        assert stage.label == ("rocev2" if named is None else f"rocev2@{named}")
        return stage.switch

    rest = "pfc_priority=3,xoff=9KB,untrimmed.pmax=0.2"
    assert switch("balance=least-loaded") == f"lossless:balance=least-loaded,{rest}"
    assert switch("lossless:xoff=8KB") == ("lossless:xoff=8KB,pfc_priority=3,untrimmed.pmax=0.2")
    assert switch("pfc=off") == "lossless:pfc=off,untrimmed.pmax=0.2"
    assert switch("deep") == "deep"
    assert switch("deep", "shallow") == "deep"
    assert switch(None, "shallow") == "shallow"


def test_presets_stand_on_what_they_are_sold_with() -> None:
    fabric = load("rail_clos:hosts=4,gpus_per_host=1,spines=4")
    classic = default_switch("rocev2:classic", fabric)
    assert classic == default_switch("rocev2", fabric) == default_switch("rocev2:nccl", fabric)
    assert default_switch("rocev2:adaptive", fabric) == f"{classic},balance=least-loaded"
    fitting.fit(parse(default_switch("rocev2:adaptive", fabric)), fabric, 1_000)

    def fitted(requested: str) -> dict[str, Any]:
        return dict(next(iter(fit(requested, fabric).configs.values())))

    assert fitted("rocev2:classic") == fitted("rocev2")
    assert fitted("rocev2:nccl")["mesh"]["qps"] == 4
    assert fitted("rocev2:nccl,qps=8")["mesh"]["qps"] == 8
    adaptive = fitted("rocev2:adaptive")
    assert (adaptive["recovery"], adaptive["placement"]) == ("selective_repeat", "direct")
    # What is marked whole, and a bandwidth-delay product, may be overtaken.
    packets = parse(classic).changes["untrimmed.kmax_bytes"] // 4_200
    assert packets < adaptive["reorder_tolerance"] < 2 * packets
    assert fitted("rocev2:adaptive,reorder=5")["reorder_tolerance"] == 5
    headers = fit("rocev2:adaptive", fabric).wire.around_bytes
    assert headers == fit("rocev2", fabric).wire.around_bytes + 16  # a RETH in every packet
    with pytest.raises(UserError, match="classic and nccl are two presets of the transport rocev2"):
        fit("rocev2:classic,nccl", fabric)
    with pytest.raises(UserError, match=r"no parameter 'adaptiv' \(did you mean adaptive\?\)"):
        fit("rocev2:adaptiv", fabric)


def test_the_table_keeps_what_only_the_scenario_tells() -> None:
    own = (TableColumn("senders", "senders"), *table.TRAFFIC_COLUMNS)
    columns = comparison.columns(own, ["uet", "rocev2:qps=4,mtu=1024"], ["senders"])
    keys = [column.key for column in columns]
    assert keys[:3] == ["name", "senders", "size_bytes"]
    assert len(keys) == len(set(keys))
    assert {"cnps", "paused_us", "retransmitted_bytes", "message_p99_us", "wrong"} <= set(keys)
    plain = comparison.columns((*NCCL_COLUMNS, *table.FABRIC_COLUMNS), ["uet"])
    assert [column.key for column in plain][:2] == ["name", "size_bytes"]


@pytest.mark.parametrize("name", ["incast", "victim", "permutation", "losssweep", "pfcstorm"])
@pytest.mark.parametrize("seeds", [1, 5])
def test_the_table_fits_into_120_columns(name: str, seeds: int) -> None:
    scenario = scenarios.load(name)
    parameters = scenario.parameters({})
    fabric = scenario.topology(parameters)
    assert isinstance(fabric, str)
    (trial, *_) = scenario.schedules(parameters, load(fabric), 1)
    columns = comparison.columns(scenario.module.COLUMNS, COMPARED, trial.facts, seeds)
    heading, _, line = table.ResultTable(columns).lines(
        dict.fromkeys([one.key for one in columns], 0)
    )
    assert len(line) <= 120
    shown = {"#wrong", "ideal", "p99", "resent", *(("least", "most") if seeds > 1 else ("time",))}
    assert shown <= set(heading.split())


def test_a_long_name_has_a_number_in_the_table() -> None:
    long = "rocev2:recovery=selective_repeat,qps=4@lossless:balance=packet"
    assert short_names(["uet", long, "rocev2:classic"]) == {
        "uet": "uet",
        long: "rocev2[2]",
        "rocev2:classic": "rocev2:classic",
    }
    rows = [{"transport": name, "switch": "deep"} for name in ("uet", long)]
    assert settings(rows) == [f"rocev2[2] is {long}"]


def timed(transport: str, *seeds: Sequence[float]) -> list[dict[str, object]]:
    """Rows of a transport, one for each size, with each seed."""
    return [
        {
            "transport": transport,
            "switch": transport,
            "seed": seed,
            "size_bytes": place,
            "time_us": time,
        }
        for seed, times in enumerate(seeds)
        for place, time in enumerate(times)
    ]


def test_who_is_faster_is_told_with_its_spread_or_not_at_all() -> None:
    uet = timed("uet", [10, 40], [11, 42], [12, 44])
    rocev2 = timed("rocev2", [15, 43], [18, 38], [24, 39])
    assert summary([*uet, *rocev2]) == [
        "size_bytes=0: uet is fastest with 11.0 us (10.0 to 12.0 us); rocev2 takes 1.64 times as "
        "long (1.25 to 2.40) (3 seeds)",
        "size_bytes=1: it cannot be told who is faster: rocev2 39.0 us (38.0 to 43.0 us), uet "
        "42.0 us (40.0 to 44.0 us) (3 seeds)",
    ]
    # Who is first in the list is not who is held to be better.
    faster = timed("rocev2", [5, 20], [5, 20], [6, 20])
    line, _ = summary([*uet, *faster])
    assert line.startswith("size_bytes=0: rocev2 is fastest with 5.0 us (5.0 to 6.0 us); uet takes")


def test_a_tie_with_the_fastest_is_told_beside_who_is_slower() -> None:
    rows = [*timed("a", [100], [101]), *timed("b", [100.6], [101.2]), *timed("c", [150], [150])]
    (line,) = summary(rows)
    assert "b cannot be told from it; c takes 1.49 times as long" in line
    # Nor is what nobody can see a difference, however small the spread.
    near = summary([*timed("a", [100], [100]), *timed("b", [100.3], [100.3])])
    assert near[0].startswith("it cannot be told who is faster")


def test_one_seed_has_no_verdict() -> None:
    rows = [*timed("uet", [10, 40]), *timed("rocev2", [15, 30])]
    (line,) = summary(rows)
    assert "nothing says who is faster" in line
    assert "--seeds" in line
    assert settings(rows) == ["uet on uet", "rocev2 on rocev2"]
    same = [{**row, "switch": "deep"} for row in rows]
    assert settings(same) == []


def test_lines_below_the_table_name_the_transport_where_there_are_several() -> None:
    def lines(asked: str) -> list[str]:
        fault = {
            "said": "rail0:up0 down",
            "at_us": 5.0,
            "cut_off_gpus": [],
            "cut_off_pairs": None,
            "goodput": "restored",
            "restored_us": 7.0,
        }
        row = {
            "transport": "rocev2:qps=4",
            "collective": "incast",
            "size_bytes": 8,
            "wrong": 0,
            "faults": [fault],
            "slowdown": 2.0,
            "undisturbed_us": 3.0,
            "lost_packets": {},
            "retransmitted_packets": 1,
            "undisturbed_retransmitted_packets": 0,
        }
        left = {**row, "delivered_messages": 1, "messages": 2, "unfinished_gpus": []}
        result = {
            "transport": asked,
            "rows": [row],
            "unfinished": left,
            "fidelity": {"verdict": "ok", "reasons": []},
            "errors": [],
        }
        return [line for line in table.trailer(result, None) if "incast" in line]

    several, one = lines("uet,rocev2:qps=4"), lines("rocev2:qps=4")
    assert [": rocev2:qps=4, incast 8 B: " in line for line in several] == [True] * 3
    assert [": incast 8 B: " in line for line in one] == [True] * 3


def run(runs: RunFactory, scenario: str, *options: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(runs(scenario, *options, "--format", "json").output)
    return content


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="building namespaces needs root")
def test_a_comparison_is_fair(uetemu_run: RunFactory) -> None:
    """Both move the same octets between the same GPUs; switches differ by PFC alone."""
    result = run(
        uetemu_run,
        *("permutation", "--sizes", "256KiB", "--transport", "uet,rocev2,rocev2:pfc=off,qps=4"),
        *("--topology", "rail_clos:hosts=2,gpus_per_host=2"),
        *("--capture", "none", "--seeds", "1"),
    )
    uet, paused, lossy = rows = result["rows"]
    assert [row["transport"] for row in rows] == ["uet", "rocev2", "rocev2:pfc=off,qps=4"]
    switches = [row["switch"] for row in rows]
    assert switches[0] == "shallow"
    pausing, marks = switches[1].split(",untrimmed.", maxsplit=1)
    assert pausing.startswith("lossless:pfc_priority=3,xoff=")
    assert switches[2] == f"lossless:pfc=off,untrimmed.{marks}"
    assert {row["wrong"] for row in rows} == {0}
    assert {row["payload_bytes"] for row in rows} == {4 * 2**18}
    assert {row["size_bytes"] for row in rows} == {2**18}
    # Headers differ a little, and so do the ideals; nothing else may.
    assert paused["ideal_us"] == lossy["ideal_us"] == pytest.approx(uet["ideal_us"], rel=0.02)
    for row in rows:
        assert row["time_us"] >= row["ideal_us"]
        assert 0 < row["message_p50_us"] <= row["message_p99_us"] <= row["message_p999_us"]
        assert row["retransmitted_bytes"] == 0 or row["retransmitted_packets"] > 0
    assert paused["pauses"] is not None
    assert uet["pauses"] is lossy["pauses"] is None
