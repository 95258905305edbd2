"""Every published measurement can be read, says where it comes from, and has a run or a reason."""

import pytest

from emulator import scenario
from emulator.dataplane.fabric_choice import choose
from emulator.dataplane.switch.switch_choice import parse as parse_switch
from emulator.run.faults.grammar import timeline
from emulator.run.plan.variants import variants
from emulator.suite.suite_model import SuiteChoice
from emulator.transports import default_switch
from scenarios.hardware.points import AGREES, NEAR, OFF, HardwarePoint, load, points

CHOICE = SuiteChoice(scale="small", transports=["uet"], nodes="model")
EACH = pytest.mark.parametrize("point", points(), ids=lambda point: point.number)


def point(low: float, high: float, reason: str = "none") -> HardwarePoint:
    return HardwarePoint(
        number="1.1", title="a", cite="b", conditions="c", unit="us", low=low, high=high,
        reason=reason,
    )  # fmt: skip


def test_numbers_are_those_of_their_sources_in_order() -> None:
    _, sources = load()
    for source in sources:
        numbers = [one.number for one in source.points]
        assert numbers == [f"{source.number}.{n}" for n in range(1, len(numbers) + 1)]


@EACH
def test_a_point_names_its_source_and_its_run_can_be_read(point: HardwarePoint) -> None:
    assert point.cite
    assert point.conditions
    if point.reason:
        assert not point.trials(CHOICE)
        return
    assert point.metric
    for trial in point.trials(CHOICE):
        loaded = scenario.load(trial.scenario)
        parameters = loaded.parameters(dict(trial.parameters))
        topology = choose(trial.fabric).topology
        rows = list(loaded.schedules(parameters, topology, 1))
        sizes = {row.size_bytes for row in rows}
        assert point.row.get("size_bytes") in {None, *sizes}
        for variant in variants(trial.transport):
            assert variant.transport is not None
            assert default_switch(variant.transport, topology)
        if trial.switch is not None:
            parse_switch(trial.switch)
        if trial.faults:
            assert timeline(trial.faults, topology)


def test_enough_points_can_be_run() -> None:
    assert sum(not one.reason for one in points()) >= 25


@pytest.mark.parametrize(
    ("low", "high", "value", "ratio"),
    [
        (100, 100, 90, 0.9),
        (100, 200, 150, 1.0),
        (100, 200, 50, 0.5),
        (100, 200, 250, 1.25),
        (0, 0, 0, 1.0),
        (0, 0, 3, None),
    ],
)
def test_a_value_is_compared_with_the_nearest_end(
    low: float, high: float, value: float, ratio: float | None
) -> None:
    assert point(low, high).ratio(value) == ratio


def test_verdicts_follow_the_band_that_the_file_has() -> None:
    band, _ = load()
    assert (band.agrees, band.near) == (0.10, 0.25)
    ratios = (1.0, 0.91, 1.09, 1.2, 0.76, 1.3, 0.5, None)
    assert [band.verdict(ratio) for ratio in ratios] == [AGREES] * 3 + [NEAR] * 2 + [OFF] * 3


def test_a_point_without_a_run_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="a run or a reason"):
        point(1, 1, reason="")


def test_what_is_run_again_is_the_same_measurement_with_nics_or_a_library() -> None:
    by_number = {one.number: one for one in points()}
    for one in points():
        if one.again:
            other = by_number[one.again]
            assert (other.low, other.high, other.unit, other.again) == (
                one.low,
                one.high,
                one.unit,
                "",
            )
            assert "--nic" in other.run["options"] or "library" in other.run["params"]
