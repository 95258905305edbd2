"""What there is, by name, and the nearest name of a verb that there is not."""

import click
import pytest

from emulator import scenario
from emulator.cli.main import cli
from emulator.cluster.services.service_plan import KINDS
from emulator.dataplane.switch import switch_choice
from emulator.dataplane.switch.balancing import METHODS
from emulator.rocev2.congestion.dcqcn_parameters import NAMED
from emulator.rocev2.congestion.rate_registry import RATE_CONTROLS
from emulator.sim.endpoint.nic.nic_profile import PROFILES
from emulator.transports import TRANSPORTS
from scenarios.collectives.library import LIBRARIES
from scenarios.traces.format_registry import FORMATS
from topologies.catalogue import DESIGNS
from topologies.exports.export_registry import EXPORTS
from topologies.parts.scale_up_products import PRODUCTS
from uet.congestion.control_registry import CONTROLS
from uet.congestion.spraying.policies import SPRAYING


def test_every_name_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list"], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    named = [line.split(None, 1) for line in lines if line.startswith("  ")]
    assert [name for name, _ in named] == [
        *(*scenario.names(), *DESIGNS, *TRANSPORTS, *CONTROLS, *RATE_CONTROLS, *NAMED, *SPRAYING),
        *(*switch_choice.MEANINGS, *METHODS, *PROFILES, *PRODUCTS, *LIBRARIES),
        *(*EXPORTS, *FORMATS, *KINDS),
    ]


def test_the_nearest_verb_is_asked_for() -> None:
    with pytest.raises(click.UsageError, match=r"no verb 'rnu' \(did you mean run\?\)"):
        cli.main(["rnu"], standalone_mode=False)
