"""Configurations as FRR is given them, line by line.

After a change that is meant, ``python -m tests.emulator.dataplane.control_plane.test_render``
writes the files anew.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.dataplane.control_plane.control_plane_choice import parse
from emulator.dataplane.control_plane.render import render
from tests import DATA
from topologies import catalogue

GOLDEN = DATA / "frr"
SMALL = "rail_clos:hosts=2,gpus_per_host=2"
DIVIDED = "clos:hosts=2,gpus_per_host=4,rails_per_switch=2,subnets=divided,subnet_prefix=25"
STRETCHED = "clos:segments=2,hosts=1,gpus_per_host=2,spines=2,subnets=stretched"
HOMED = "clos:hosts=1,gpus_per_host=2,nic_ports=2,spines=2,subnets=stretched,homing=esi"
CASES = {
    "ebgp": (SMALL, "ebgp"),
    "ebgp-hold": (SMALL, "ebgp:bfd=off,hold=3s,as=tier"),
    "ebgp-unnumbered": (SMALL, "ebgp:unnumbered=on,interval=50ms,multiplier=4"),
    "ebgp-summaries": (DIVIDED, "ebgp"),
    "ibgp": (SMALL, "ibgp"),
    "evpn": (STRETCHED, "evpn"),
    "evpn-esi": (HOMED, "evpn:bfd=off"),
}


def rendered(case: str) -> Iterator[tuple[str, str]]:
    """File name and content for a rail switch and a spine."""
    spec, written = CASES[case]
    topology, plane = catalogue.load(spec), parse(written)
    assert plane is not None
    logs = {s.name: Path("/run/uetemu/demo/frr") / s.name / "frr.log" for s in topology.switches}
    found = render(topology, plane, logs=logs)
    for switch in ("rail0", "spine1"):
        yield f"{case}-{switch}.conf", found[switch]


@pytest.mark.parametrize("case", CASES)
def test_configurations_are_what_they_were(case: str) -> None:
    for name, text in rendered(case):
        assert text == (GOLDEN / name).read_text(), name


if __name__ == "__main__":
    for each in CASES:
        for file, content in rendered(each):
            (GOLDEN / file).write_text(content)
