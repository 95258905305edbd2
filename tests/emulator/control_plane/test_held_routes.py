"""Routes have settled when they are the topology's, or by silence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from emulator.control_plane import held_routes
from emulator.control_plane.charged_time import Broken
from emulator.control_plane.held_routes import HeldRoutes
from emulator.control_plane.lab_routing import Routing


@pytest.mark.parametrize(("missing", "by_silence"), [([], False), (["10.0.1.0/24"], True)])
def test_routes_that_are_not_those_expected_are_judged_by_silence(
    monkeypatch: pytest.MonkeyPatch, missing: list[str], by_silence: bool
) -> None:
    monkeypatch.setattr(held_routes, "QUIET_S", 0.0)
    charged = SimpleNamespace(expected=lambda links: None)
    monkeypatch.setattr(held_routes, "ChargedTime", lambda topology, plane: charged)
    routing = SimpleNamespace(
        topology=None,
        plane=SimpleNamespace(detection_s=0.0),
        switches={},
        has_members=False,
        differences=lambda now, expected: missing,
        member_differences=list,
    )
    warnings: list[str] = []
    routes = HeldRoutes(cast(Routing, routing), warnings.append)
    routes.settle(Broken(dead=frozenset({"a cable"})))  # type: ignore[arg-type]
    assert routes.judged_by_silence == by_silence
    assert len(warnings) == by_silence
