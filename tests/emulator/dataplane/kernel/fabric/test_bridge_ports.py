"""Bridges with more ports than Linux gives them are refused in one sentence."""

import pytest

from emulator.dataplane.doctor import capabilities
from emulator.dataplane.kernel.fabric import bridge_ports
from emulator.errors import UserError
from topologies import catalogue


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        ("rail_clos:hosts=1023,gpus_per_host=1,subnet_prefix=/21", None),
        (
            "rail_clos:hosts=1024,gpus_per_host=1,subnet_prefix=/21",
            "rail0 of rail0 would have 1,024",
        ),
        ("clos:hosts=600,gpus_per_host=2,subnet_prefix=/21,vlans=off,rails_per_switch=2", None),
        (
            "clos:hosts=600,gpus_per_host=2,subnet_prefix=/21,vlans=on,rails_per_switch=2",
            "would have 1,200 ports",
        ),
    ],
)
def test_a_bridge_has_so_many_ports(
    spec: str, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capabilities, "has", lambda name: False)
    topology = catalogue.load(spec)
    if refused is None:
        bridge_ports.check(topology)
        return
    with pytest.raises(UserError, match=refused):
        bridge_ports.check(topology)
