"""A comparison reports what its transports do not have in common."""

from typing import Any

import pytest

from emulator import scenario as scenarios
from emulator.dataplane.switch.switch_choice import parse
from emulator.run.plan.stages import Stage
from emulator.run.report import comparison
from emulator.run.report import result_table as table
from emulator.transports import default_switch, fit
from topologies.analysis.round_trip import mtu_frame_bytes, plane_bdp_bytes
from topologies.catalogue import load

FABRIC = load("rail_clos:hosts=9,gpus_per_host=1,spines=1,uplinks_per_spine=1")


class Planned:
    """Hold as much of a stage, and of a plan, as is looked at."""

    def __init__(self, name: str) -> None:
        text = default_switch(name, FABRIC)
        self.stage = Stage(name, text, (0,))
        self.switch = parse(text)
        self.transport = fit(name, FABRIC, switch=self.switch)


class Compared:
    def __init__(self, *names: str) -> None:
        self.stages = [Planned(name) for name in names]
        self.topology = FABRIC
        self.request = self
        self.parameters: Any = scenarios.load("incast").parameters({})


def report(*names: str) -> dict[str, str]:
    lines = comparison.report(Compared(*names))  # type: ignore[arg-type]
    return dict(line.split(": ", 1) for line in lines)


def test_subjects_appear_where_transports_differ() -> None:
    lines = report("uet", "rocev2:classic", "rocev2:nccl", "rocev2:adaptive")
    assert "ACKs" not in lines
    assert lines["paths"].startswith("uet by packet, reps; rocev2:classic hashed, one queue pair")
    assert "all others dcqcn, the set mlx, the same on every fabric" in lines["congestion control"]
    assert "uet nscc, fitted to this fabric's base RTT" in lines["congestion control"]
    # One BDP; or the buffers of all ten ports of the rail switch, 1 MiB each.
    held = lines["data that one egress holds at most"]
    bdp = plane_bdp_bytes(FABRIC, mtu_frame_bytes(FABRIC))
    assert held == f"uet {bdp / 1000:.0f} KB; all others {10 * 2**20 / 1000:.0f} KB"
    assert "128 writes of 64 KiB" in lines["application"]


def test_acks_behind_data_are_a_difference() -> None:
    assert report("uet", "rocev2:acks=data")["ACKs"] == (
        "uet in the queue of control packets; rocev2:acks=data behind data"
    )


def test_alike_transports_have_only_their_application() -> None:
    assert set(report("rocev2", "rocev2:classic")) == {"application"}


@pytest.mark.parametrize("words", [3, 60])
@pytest.mark.parametrize("between", [" ", ",", ", "])
def test_lines_are_no_longer_than_the_table(words: int, between: str) -> None:
    text = between.join(["parameter=value"] * words)
    lines = table.wrapped("Comparison", text)
    assert max(map(len, lines)) <= 120
    assert lines[0].startswith("# Comparison           : parameter")
    assert all(line.startswith("#                        parameter") for line in lines[1:])
    whole = "".join(line[25:] if between == "," else f"{line[25:]} " for line in lines)
    assert whole.strip() == text
