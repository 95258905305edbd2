"""The form of a kind of service, and all kinds by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.cluster.services.machine_map import MachineMap
from topologies.registry import Registry


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


KINDS: Registry[ServiceKind] = Registry("service", "emulator.cluster.services.kinds")
