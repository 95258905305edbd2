"""A node of a fabric that another rank builds, on its own machine."""

from __future__ import annotations

from typing import Any

from mininet.node import Node as MininetNode

from emulator.dataplane.kernel.fabric.fabric_plan import FabricPlan
from topologies.model import Node


class AbsentNode(MininetNode):
    """The far end of cables, with a name and ports; it has no namespace, and takes every order."""

    isSetup = True  # nothing to look for
    model: Node

    def __init__(self, name: str, *, model: Node, plan: FabricPlan, **parameters: Any) -> None:
        self.lab = plan.lab
        self.model = model
        super().__init__(name, **parameters | {"inNamespace": True})

    def startShell(self, mnopts: str | None = None) -> None:
        """Make nothing."""

    def config(self, **_: Any) -> dict[str, object]:
        """Configure nothing."""
        return {}

    def start(self, controllers: object = None) -> None:
        """Bring nothing to work."""
