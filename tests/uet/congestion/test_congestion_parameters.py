"""Test what follows from base RTT, link rate, MTU and trimming (UES 3.6.13, 3.6.14)."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from uet.congestion.congestion_parameters import (
    NsccParameters,
    ParameterError,
    Parameters,
    PathParameters,
    RcccParameters,
    parameter,
)
from uet.timekeeper import NEVER

GBPS, US = 10**9, 1_000


@pytest.mark.parametrize(
    ("rate", "rtt", "trimming", "bdp", "a", "target", "b", "alpha", "fi", "eta", "fast", "max_wnd"),
    [
        (100, 12, True, 150_000, 1, 9, 0.75, 1_365.3, 20_480, 614, 0.25, 225_000),
        (100, 12, False, 150_000, 1, 12, 1.0, 1_365.3, 20_480, 614, 0.25, 225_000),
        (400, 6, True, 300_000, 2, 4.5, 0.375, 2_730.7, 40_960, 1_229, 0.5, 450_000),
        (400, 12, True, 600_000, 4, 9, 0.75, 5_461.3, 81_920, 2_458, 1.0, 900_000),
        (800, 12, True, 1_200_000, 8, 9, 0.75, 10_922.7, 163_840, 4_915, 2.0, 1_800_000),
    ],
)
def test_of_usual_networks(
    rate: int,
    rtt: int,
    trimming: bool,
    bdp: int,
    a: float,
    target: float,
    b: float,
    alpha: float,
    fi: int,
    eta: int,
    fast: float,
    max_wnd: int,
) -> None:
    p = NsccParameters(link_rate=rate * GBPS, base_rtt=rtt * US, trimming=trimming, mtu=4_096)
    assert p.bdp == bdp
    assert p.max_wnd == max_wnd
    assert p.scaling_a == a
    assert p.target == target * US
    assert p.scaling_b == b
    assert round(p.alpha * US, 1) == alpha  # per us
    assert p.fi == fi
    assert round(p.eta) == eta
    assert p.fi_scale == fast
    assert p.max_wnd >> p.qa_gate == max_wnd // 8
    assert p.qa_threshold == (NEVER if trimming else 4 * target * US)
    assert p.adjust_period == rtt * US
    assert p.adjust_bytes == 8 * 4_096
    assert p.near_zero == 1 * US


def test_slow_network_by_its_own_reference() -> None:
    """With its base RTT as the reference a network behaves like the reference one, only slower."""
    fast = NsccParameters()
    slow = NsccParameters(link_rate=GBPS, base_rtt=1_200 * US, reference_rtt=1_200 * US)
    assert slow.bdp == fast.bdp
    assert slow.scaling_b == fast.scaling_b
    assert slow.near_zero == 100 * fast.near_zero
    # What a window without delay adds to it.
    assert slow.alpha * slow.target == pytest.approx(fast.alpha * fast.target)
    assert (slow.fi, slow.eta, slow.fi_scale) == (fast.fi, fast.eta, fast.fi_scale)


def test_nothing_is_changed_later() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NsccParameters().bdp = 1  # type: ignore[misc]


def test_a_window_holds_a_packet() -> None:
    assert PathParameters(link_rate=1_000, mtu=9_000).max_wnd == 9_000
    assert RcccParameters(link_rate=1_000, mtu=9_000).max_wnd == 9_000


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (PathParameters, {"base_rtt": 0}),
        (PathParameters, {"link_rate": -1}),
        (PathParameters, {"mtu": 0}),
        (NsccParameters, {"target_qdelay": 0}),
        (NsccParameters, {"gamma": 1.5}),
        (NsccParameters, {"delay_gain": -0.1}),
        (NsccParameters, {"drop_threshold": 0.5}),
        (NsccParameters, {"qa_gate": 1.5}),
        (NsccParameters, {"reference_rtt": 0}),
        (RcccParameters, {"grant_mtus": 0}),
        (RcccParameters, {"pacer_share": 0}),
        (RcccParameters, {"pacer_share": 1.1}),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    kind: type[PathParameters], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ParameterError, match=rf"{next(iter(wrong))} is .*must lie in"):
        kind(**wrong)


@dataclass(frozen=True, kw_only=True)
class OwnParameters(Parameters):
    count: int = parameter(1, 1, 9, help="a whole number")
    asked: bool = False


def test_types_hold_whether_annotations_are_evaluated_or_not() -> None:
    assert OwnParameters(asked=1).asked is True  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"count is 1\.5; .* and be whole"):
        OwnParameters(count=1.5)  # type: ignore[arg-type]
