"""The services that a user requests, checked before anything is built.

::

    all                       every kind whose programs are there, where it runs by default
    files,dns                 these kinds
    files@h0+h1               that kind, on these machines
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.cluster.services.machine_map import MachineMap
from emulator.errors import UserError
from topologies.advice import near
from topologies.model import TopologyError
from topologies.registry import Registry, parameter_fields


@dataclass(frozen=True, kw_only=True)
class NeededProgram:
    """A program that a service needs, and the package of Debian's, or of PyPI, that has it.

    ``provisioned``: it comes with the installer's ``--with cluster``.
    """

    command: str
    package: str
    provisioned: bool = True

    @property
    def advice(self) -> str:
        """Return how to install it, as an imperative."""
        if self.provisioned:
            return "run vagrant/provision.sh --with cluster"
        return f"install Debian's package {self.package}"


@dataclass(frozen=True, kw_only=True)
class ServicePlace:
    """One service of a machine: where it runs and what it can see.

    ``directory`` is its own, for configuration and data; it goes with the lab.  ``address`` is that
    of the machine in the service's network, and ``dilation`` that network's, 1 where it has none.
    """

    cluster: str
    machine: str
    address: str
    directory: Path
    machines: MachineMap
    seed: int
    dilation: float
    parameters: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class ServiceKind:
    """A kind of service.

    ``machines`` chooses where it runs unless the user says.  ``command`` writes what the service
    reads into its directory, and returns what to run; the process must stay in the foreground.  A
    kind without a ``network`` listens at no address, and may run on switches too.
    ``parameters`` is the dataclass of numbers that users may change; times are in seconds of the
    network.  ``port`` is the TCP port at which it answers once it is ready; None: it is ready
    when it runs.
    """

    name: str
    meaning: str
    network: str | None
    machines: Callable[[MachineMap], Sequence[str]]
    command: Callable[[ServicePlace], Sequence[str]]
    port: int | None = None
    programs: tuple[NeededProgram, ...] = ()
    parameters: type | None = None


KINDS: Registry[ServiceKind] = Registry("service", "emulator.cluster.services", ending="kinds")


ALL, NONE = "all", "none"


@dataclass(frozen=True, kw_only=True)
class PlannedService:
    """One service to be started: its kind, its machine, and the address there."""

    kind: ServiceKind
    machine: str
    address: str
    parameters: Mapping[str, float]

    @property
    def name(self) -> str:
        """Return what the service is called: ``files@head0``."""
        return f"{self.kind.name}@{self.machine}"


def plan_services(
    text: str, machines: MachineMap, changed: Iterable[str] = ()
) -> tuple[PlannedService, ...]:
    """Return the services of ``text``, in the order of the kinds.

    ``changed`` are parameters, each as ``SERVICE.NAME=NUMBER``.

    Raises UserError for a kind, a machine or a parameter that is not there, a machine that is not
    in the service's network, or a program that is missing.
    """
    kinds = KINDS
    parameters = _parameters(kinds, changed)
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == [NONE] or not words:
        return ()
    if words == [ALL]:
        words = [name for name, kind in kinds.items() if not missing(kind)]
    placed: dict[str, list[str]] = {}
    for word in words:
        name, at, where = word.partition("@")
        if name not in kinds:
            raise UserError(f"there is no service {name!r}{near(name, kinds)}")
        if name in placed:
            raise UserError(f"service {name} is given twice: join its machines by +")
        chosen = where.split("+") if at else list(kinds[name].machines(machines))
        placed[name] = list(dict.fromkeys(chosen))
    found = []
    for name, names in placed.items():
        kind = kinds[name]
        if not names:
            raise UserError(
                f"no machine here has a place for service {name}; take it out, or a cluster that "
                "has one"
            )
        for machine in names:
            try:
                address = _address(kind, machine, machines)
            except TopologyError as error:
                raise UserError(f"service {name}: {error}") from None
            found.append(
                PlannedService(
                    kind=kind, machine=machine, address=address, parameters=parameters[name]
                )
            )
        for program in missing(kind):
            raise UserError(
                f"service {name} needs {program.command}, which is not installed: "
                f"{program.advice}, or leave the service out"
            )
    return tuple(found)


def _parameters(
    kinds: Mapping[str, ServiceKind], changed: Iterable[str]
) -> dict[str, dict[str, float]]:
    """Return the parameters of every kind, with those that ``changed`` sets."""
    found: dict[str, dict[str, Any]] = {
        name: {item.name: item.default for item in parameter_fields(kind.parameters)}
        for name, kind in kinds.items()
    }
    for word in changed:
        where, equals, value = (part.strip() for part in word.partition("="))
        name, _, key = where.partition(".")
        if not equals or key not in found.get(name, {}):
            known = [f"{kind}.{one}" for kind, keys in found.items() for one in keys]
            raise UserError(
                f"{word!r} is no parameter of a service as SERVICE.NAME=NUMBER; there are "
                f"{', '.join(known)}"
            )
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise UserError(f"{where} is {value!r}; it is a number of 0 or more")
        found[name][key] = number
    return found


def missing(kind: ServiceKind) -> tuple[NeededProgram, ...]:
    return tuple(one for one in kind.programs if shutil.which(one.command) is None)


def _address(kind: ServiceKind, machine: str, machines: MachineMap) -> str:
    """Return the address of ``machine`` in the network of ``kind``, empty if that has none."""
    if kind.network is not None:
        return machines.address(machine, kind.network)
    nodes = machines.nodes()
    if machine not in nodes:
        raise TopologyError(f"there is no node {machine!r}; there are {', '.join(nodes)}")
    return ""
