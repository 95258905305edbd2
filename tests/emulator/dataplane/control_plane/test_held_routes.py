"""Routes have settled when they are those computed, while zebra is stopped; or by silence."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from emulator.dataplane.control_plane import held_routes
from emulator.dataplane.control_plane.charged_time import Broken
from emulator.dataplane.control_plane.held_routes import HeldRoutes
from emulator.dataplane.control_plane.lab_routing import Routing
from emulator.errors import UserError

CUT = Broken(dead=frozenset({"a cable"}))  # type: ignore[arg-type]
LACKING = ["rail0 has no route to 10.0.1.0/24"]


class Switches:
    """Switches whose kernels lack ``lacking`` one reading after the other, the last for ever."""

    def __init__(self, *lacking: Sequence[str], members: Sequence[str] = ()) -> None:
        self.lacking = list(lacking)
        self.steps: list[str] = []
        self.routing = SimpleNamespace(
            topology=None,
            plane=SimpleNamespace(detection_s=0.0, hold_s=0.0),
            vlans=False,
            switches={},
            differences=lambda names, expected: self.read(),
            members_of=lambda left: None,
            member_differences=lambda expected: list(members),
            await_convergence=lambda: self.steps.append("converged"),
        )

    def read(self) -> Sequence[str]:
        self.steps.append("read")
        return self.lacking.pop(0) if len(self.lacking) > 1 else self.lacking[0]


Made = Callable[[Switches], tuple[HeldRoutes, list[str]]]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Made:
    charged = SimpleNamespace(expected=lambda broken: None, left=lambda broken: None)
    monkeypatch.setattr(held_routes, "ChargedTime", lambda topology, plane, vlans: charged)
    monkeypatch.setattr(held_routes, "QUIET_S", 0.0)

    def make(switches: Switches) -> tuple[HeldRoutes, list[str]]:
        warnings: list[str] = []
        routes = HeldRoutes(cast(Routing, switches.routing), warnings.append)
        monkeypatch.setattr(routes, "hold", lambda: switches.steps.append("hold"))
        monkeypatch.setattr(routes, "release", lambda: switches.steps.append("release"))
        return routes, warnings

    return make


def test_computed_routes_are_read_again_once_they_are_held(held: Made) -> None:
    switches = Switches([])
    routes, warnings = held(switches)
    routes.settle(CUT)
    assert switches.steps == ["release", "read", "hold", "read"]
    assert not routes.judged_by_silence
    assert not warnings


def test_routes_that_change_as_they_are_held_are_waited_for_again(held: Made) -> None:
    switches = Switches([], LACKING, [])
    routes, _ = held(switches)
    routes.settle(CUT)
    assert switches.steps == ["release", "read", "hold", "read", "release", "read", "hold", "read"]
    assert not routes.judged_by_silence


@pytest.mark.parametrize("switches", [Switches(LACKING), Switches([], members=["a member"])])
def test_routes_that_never_come_are_judged_by_silence_and_named(
    held: Made, switches: Switches
) -> None:
    routes, warnings = held(switches)
    routes.settle(CUT)
    assert routes.judged_by_silence
    (warning,) = warnings
    assert "nothing has changed for 0 s of this machine" in warning
    assert warning.endswith(switches.lacking[0][0] if switches.lacking[0] else "a member")


def test_routes_that_never_stay_end_the_run(held: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_routes, "BUDGET_S", -1.0)
    routes, _ = held(Switches([], LACKING))
    with pytest.raises(UserError, match=f"has not converged after 0 s: {LACKING[0]}"):
        routes.settle(CUT)


def test_whole_fabric_waits_for_its_sessions_too(held: Made) -> None:
    switches = Switches(LACKING, [])
    routes, _ = held(switches)
    routes.begin()
    assert switches.steps == ["hold", "read", "release", "converged", "hold", "read"]
