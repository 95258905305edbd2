"""The form of a kind of service, and all kinds by name.

A kind registers itself in a module of :mod:`emulator.cluster.services.kinds`: that is all it takes
to have a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from emulator.cluster.services import kinds
from emulator.cluster.services.machine_map import MachineMap


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
    ``parameters`` are numbers that users may change, with their defaults; times are in seconds of
    the network.  ``port`` is the TCP port at which it answers once it is ready; None: it is ready
    when it runs.
    """

    name: str
    summary: str
    network: str | None
    machines: Callable[[MachineMap], Sequence[str]]
    command: Callable[[ServicePlace], Sequence[str]]
    port: int | None = None
    programs: tuple[NeededProgram, ...] = ()
    parameters: Mapping[str, float] = field(default_factory=dict)


_KINDS: dict[str, ServiceKind] = {}


def register(kind: ServiceKind) -> ServiceKind:
    """Make ``kind`` known by its name."""
    assert kind.name not in _KINDS, kind.name
    _KINDS[kind.name] = kind
    return kind


def service_kinds() -> Mapping[str, ServiceKind]:
    """Return all kinds by name, in the order of their modules."""
    for module in iter_modules(kinds.__path__):
        import_module(f"{kinds.__name__}.{module.name}")
    return _KINDS
