"""The form of a scenario of a whole cluster, and how one is loaded by name.

It is a module with a docstring that reads like a lab sheet and these names:

``Parameters``
    A frozen dataclass, as a scenario of a fabric has it (:mod:`emulator.scenario`).
``TOPOLOGY``
    The cluster that it runs on unless the user names another.
``SERVICES``, or ``services(parameters)``
    The services that it needs, as ``uetemu up --services`` takes them.
``conduct(run, parameters)``
    Yields the rows of the result, as mappings with a key ``what``, while it works in ``run``
    (:class:`~emulator.cluster.run.cluster_context.ClusterContext`).

Optional:

``BY_RDMA``
    The scenario of a fabric that does the same by RDMA, in virtual time, and the parameters that
    make it do so: ``("storage_rdma", {"work": "dataset"})``.
``RUN_BY_RDMA``
    The command of that, for users.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import ModuleType
from typing import TYPE_CHECKING, Any

from emulator import scenario as scenarios
from emulator.errors import UserError
from emulator.scenario import parameter_values
from topologies.advice import meant, near

if TYPE_CHECKING:
    from emulator.cluster.run.cluster_context import ClusterContext

Row = Mapping[str, object]
ROOM = "scenarios.cluster_tests"
#: The transport of a cluster's networks.
TCP = "tcp"


class ClusterScenario:
    def __init__(self, module: ModuleType, name: str) -> None:
        self.module = module
        self.name = name

    @property
    def title(self) -> str:
        """Return the first line of the docstring."""
        return (self.module.__doc__ or self.name).strip().splitlines()[0].rstrip(".")

    @property
    def topology(self) -> str:
        return str(self.module.TOPOLOGY)

    def services(self, parameters: Any) -> str:
        chosen = getattr(self.module, "services", None)
        return str(self.module.SERVICES if chosen is None else chosen(parameters))

    @property
    def by_rdma(self) -> tuple[str, Mapping[str, str]] | None:
        """Return the scenario of a fabric that does the same by RDMA, with its parameters."""
        found: tuple[str, Mapping[str, str]] | None = getattr(self.module, "BY_RDMA", None)
        return found

    def check_transport(self, transport: str) -> None:
        """Raise UserError, with the right command if there is one, unless it is TCP."""
        if transport == TCP:
            return
        command = getattr(self.module, "RUN_BY_RDMA", None)
        if command is None:
            raise UserError(f"{self.name} runs over TCP alone; leave --transport out")
        raise UserError(
            f"a cluster's networks carry TCP; by RDMA, in virtual time, run {command} "
            f"--transport {transport}"
        )

    def parameters(self, given: Mapping[str, str]) -> Any:
        """Return ``Parameters`` with the values of ``given``; UserError for what cannot be.

        A default that is a text is read as one that a user gives.
        """
        kind = self.module.Parameters
        texts = {item.name: item.default for item in fields(kind) if isinstance(item.default, str)}
        return kind(**parameter_values(kind, self.name, {**texts, **given}))

    def conduct(self, run: ClusterContext, parameters: Any) -> Iterator[Row]:
        rows: Iterator[Row] = self.module.conduct(run, parameters)
        return rows


def names() -> list[str]:
    """List the scenarios of clusters that come with uetemu."""
    room = importlib.import_module(ROOM)
    return sorted(found.name for found in pkgutil.iter_modules(room.__path__) if not found.ispkg)


def load(name: str) -> ClusterScenario:
    """Return the scenario ``name``.  Raises UserError if there is none."""
    known = names()
    if name in scenarios.names():
        raise UserError(
            f"{name} is a scenario of a fabric{meant(name, known)}; run uetemu run {name}"
        )
    if name not in known:
        raise UserError(f"there is no scenario of a cluster {name!r}{near(name, known)}")
    return ClusterScenario(importlib.import_module(f"{ROOM}.{name}"), name)
