"""A control plane as a user writes it."""

import pytest

from emulator.dataplane.control_plane import control_plane_choice as choice
from emulator.dataplane.control_plane.control_plane_choice import ControlPlane, chosen, parse
from emulator.dataplane.control_plane.lab_routing import check_control_plane
from emulator.dataplane.switch.switch_choice import parse as parse_switch
from emulator.dataplane.switch.switch_fitting import fit
from emulator.errors import UserError
from topologies import catalogue
from topologies.model import TopologyError

SMALL = "rail_clos:hosts=2,gpus_per_host=2"


def test_everything_that_can_be_said_is_read() -> None:
    plane = parse(
        "ebgp:bfd=on,interval=50ms,multiplier=4,hold=12s,summaries=off,unnumbered=on,as=tier"
    )
    assert plane == ControlPlane(
        name="ebgp",
        interval_ms=50,
        multiplier=4,
        hold_s=12,
        summaries=False,
        unnumbered=True,
        systems="tier",
    )
    assert plane.detection_s == pytest.approx(0.2)


@pytest.mark.parametrize(
    "text",
    ["ebgp", "ibgp", "ebgp:bfd=off,hold=3s", "ebgp:as=tier,unnumbered=on", "ibgp:hold=5s", "evpn"],
)
def test_what_is_written_is_read_again(text: str) -> None:
    plane = parse(text)
    assert plane is not None
    assert parse(plane.spec) == plane


def test_static_is_no_protocol() -> None:
    assert parse("static") is None
    assert choice.of(catalogue.load(SMALL)) is None


def test_without_bfd_the_hold_time_finds_a_failure() -> None:
    plane = parse("ebgp:bfd=off,hold=6s")
    assert plane is not None
    assert plane.detection_s == 6


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("egbp", "there is no control plane 'egbp' .did you mean ebgp.."),
        ("ebgp:intervall=1s", "no parameter 'intervall' .did you mean interval."),
        ("ibgp:unnumbered=on", "the control plane ibgp has no parameter 'unnumbered'"),
        ("static:bfd=on", "static takes no parameters: leave bfd out"),
        ("ebgp:bfd", "'bfd' in control plane 'ebgp:bfd' is not param=value"),
        ("ebgp:bfd=yes", "takes bfd=on or bfd=off"),
        ("ebgp:interval=300", "300ms|1.2us or 3ms"),
        ("ebgp:interval=5ms", "FRR takes whole milliseconds, 10 to 60000"),
        ("ebgp:interval=10500us", "FRR takes whole milliseconds"),
        ("ebgp:hold=1s", "FRR takes whole seconds, 3 to 65535"),
        ("ebgp:multiplier=1", "FRR takes 2 to 255"),
        ("ebgp:as=pod", "one AS per switch, or per tier"),
        ("ebgp:hold=3s,hold=4s", "hold is given twice"),
        ("ebgp:bfd=off,interval=50ms", "interval says nothing with bfd=off"),
        ("evpn:as=tier", "the control plane evpn has no parameter 'as'"),
    ],
)
def test_what_cannot_be(text: str, stated: str) -> None:
    with pytest.raises(UserError, match=stated):
        parse(text)


def test_the_choice_goes_with_the_topology() -> None:
    topology = chosen(catalogue.load(SMALL), "ebgp:interval=50ms")
    plane = choice.of(topology)
    assert plane is not None
    assert plane.interval_ms == 50
    assert chosen(topology, None) == topology
    assert choice.of(chosen(topology, "static")) is None


def test_protocols_know_shortest_paths_only() -> None:
    assert choice.of(chosen(catalogue.load("torus:routing=shortest"), "ebgp")) is not None
    with pytest.raises(TopologyError, match="protocols find shortest paths: take"):
        chosen(catalogue.load("torus"), "ebgp")


@pytest.mark.parametrize("balance", ["round-robin", "least-loaded"])
def test_a_switch_that_knows_its_routes_beforehand_is_refused(balance: str) -> None:
    topology = chosen(catalogue.load(SMALL), "ebgp")
    with pytest.raises(UserError, match=f"balance={balance} takes the next hops .* ebgp changes"):
        check_control_plane(topology, parse_switch(f"shallow:balance={balance}"))


def test_help_knows_every_parameter() -> None:
    reported = choice.describe()
    for name, parameters in choice.PARAMETERS.items():
        assert f"\n  {name} " in reported
        assert all(f"\n  {parameter}=" in reported for parameter in parameters)


STRETCHED = "clos:segments=2,hosts=1,gpus_per_host=2,subnets=stretched"


def test_the_control_plane_of_stretched_rails_is_evpn() -> None:
    topology = chosen(catalogue.load(STRETCHED), "evpn:bfd=off")
    assert topology.profile.control_plane.startswith("evpn:bfd=off")
    for other in ("static", "ebgp", "ibgp"):
        with pytest.raises(TopologyError, match=f"control_plane is {other} and data_plane vxlan"):
            chosen(catalogue.load(STRETCHED), other)
    with pytest.raises(TopologyError, match="no subnet is stretched over switches"):
        chosen(catalogue.load(SMALL), "evpn")


def test_switches_trim_outside_of_tunnels_only() -> None:
    topology = catalogue.load(STRETCHED)
    fitted = fit(parse_switch("shallow"), topology, 1000)
    trimming = {
        str(link.b): fitted.profile(link).trims
        for link in topology.links
        if link.a.node in ("h0g0", "rail0")
    }
    assert trimming == {"rail0:down0": True, "spine0:down0": False, "spine1:down0": False}
    assert any("trimming is off on links between switches" in one for one in fitted.warnings)
    assert fit(parse_switch("deep"), topology, 1000).warnings == ()
    assert fit(parse_switch("shallow"), catalogue.load(SMALL), 1000).warnings == ()


def test_pauses_do_not_go_with_ways_that_turn_back() -> None:
    with pytest.raises(UserError, match="goes down to a switch that has the rail and from there"):
        fit(parse_switch("lossless"), catalogue.load(STRETCHED), 1000)
    all_rails = catalogue.load(STRETCHED + ",rails_per_switch=2")
    assert fit(parse_switch("lossless"), all_rails, 1000).pauses
