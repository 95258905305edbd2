"""Fabrics that the model lacks are refused with one sentence."""

import pytest

from emulator.dataplane.kinds import KINDS
from emulator.errors import UserError
from topologies import catalogue
from topologies.elements import FRONTEND


def test_routes_of_tenants_are_refused() -> None:
    frontend = catalogue.load("cluster:hosts=2,tenants=2").network_named(FRONTEND)
    with pytest.raises(UserError, match="--fabric model has no VRFs"):
        KINDS["model"].check_topology(frontend)


def test_stretched_rails_are_modelled() -> None:
    KINDS["model"].check_topology(catalogue.load("clos:segments=2,subnets=stretched"))
