"""A row of a run has the same numbers and the same digest, whatever other rows came before it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.harness.nightly import nightly
from tests.harness.runs.processes import begun, ended

SPINES = ("--topology", "rail_clos:hosts=2,gpus_per_host=2,spines=2")
SHORT, LONG = ("--sizes", "64KiB"), ("--sizes", "512KiB")
LOSS = "t=3us link rail0:up0 loss=5%; t=6us heal"
ITERATIONS = ("--iterations", "2")


def rows(folder: Path, scenario: str, *arguments: str) -> list[Mapping[str, object]]:
    run = begun(folder, "--capture", "none", *arguments, scenario=scenario)
    ended(run)
    return [
        # the time of the run is all that passes from row to row
        {key: value for key, value in row.items() if key != "began_us"}
        for row in run.result["rows"]
    ]


@pytest.mark.root
@pytest.mark.parametrize(
    ("scenario", "settings", "among", "alone"),
    [
        ("allreduce", ITERATIONS, ("--sizes", "32KiB,64KiB"), ("--sizes", "64KiB")),
        nightly(
            (
                "permutation",
                ("--switch", "shallow:balance=flowlet,flowlet_gap=300ns", *ITERATIONS),
                ("--seeds", "2"),
                ("--seed", "2"),
            )
        ),
        (
            "permutation",
            (*SHORT, "--switch", "deep:balance=round-robin", "--transport", "rocev2:pfc=off"),
            ("--seeds", "2"),
            ("--seed", "2"),
        ),
        ("permutation", (*LONG, "--fault", LOSS), ("--seeds", "2"), ("--seed", "2")),
        nightly(("permutation", ("--switch", "none"), ("--seeds", "2"), ("--seed", "2"))),
        (
            "permutation",
            (*SHORT, *ITERATIONS),
            ("--seeds", "2", "--workers", "2"),
            ("--seed", "2", "--workers", "1"),
        ),
    ],
    ids=["sizes", "flowlets", "turns", "faults", "no switch program", "workers"],
)
def test_a_row_alone_is_the_row_among_others(
    scenario: str,
    settings: tuple[str, ...],
    among: tuple[str, ...],
    alone: tuple[str, ...],
    tmp_path: Path,
) -> None:
    for name in ("among", "alone"):
        (tmp_path / name).mkdir()
    several = rows(tmp_path / "among", scenario, *SPINES, *settings, *among)
    (*_, last) = rows(tmp_path / "alone", scenario, *SPINES, *settings, *alone)
    assert several[-1] == last
    assert several[0]["digest"] != last["digest"]
