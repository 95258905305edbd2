"""Test what agents and switches are given for a run, before any of them exists."""

from __future__ import annotations

import pytest

from emulator.run.endpoint_specs import RINGS_OCTETS, receive_slots
from emulator.sim.endpoint.endpoint_spec import EndpointSpec
from emulator.transports import default_switch
from topologies.catalogue import load

FRAME = 4_220


def test_a_receive_ring_holds_what_all_others_may_send_at_once() -> None:
    """Sixteen windows of 1.5 bandwidth-delay products, of which every packet may be trimmed."""
    few, many = (
        receive_slots(load(f"rail_clos:hosts={hosts},gpus_per_host=1,spines=1"), FRAME)
        for hosts in (2, 17)
    )
    assert few == EndpointSpec.receive_slots
    assert many > 2 * EndpointSpec.receive_slots


@pytest.mark.parametrize("hosts", [17, 64, 200])
def test_receive_rings_share_a_bounded_memory(hosts: int) -> None:
    topology = load(f"rail_clos:hosts={hosts},gpus_per_host=1,spines=1")
    slots = receive_slots(topology, FRAME)
    assert slots >= EndpointSpec.receive_slots
    least = EndpointSpec.receive_slots * FRAME * hosts
    assert slots * FRAME * hosts <= max(least, RINGS_OCTETS)


@pytest.mark.parametrize(
    ("requested", "switch"),
    [
        ("uet", "shallow"),
        ("uet:cc=nscc", "shallow"),
        ("uet:cc=rccc", "shallow:last_hop_ecn=off"),
        ("uet:cc=both", "shallow:last_hop_ecn=off"),
    ],
)
def test_where_credit_rules_the_last_hop_it_marks_nothing(requested: str, switch: str) -> None:
    """UES 3.6.14: the receiver answers for its own port."""
    assert default_switch(requested, load("rail_clos:hosts=2,gpus_per_host=1,spines=1")) == switch
