"""Checks of a run before it touches the kernel; each failure is one sentence."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from emulator.dataplane.switch.bpf.layout import TrafficClass
from emulator.dataplane.switch.code_points import LAB
from emulator.dataplane.switch.parameters import CLASS_NAMES, DSCP, ECN, PARAMETERS, TRIM
from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.dataplane.switch.switch_profile import TRIMMED_NAMES, named
from emulator.errors import UserError
from emulator.machine_memory import machine_memory
from emulator.run.plan.stages import StageChoice
from emulator.scenario import Trial
from emulator.sim.endpoint.operations.gpu_memory import DIRECTORY as GPU_MEMORY
from emulator.transports.transport_choice import TransportChoice
from topologies.model import BACKEND, Topology
from topologies.units import format_size

#: What a run takes besides the GPUs' memory (octets): measured, rounded up.  An endpoint; the
#: runner with its interpreter, and processes that it starts.
ENDPOINT_BYTES = 2**20
#: And for each GPU that another one writes to: the PDCs or queue pairs at both ends.
PAIR_BYTES = 28 * 2**10
RUNNER_BYTES = 88 * 2**20
#: And for each operation of a schedule.
RUNNER_OPERATION_BYTES = 220
#: Operations beyond which a refusal speaks of them.
MANY_OPERATIONS = 250_000
#: Left to the rest of the machine (octets).
SPARE_BYTES = 256 * 2**20


def check_trials(lab: str, trials: Sequence[Trial], ranks: int, *, shared: bool = True) -> None:
    """Check that the memory of GPUs of ``lab`` is free to be had, and fits the machine.

    ``shared``: workers may share it.
    """
    if any(GPU_MEMORY.glob(f"uetemu.{lab}.*")):
        raise UserError(
            f"GPU memory of a lab named {lab} exists already in {GPU_MEMORY}; choose another --name"
        )
    for trial in trials:
        check_memory(trial.size_bytes, [trial.memory_bytes] * ranks, shared=shared)


def lab_name(scenario: str) -> str:
    """A name for a lab that nobody else has."""
    stem = "".join(c if c.isalnum() and c.isascii() else "-" for c in scenario.lower())
    return f"{stem.strip('-')[:15] or 'run'}-{secrets.token_hex(4)}"


@dataclass(frozen=True, kw_only=True)
class Need:
    """The machine's memory that a run takes at its peak (octets), by who takes it.

    ``gpus`` are the buffers of all GPUs; ``endpoints`` and ``runner`` what these have for
    themselves.
    """

    gpus: int
    endpoints: int
    runner: int

    @classmethod
    def of(
        cls,
        memory_octets: Sequence[int],
        operations: int = 0,
        pairs: int = 0,
    ) -> Need:
        """``memory_octets`` are the buffers of each GPU, ``operations`` those of all schedules.

        ``pairs`` are those of a GPU and one that it writes to over the fabric.
        The runner makes what goes into the buffers of one GPU at a time, or should come out.
        """
        return cls(
            gpus=sum(memory_octets),
            endpoints=ENDPOINT_BYTES * len(memory_octets) + PAIR_BYTES * pairs,
            runner=RUNNER_BYTES
            + max(memory_octets, default=0)
            + RUNNER_OPERATION_BYTES * operations,
        )

    @property
    def total(self) -> int:
        return self.gpus + self.endpoints + self.runner

    def __str__(self) -> str:
        return (
            f"{_sized(self.total)} of memory ({_sized(self.gpus)} for GPU buffers, "
            f"{_sized(self.endpoints)} for endpoints, {_sized(self.runner)} for the runner)"
        )


def check_network(topology: Topology) -> None:
    """Raise UserError if ``topology`` is another network of a cluster than its backend."""
    if topology.network != BACKEND:
        raise UserError(
            f"{topology.name} is the {topology.network} network of a cluster, which carries TCP on "
            "the host's clock; give the cluster itself, whose backend carries runs, or "
            "cluster_storage for RDMA over a storage network"
        )


def check_endpoints(ranks: int) -> None:
    """Check that an endpoint for each of ``ranks`` GPUs fits the machine, before it has work."""
    requested, available = ENDPOINT_BYTES * ranks, _available()
    if requested > available:
        raise UserError(
            f"the endpoints of {ranks} GPUs need {_sized(requested)} of memory and the machine has "
            f"{_sized(available)} to give; use fewer GPUs"
        )


def check_memory(
    size_bytes: int,
    memory_octets: Sequence[int],
    operations: int = 0,
    pairs: int = 0,
    *,
    shared: bool = True,
) -> None:
    """Check that a trial of ``size_bytes`` with the needs of :meth:`Need.of` fits the machine.

    ``shared``: workers may share the GPUs' memory.
    """
    need = Need.of(memory_octets, operations, pairs)
    if shared and need.gpus > (room := shutil.disk_usage(GPU_MEMORY).free):
        raise UserError(
            f"a size of {format_size(size_bytes)} needs {_sized(need.gpus)} of GPU memory and "
            f"{GPU_MEMORY} has {_sized(room)} free; use smaller sizes or fewer GPUs, mount it "
            "larger, or take --workers 1, which leaves it alone"
        )
    available = _available()
    if need.total > available:
        pieces = f", or larger messages: its schedules have {operations} operations"
        raise UserError(
            f"a size of {format_size(size_bytes)} needs {need} and the machine has "
            f"{_sized(available)} to give; use smaller sizes or fewer GPUs"
            f"{pieces if operations > MANY_OPERATIONS else ''}"
        )


def _available() -> int:
    return max(0, machine_memory().available - SPARE_BYTES)


def _sized(octets: int) -> str:
    return f"{octets / 2**30:.2f} GiB" if octets >= 10 * 2**20 else f"{octets / 2**20:.2f} MiB"


class Used(Protocol):
    """A transport on a switch."""

    @property
    def transport(self) -> TransportChoice: ...

    @property
    def switch(self) -> SwitchChoice | None: ...


def check_use(asked: str | None, stages: Sequence[Used]) -> None:
    """Raise UserError for a parameter of the user's switch ``asked`` that no stage has a use for.

    The stages are those that run on it.
    """
    switches = [(one.transport, one.switch) for one in stages if one.switch is not None]
    if asked is None or not switches:
        return
    useless: dict[str, tuple[str, str]] = {}
    used = set()
    for key, value in StageChoice.parse(asked).options:
        reasons = [_useless(key, value, *one) for one in switches]
        if all(reasons):
            useless[f"{key}={value}"] = _kind(key), str(reasons[0])
        else:
            used.add(_kind(key))
    for parameter, (kind, reason) in useless.items():
        if kind not in used:
            raise UserError(f"{parameter} of the switch has no effect here: {reason}")


def _kind(key: str) -> str:
    """Return what ``key`` has in common with the same of other classes, or code points."""
    name, dot, rule = key.partition(".")
    return name if f"{name}{dot}" == DSCP else rule or name


def _useless(key: str, value: str, transport: TransportChoice, switch: SwitchChoice) -> str | None:
    """Return why ``key`` has no effect, and what would do; None if it can have one."""
    classes = _classes(switch, transport.code_points)
    marked = _classes(switch, (point for point, ecn in transport.code_points.items() if ecn))
    data = [name for name in CLASS_NAMES[:3] if name in classes]
    trimmed = switch.trims and not classes.isdisjoint(TRIMMED_NAMES)
    if trimmed:
        classes, marked = classes | {"trimmed"}, marked | {"trimmed"}
    whose = f"transport {transport.name}"
    instead = " or ".join(data)
    name, dot, rule = key.partition(".")
    if f"{name}{dot}" == DSCP:
        written = {LAB.trimmed, LAB.trimmed_last_hop} if trimmed else set()
        if int(rule) in {*transport.code_points, *written}:
            return None
        points = ", ".join(map(str, sorted(transport.code_points)))
        return f"packets of {whose} have the code points {points}"
    if dot and name not in classes:
        if name == "trimmed":
            return f"no packet of {whose} is trimmed on this switch"
        return f"{whose} sends no packet of class {name}; write {instead}.{rule}"
    mechanism = PARAMETERS[key].of
    if mechanism == ECN and name not in marked:
        return (
            f"packets of class {name} that {whose} sends are not ECN-capable; write "
            f"{instead}.{rule}"
        )
    if (mechanism == TRIM or (key == TRIM and value == "on")) and not trimmed:
        return f"no packet of {whose} is trimmed on this switch; its data are of class {instead}"
    return None


def _classes(switch: SwitchChoice, code_points: Iterable[int]) -> set[str]:
    """Return the names of the classes that packets of ``code_points`` have."""
    moved = {key: queue for key, queue in switch.changes.items() if key.startswith(DSCP)}
    profile = named(switch.profile, bdp_bytes=1 << 20, mtu=1500, code_points=LAB, changes=moved)
    table = profile.classes()
    return {TrafficClass(table[point]).name.lower() for point in code_points}
