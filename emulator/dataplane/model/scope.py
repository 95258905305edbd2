"""Fabrics and runs that the model has, and a sentence for each that it lacks."""

from __future__ import annotations

from emulator.dataplane.switch.bpf.layout import Balancing
from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.errors import UserError
from topologies.model import Topology
from topologies.routing.static_routes import static_routes

_REMEDY = "leave --fabric model out (which takes root), or {}"


def check_topology(topology: Topology) -> None:
    """Raise UserError, one sentence, unless the model has ``topology``."""
    if any(switch.vrfs for switch in topology.switches):
        _refuse("has no VRFs, and tenants have routes of their own", "take a fabric without them")


def check(topology: Topology, switch: SwitchChoice | None) -> None:
    """Raise UserError, one sentence, unless the model has ``topology`` with ``switch``.

    ``switch`` None: switches without ASIC.
    """
    check_topology(topology)
    if (switch is None or switch.method is Balancing.KERNEL) and _has_choices(topology):
        how = "--switch none" if switch is None else "balance=kernel"
        _refuse(
            f"does not hash as the kernel does, and with {how} the kernel spreads over several "
            "next hops",
            "take another balance, such as flow",
        )


def check_convergence(*, repeatable: bool) -> None:
    """Raise UserError for a time of convergence that is measured, and so not ``repeatable``."""
    if not repeatable:
        _refuse("runs no routing daemons to measure", "take --convergence computed or a time")


def has(feature: str) -> bool:
    """Return whether the model has ``feature`` of a kernel for what ``auto`` decides on: no.

    So what ``auto`` takes does not depend on the machine.
    """
    return False


def _has_choices(topology: Topology) -> bool:
    routes = static_routes(topology)
    return any(len(route.hops) > 1 for one in topology.switches for route in routes[one.name])


def _refuse(what: str, remedy: str) -> None:
    raise UserError(f"--fabric model {what}: {_REMEDY.format(remedy)}")
