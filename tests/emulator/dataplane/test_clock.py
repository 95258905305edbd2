"""Dilation stretches times and lowers rates."""

import json

from hypothesis import given
from hypothesis import strategies as st

from emulator.dataplane.clock import Dilation

FACTORS = st.floats(min_value=1e-3, max_value=1e9)


def test_at_1000_a_fabric_ns_lasts_a_host_us_and_rates_are_a_thousandth() -> None:
    dilation = Dilation(1000)
    assert dilation.host_ns(1) == 1000
    assert dilation.fabric_ns(1000) == 1
    assert dilation.host_bps(400e9) == 400e6
    assert dilation.fabric_bps(400e6) == 400e9


@given(FACTORS, st.floats(min_value=1, max_value=1e12))
def test_there_and_back_is_the_same(factor: float, value: float) -> None:
    dilation = Dilation(factor)
    assert abs(dilation.fabric_ns(dilation.host_ns(value)) / value - 1) < 1e-12
    assert abs(dilation.fabric_bps(dilation.host_bps(value)) / value - 1) < 1e-12


def test_it_is_a_number_in_json() -> None:
    assert json.loads(json.dumps({"dilation": Dilation(2.5)})) == {"dilation": 2.5}
