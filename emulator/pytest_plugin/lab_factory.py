"""Labs of a test: built as ``uetemu up`` builds them, and removed, verifiably, behind the test."""

from __future__ import annotations

import secrets
from contextlib import ExitStack

from emulator.cli.labs.up_verb import DEFAULT_DILATION
from emulator.dataplane import cleanup, homing
from emulator.dataplane.control_plane import control_plane_choice as control_plane
from emulator.dataplane.fabric_choice import FabricChoice, choose
from emulator.dataplane.kernel.fabric.cable_delay import for_kernel_traffic
from emulator.dataplane.lab import Lab
from emulator.dataplane.switch import switch_choice
from emulator.errors import UserError
from emulator.pytest_plugin.kept_labs import LABS
from emulator.pytest_plugin.lab_life import built
from emulator.run.plan.run_plan import usual_switch
from emulator.run.plan.variants import DEFAULT_TRANSPORT
from topologies.model import Topology


class LabFactory:
    """Builds labs of random names; ``topology`` is that of the test's mark."""

    def __init__(self, topology: str | None = None) -> None:
        self._topology = topology
        self._names: list[str] = []
        self._stack = ExitStack()

    def __call__(self, topology: str | Topology | None = None, **settings: object) -> Lab:
        """Build a lab; ``settings`` are those of :meth:`emulator.dataplane.lab.Lab.create`.

        Without ``topology`` it is the one that the test is marked with.  Settings that are left out
        are those of ``uetemu up``: a fabric profile says its switches and its control plane.
        """
        asked = topology or self._topology
        if asked is None:
            raise UserError(
                'no topology: mark the test, as @pytest.mark.uetemu_topology("rail_clos"), or '
                'name one, as uetemu_lab("rail_clos")'
            )
        if isinstance(asked, Topology):
            chosen = FabricChoice(spec=asked.name, label=asked.name, topology=asked)
        else:
            chosen = choose(asked)
        model = control_plane.chosen(homing.resolved(chosen.topology, None)[0], None)
        if "switch" not in settings:
            switch = usual_switch(chosen.transport or DEFAULT_TRANSPORT, model, chosen)
            asic = switch_choice.requested(switch)
            nic = asic is not None and asic.pausing
            settings = {
                "switch": asic, "cable_delay": "nic" if nic else for_kernel_traffic(),
            } | settings  # fmt: skip
        name = f"t{secrets.token_hex(5)}"
        self._names.append(name)
        usual = {"dilation": DEFAULT_DILATION, "seed": 1, "spec": chosen.spec}
        return self._stack.enter_context(built(name, model, **usual | settings))

    def remove(self) -> None:
        """Remove all labs; AssertionError if something of one was left."""
        self._stack.close()
        left = [name for name in self._names if name not in LABS.kept and cleanup.exists(name)]
        for name in left:
            cleanup.take_down(name, force=True)
        if left:
            raise AssertionError(f"something was left of {', '.join(left)}")
