"""A congestion control of RoCEv2 of one's own, with parameters."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from emulator.errors import UserError
from emulator.rocev2.congestion.rate_registry import RATE_CONTROLS, RateControl
from emulator.transports import describe_options, fit
from topologies import catalogue
from uet.congestion.congestion_parameters import Parameters, parameter


@dataclass(frozen=True, kw_only=True)
class ShareParameters(Parameters):
    share: float = parameter(0.5, 0, 1, help="part of the port that a queue pair sends at")


@pytest.fixture(autouse=True)
def share() -> Iterator[None]:
    RATE_CONTROLS.register(
        RateControl(
            name="share",
            meaning="a fixed part of the port",
            open=lambda parameters, config, now: (None, None),
            notifies=False,
            parameters=ShareParameters,
        )
    )
    yield
    RATE_CONTROLS.remove("share")


def fitted(transport: str) -> Any:
    topology = catalogue.load("rail_clos:hosts=2,gpus_per_host=1")
    return next(iter(fit(transport, topology).configs.values()))


def test_it_has_its_parameters_and_an_explanation() -> None:
    assert fitted("rocev2:cc=share,share.share=0.25")["cc_parameters"] == {"share": 0.25}
    assert "share: a fixed part of the port" in describe_options()
    assert "part of the port that a queue pair sends at" in describe_options()


@pytest.mark.parametrize(
    ("transport", "complaint"),
    [
        ("rocev2:cc=share,share.shar=1", "share has no parameter 'shar'; it has share"),
        ("rocev2:cc=share,share.share=2", r"share is 2; it must lie in 0\.\.1"),
        ("rocev2:share.share=1", "share.share has no effect with cc=dcqcn"),
        ("rocev2:none.share=1", "no parameter 'none.share': dcqcn, share have any"),
    ],
)
def test_a_wrong_parameter_is_refused(transport: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        fitted(transport)
