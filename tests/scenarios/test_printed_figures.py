"""Figures that manuals and sheets print come out again, to the digits that stand there."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from emulator import scenario
from emulator.pytest_plugin.runs import RunProcess
from tests import CHECKOUT
from tests.harness.runs.processes import ended

_SIM = "emulator/sim/README.md"
_NVLS = "scenarios/collectives/README.md"
_NETWORKS = "data_parallel --param widths=64,128,32 --param epochs=20 --param rate=0.01"
_SHORT = f"{_NETWORKS} --param top=0.01 --param gradients=float32,bfloat16,fp8,topk"
_STAGED = "allreduce --sizes 8MiB --topology rail_clos:hosts=2,gpus_per_host=8,spines=0"
_WRITE = "pairs --param size=2 --param message=2 --nic cx7"
_EIGHT = "allreduce --sizes 64MiB --topology rail_clos:hosts=1,gpus_per_host=8"

#: A command; where its figures stand (a manual, or nothing for the sheet of its scenario); and
#: those of the rows, in order, by their keys: "-" where none is printed.
FIGURES = [
    ("weight_sync", "", {"sync_us": "- 132 89 96 5.2", "victim_p99_us": "3.2 6.1 - 18.8 -"}),
    (
        "weight_sync --param mode=p2p,relay --topology rail_clos:hosts=12,gpus_per_host=2,spines=1",
        "",
        {"sync_us": "219 134"},
    ),
    (
        "transport_services",
        "",
        {
            "time_us": "24.3 37.1 24.3 35.4 26.9 78.2 26.5 26.5",
            "retransmitted_packets": "- 9 - 295 - 17 - -",
            "repeated_packets": "- - - - - 9 - -",
        },
    ),
    ("data_parallel", "", {"time_us": "125.1"}),
    (_SHORT, "", {"loss_last": "0.174 0.174 0.181 6.01"}),
    (f"{_SHORT} --param feedback=on", "", {"loss_last": "- - 0.180 0.895"}),
    (_STAGED, _SIM, {"busbw_gbps": "359"}),
    (f"{_STAGED} --gpu-direct off", _SIM, {"busbw_gbps": "221"}),
    (f"{_STAGED} --gpu-direct off:hosts=h1", _SIM, {"busbw_gbps": "213"}),
    (_WRITE, _SIM, {"message_p99_us": "2.7"}),
    (f"{_WRITE} --gpu-direct off", _SIM, {"message_p99_us": "4.5"}),
    (f"{_EIGHT},scale_up=mi300x", _SIM, {"busbw_gbps": "447"}),
    (f"{_EIGHT} --param algorithm=nvls", _NVLS, {"busbw_gbps": "716"}),
    (
        f"{_EIGHT} --param algorithm=nvls --param library=nccl --param cut=128 --nic cx7",
        _NVLS,
        {"busbw_gbps": "471"},
    ),
    (
        "allreduce --sizes 8MiB --topology rail_clos:hosts=2,gpus_per_host=8,scale_up=nvswitch2 "
        '--fault "t=10us scale-up h0g0 links=4; t=30us heal"',
        "emulator/run/faults/README.md",
        {"time_us": "63", "undisturbed_us": "49"},
    ),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("command", "page", "figures"), FIGURES)
def test_a_figure_comes_out_again(
    start: Callable[..., RunProcess], command: str, page: str, figures: dict[str, str]
) -> None:
    name, *words = shlex.split(command)
    text = (CHECKOUT / page).read_text() if page else scenario.load(name).sheet()
    run = start(*words, "--capture", "none", scenario=name)
    ended(run)
    rows = run.result["rows"]
    for key, printed in figures.items():
        stated = printed.split()
        assert len(rows) == len(stated)
        for row, one in zip(rows, stated, strict=True):
            if one != "-":
                digits = len(one.partition(".")[2])
                assert f"{row[key]:.{digits}f}" == one, key
                assert one in text
