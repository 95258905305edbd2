"""Data that go through host memory, as without GPUDirect RDMA (``--gpu-direct off``).

::

    GPU --copy--> host memory --fetch--> NIC ~~ fabric ~~> NIC --> host memory --copy--> GPU

Each write is copied whole before its NIC hears of it, and whole again before its GPU knows of it:
NCCL's proxy waits for a step in the same way.  GPU and NIC stand behind one PCIe switch, as in
servers where GPUDirect counts (NVIDIA/nccl#465).  All that a GPU sends, and all that it receives,
crosses the way from there to the CPU once in each direction, so that both share its rate.  The
copies of a GPU take turns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from emulator.errors import UserError
from emulator.sim.endpoint.nic.nic_profile import NO_TIMES, PCIE5, READ_NS, NicTimes
from topologies.units import UnitError, parse_rate

#: The word for NICs that reach the memory of GPUs.
ON: Final = "on"
_OFF: Final = "off"
_HOW: Final = "write on, off, or for example off:hosts=h0+h3,rate=307Gbps"


@dataclass(frozen=True)
class HostStaging:
    """The servers ``hosts`` without GPUDirect (none: all), and the rate that a GPU's copies share.

    The rate is that of PCIe 5.0 x16 unless the user knows a slower host memory.
    """

    rate_bps: int = PCIE5.value
    hosts: tuple[str, ...] = ()

    def check(self, servers: Collection[str]) -> None:
        """Raise UserError for hosts that are not among ``servers``."""
        if unknown := sorted(set(self.hosts).difference(servers)):
            raise UserError(
                f"--gpu-direct names {unknown[0]}, no server of this topology; it has "
                f"{', '.join(list(servers)[:8])}"
            )

    def times(self, nic: NicTimes | None, server: str | None) -> NicTimes | None:
        """Return the times of ``nic`` in ``server``, where data go through host memory or not."""
        if self.hosts and server not in self.hosts:
            return nic
        return replace(nic or NO_TIMES, staging_bps=self.rate_bps, staging_ns=READ_NS.value)


def parse(text: str) -> HostStaging | None:
    """Return what ``--gpu-direct`` says; None: NICs reach the memory of GPUs.

    Raises UserError, which says how it is written.
    """
    word, _, rest = text.partition(":")
    if text == ON:
        return None
    if word != _OFF:
        raise UserError(f"--gpu-direct is {text!r}; {_HOW}")
    given = dict(item.partition("=")[::2] for item in rest.split(",") if item)
    rate, hosts = given.pop("rate", ""), given.pop("hosts", "")
    if given:
        raise UserError(f"--gpu-direct off has no parameter {min(given)!r}; {_HOW}")
    try:
        rate_bps = parse_rate(rate) if rate else PCIE5.value
    except UnitError as error:
        raise UserError(f"--gpu-direct: rate: {error}") from None
    if not rate_bps:
        raise UserError(f"--gpu-direct: rate is 0, which copies nothing; {_HOW}")
    return HostStaging(rate_bps, tuple(filter(None, hosts.split("+"))))


def stated(text: str) -> str:
    """Return what a run's table says of ``--gpu-direct``; nothing where NICs reach GPU memory."""
    staging = parse(text)
    if staging is None:
        return ""
    whose = f" of {', '.join(staging.hosts)}" if staging.hosts else ""
    return (
        f"; data{whose} go through host memory at {staging.rate_bps / 1e9:g} Gb/s, both ways "
        "together (--gpu-direct off)"
    )
