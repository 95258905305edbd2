"""Congestion controls register themselves, and one more needs no other change."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from emulator.errors import UserError
from emulator.transports import fit
from topologies import catalogue
from uet.config import FepConfig
from uet.congestion.control_registry import CONTROLS, CongestionControl, Tuning
from uet.congestion.controls.fixed_window import FixedWindow

HALF = "half"


def _half(tuning: Tuning, now: int) -> FixedWindow:
    return FixedWindow(tuning.fixed_window // 2)


@pytest.fixture
def half() -> Iterator[CongestionControl]:
    yield CONTROLS.register(CongestionControl(name=HALF, meaning="half a window", window=_half))
    CONTROLS.remove(HALF)


def config(**fields: Any) -> FepConfig:
    return FepConfig(address="10.0.0.1", mac="02:00:00:00:00:01", **fields)


def test_a_registered_control_is_used(half: CongestionControl) -> None:
    made = config(cc=HALF, window_bytes=100_000).congestion(4_096)
    window = made.open(random.Random(1), 0).window
    assert window is not None
    assert window.window_octets == 50_000


def test_two_of_one_name_are_refused(half: CongestionControl) -> None:
    with pytest.raises(ValueError, match=r"there already is a congestion control 'half' "):
        CONTROLS.register(half)


def test_every_control_limits_something_and_opens() -> None:
    assert {"none", "nscc", "rccc", "both"} <= set(CONTROLS)
    for name, control in CONTROLS.items():
        assert control.window or control.credit, name
        context = config(cc=name).congestion(4_096).open(random.Random(1), 0)
        assert (context.window is not None) == (control.window is not None)
        assert (context.credit is not None) == (control.credit is not None)


def test_parameters_of_no_control_are_refused() -> None:
    with pytest.raises(ValueError, match=r"control 'half' has parameters; .*nscc, rccc have"):
        config(cc_parameters={HALF: {"gamma": 1.0}})


@pytest.mark.parametrize("name", ["nscc", "both"])
def test_cc_has_one_name_from_the_command_line_to_the_endpoint(name: str) -> None:
    topology = catalogue.load("rail_clos:hosts=2,gpus_per_host=1")
    choice = fit(f"uet:cc={name},nscc.gamma=0.5", topology)
    fields: Any = next(iter(choice.configs.values()))
    assert fields["cc"] == name
    assert fields["cc_parameters"]["nscc"]["gamma"] == 0.5


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        ("uet:cc=none,nscc.gamma=0.5", "nscc.gamma"),
        ("uet:cc=rccc,nscc.gamma=0.5", "nscc.gamma"),
        ("uet:rccc.pacer_share=0.5", "rccc.pacer_share"),
        ("uet:delivery=rod,spray=oblivious", "spray"),
        ("uet:delivery=rod,short=2", "short"),
        ("uet:tss=direct,crc=on", "crc"),
        ("rocev2:cc=none,dcqcn=paper", "dcqcn"),
        ("rocev2:cc=none,dcqcn.g=0.5", "dcqcn.g"),
        ("rocev2:dcqcn=paper,dcqcn.clamp_target=1", "dcqcn.clamp_target"),
    ],
)
def test_a_parameter_that_the_others_leave_without_effect_is_refused(given: str, idle: str) -> None:
    with pytest.raises(UserError, match=f": {idle} has no effect with "):
        fit(given, catalogue.load("rail_clos:hosts=2,gpus_per_host=1"))


def test_a_control_of_another_transport_is_refused() -> None:
    topology = catalogue.load("rail_clos:hosts=2,gpus_per_host=1")
    with pytest.raises(UserError, match="takes one of nscc"):
        fit("uet:cc=dcqcn", topology)
