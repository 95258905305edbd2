"""Every parameter of every design changes the fabric, or is refused: none is silent."""

import dataclasses
from collections.abc import Mapping

import pytest

from topologies.catalogue import DESIGNS, build
from topologies.model import Topology, TopologyError
from topologies.parts.design import Parameter
from topologies.parts.design_parameters import AUTO, ParameterKind, WordKind

#: What may change nothing, and why that is right.
REASONS: Mapping[str, str] = {
    "switch_ports": "it refuses what has no room",
    "rails_per_switch": "a server may have fewer rails",
    "homing=bond": "what auto is where NICs have two ports",
}


def others(parameter: Parameter) -> list[str]:
    """Return values beside the default; texts are read by the designs, whose tests have them."""
    kind = parameter.kind
    if isinstance(kind, WordKind):
        return [word for word in kind.words if word not in (parameter.default, AUTO)]
    if not isinstance(kind, ParameterKind):
        return []
    if parameter.default == AUTO:
        numbers = {2, 3, 4, 8, 10**11}
    else:
        usual = kind.read(parameter.name, parameter.default)
        numbers = {usual + 1, 2 * usual, usual // 2} - {usual}
    return [kind.format(one) for one in sorted(numbers) if kind.minimum <= one <= kind.maximum]


def drawing(topology: Topology) -> Topology:
    return dataclasses.replace(topology, parameters={})


@pytest.mark.parametrize("design", DESIGNS)
def test_a_parameter_of_a_design_is_not_silent(design: str) -> None:
    usual = build(design, {})
    silent = []
    for parameter in DESIGNS[design].fields.values():
        name = parameter.name
        for value in others(parameter):
            given = f"{name}={value}"
            try:
                built = build(design, {name: value})
            except TopologyError:
                continue
            states_the_default = built.parameters[name] == usual.parameters[name]
            if drawing(built) == drawing(usual) and not states_the_default:
                silent += [given] if not {name, given} & set(REASONS) else []
    assert silent == []


@pytest.mark.parametrize(
    ("design", "given", "needed"),
    [
        ("rail_clos", {"spines": "0", "uplink_rate": "800Gbps"}, "spines"),
        ("rail_clos", {"pcie_rate": "128Gbps"}, "gpus_per_nic=2 or more"),
        ("rail_clos", {"subnets": "divided"}, "several rails on a switch (rails_per_switch)"),
        ("pod", {"super_rate": "1.6Tbps"}, "super_spines"),
        ("pod", {"nic_ports": "1", "planes": "own"}, "spines, and nic_ports=2 or more"),
        ("torus", {"pair_cables": "2"}, "a dimension of 2 (x, y or z)"),
        ("cluster", {"networks": "storage", "tenants": "3"}, "networks=frontend"),
        ("cluster", {"networks": "frontend", "storage_rate": "1Tbps"}, "networks=storage"),
        ("cluster", {"tenants": "0", "router_vni": "7"}, "tenants"),
        ("cluster", {"isolation": "filter", "router_vni": "7"}, "VRFs (isolation=vrf or netns)"),
    ],
)
def test_a_parameter_without_effect_is_refused_with_what_it_needs(
    design: str, given: dict[str, str], needed: str
) -> None:
    with pytest.raises(TopologyError) as refused:
        build(design, given)
    name = [*given][-1]
    assert str(refused.value).startswith(f"{name} is ")
    assert f"changes nothing: it needs {needed}; leave it out" in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"spines": "0", "uplink_rate": "400Gbps", "uplink_delay": "600ns", "planes": "shared"},
        {"uplink_rate": "800Gbps", "super_rate": "800Gbps", "uplinks_per_spine": "2"},
        {"uplinks_per_spine": "auto", "homing": "auto", "vlans": "auto"},
    ],
)
def test_what_the_default_is_may_be_stated(given: dict[str, str]) -> None:
    assert build("rail_clos", given).parameters["pcie_rate"] == 256 * 10**9
