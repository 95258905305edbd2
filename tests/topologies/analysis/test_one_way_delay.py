"""The longest one-way delay of an idle fabric, by hand, and its bounds."""

import pytest

from topologies import catalogue
from topologies.analysis import one_way_delay
from topologies.analysis.one_way_delay import OneWayDelay, one_way_delays


def scale_out(spec: str, *, bound_ns: int = 10_000, latency_ns: int = 0) -> OneWayDelay:
    topology = catalogue.load(spec).with_switch_latency(latency_ns)
    return next(iter(one_way_delays(topology, bound_ns, 1_000)))


def test_cables_switches_and_sending_add_up() -> None:
    found = scale_out("rail_clos:mtu=1462,nic_rate=100Gbps,uplink_rate=400Gbps", latency_ns=500)
    # four cables of 600 ns, three switches, 1500 octets twice at 100 Gb/s and twice at 400 Gb/s
    assert found.delay_ns == 4 * 600 + 3 * 500 + 2 * 120 + 2 * 30
    assert found.warning is None
    assert "h0g0 - rail0 - spine0 - rail1 - h0g1" in str(found)


def test_the_longest_path_is_that_of_the_routing_in_force() -> None:
    minimal = scale_out("dragonfly:groups=5,routing=minimal")
    valiant = scale_out("dragonfly:groups=5,routing=valiant")
    assert valiant.delay_ns > minimal.delay_ns


def test_gpus_of_one_switch_alone_have_a_path() -> None:
    assert scale_out("nic_per_gpu:mtu=1462").delay_ns == 2 * 600 + 2 * 60


def test_large_fabrics_are_looked_at_from_some_places(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scale_out("torus:x=3,y=3")
    monkeypatch.setattr(one_way_delay, "MOST_PLACES", 0)
    part = scale_out("torus:x=3,y=3")
    assert part.delay_ns == whole.delay_ns
    assert "from 3 of 9 places" in str(part)
    assert "places" not in str(whole)


def test_what_exceeds_its_bound_says_by_how_much() -> None:
    warning = scale_out("rail_clos", bound_ns=3_000).warning
    assert warning is not None
    assert "scale-out network is 3.123 us, 123 ns above the bound of 3 us" in warning


@pytest.mark.parametrize(("latency", "above"), [("1us", False), ("1.2us", True)])
def test_scale_up_networks_have_their_own_bound(latency: str, above: bool) -> None:
    *_, found = one_way_delays(
        catalogue.load(f"rail_clos:scale_up_latency={latency}"), 10**4, 10**3
    )
    assert found.name == "scale-up"
    assert (found.warning is not None) == above


def test_rails_that_nothing_joins_and_other_networks_have_none() -> None:
    cluster = catalogue.load("cluster")
    assert not list(one_way_delays(cluster.network_named("frontend"), 0, 0))
    alone = catalogue.load("rail_only:hosts=1")
    assert [one.name for one in one_way_delays(alone, 10**4, 10**3)] == ["scale-up"]
