"""Checks of a run before it touches the kernel; each failure is one sentence."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from emulator.errors import UserError
from emulator.scenario import Trial
from emulator.sim.endpoint.operations.gpu_memory import DIRECTORY as GPU_MEMORY
from topologies.model import BACKEND, Topology
from topologies.units import format_size

#: What a run takes besides the GPUs' memory (octets): measured, rounded up.  An endpoint; the
#: runner with its interpreter, and processes that it starts.
ENDPOINT_BYTES = 2**20
#: And for each GPU that another one writes to: the PDCs or queue pairs at both ends.
PAIR_BYTES = 28 * 2**10
RUNNER_BYTES = 128 * 2**20
#: And for each operation of a schedule.
RUNNER_OPERATION_BYTES = 220
#: Operations beyond which a refusal speaks of them.
MANY_OPERATIONS = 250_000
#: Left to the rest of the machine (octets).
SPARE_BYTES = 256 * 2**20


def check_trials(lab: str, trials: Sequence[Trial], ranks: int) -> None:
    """Check that the memory of GPUs of ``lab`` is free to be had, and fits the machine."""
    if any(GPU_MEMORY.glob(f"uetemu.{lab}.*")):
        raise UserError(
            f"GPU memory of a lab named {lab} exists already in {GPU_MEMORY}; choose another --name"
        )
    for trial in trials:
        check_memory(trial.size_bytes, [trial.memory_bytes] * ranks)


def lab_name(scenario: str) -> str:
    """A name for a lab that nobody else has."""
    stem = "".join(c if c.isalnum() and c.isascii() else "-" for c in scenario.lower())
    return f"{stem.strip('-')[:15] or 'run'}-{secrets.token_hex(4)}"


@dataclass(frozen=True, kw_only=True)
class Need:
    """The machine's memory that a run takes at its peak (octets), by who takes it.

    ``gpus`` are the buffers of all GPUs, which are shared memory; ``endpoints`` and ``runner`` what
    these have for themselves.
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
) -> None:
    """Check that a trial of ``size_bytes`` with the needs of :meth:`Need.of` fits the machine."""
    need = Need.of(memory_octets, operations, pairs)
    room = shutil.disk_usage(GPU_MEMORY).free
    if need.gpus > room:
        raise UserError(
            f"a size of {format_size(size_bytes)} needs {_sized(need.gpus)} of GPU memory and "
            f"{GPU_MEMORY} has {_sized(room)} free; use smaller sizes or fewer GPUs, or mount it "
            "larger"
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
    available: int = psutil.virtual_memory().available
    return max(0, available - SPARE_BYTES)


def _sized(octets: int) -> str:
    return f"{octets / 2**30:.2f} GiB" if octets >= 10 * 2**20 else f"{octets / 2**20:.2f} MiB"
