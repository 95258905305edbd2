"""Libraries of collectives: what a GPU takes for the launch of one, and for each of its steps.

By default GPUs take no time.  With ``library=nccl`` or ``rccl`` they take what the tuning tables of
that library give for the protocol that it chooses (LL, LL128, Simple).  A table's time of a step
has the networks in it, so that what uetemu takes for those itself is left out: the scale-up
latency, half a round trip of the fabric, and in the endpoint the time of NICs (``--nic``).

The channels of a GPU together move data at ``rate`` times the factor of algorithm and protocol,
one slice behind the other.  One channel alone is slower: a step of the protocol Simple takes as
long as its channel does for a slice, whose size is the library's for algorithm and size::

    ring   chunk = least of 4 steps of the buffer, and a rank's share of a channel; slice = half
    tree   chunk = 1 step of the buffer, halved while few are in a channel; slice = chunk

With LL and LL128 a thread sends on what it has, slice or not.  RCCL's trees send nothing down with
Simple before all has come up (its ``runTreeUpDown``); NCCL's do both at once (``runTreeSplit``).
The eight steps of a channel's buffer do not bind: 4 MiB each in 16 or 64 channels are more than a
NIC sends in any round trip here.  Corrections by size are left out.

Sources: NVIDIA/nccl 5067397c (2026-06) and ROCm/rccl 0cbce2a7 (2024-10), ``src/graph/tuning.cc``:
``baseLat``, ``hwLat`` of NVLink and network (RCCL's ``tuning_model_5``, of MI300X, which has no
LL128), and the factors of bandwidth in the code, RCCL's own of which are no ratio of protocols.
``buffSizes`` (``src/init.cc``), ``NCCL_STEPS``, ``SLICESTEPS`` and ``CHUNKSTEPS``, and chunks by
size (``src/enqueue.cc``, ``computeCollChunkInfo``; those of trees are in NCCL up to 2.21).
What both choose rings by is more than a step takes: the overhead of the network at each step (1 us
with Intel's processors, 2 with AMD's, three times as much for Simple), and RCCL's 320 us for a step
between hosts, which hold rings back from sizes below hundreds of MiB.  A step itself takes
``hwLat``, and for those 320 us what one of a tree does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from emulator.errors import UserError
from emulator.sim.endpoint.operations.gpu_time import GpuTime
from scenarios.collectives.communicators import Communicator
from scenarios.collectives.tuning import (
    AUTO,
    OURS,
    Choice,
    ProtocolModel,
    Tuning,
    choose_allreduce,
)
from topologies.analysis.round_trip import ACK_BYTES, base_rtt_ns
from topologies.model import Topology

NO_LIBRARY: Final = "none"
#: NCCL's NVLS and NVLSTree, which our algorithm of this name is.
NVLS: Final = "nvls"
#: Octets of one of the eight steps (NCCL_STEPS) of a channel's buffer of 4 MiB.
_STEP: Final = 2**22 // 8
#: Octets of NVLS's buffer in one channel of a head: eight steps of NCCL_NVLS_CHUNKSIZE.
_NVLS_BUFFER: Final = 8 * 2**17
#: Trees have this share of a ring's bandwidth, and LL and LL128 a share of that.
_TREE = 0.92 * 0.85
_NCCL: Tuning = {
    "ring": {
        "LL": ProtocolModel(6.6, 2.7, 1.0, 0.5),
        "LL128": ProtocolModel(14.0, 4.0, 1.9, 0.92),
        "Simple": ProtocolModel(8.4, 14.0, 3.4, 1.0),
    },
    "tree": {
        "LL": ProtocolModel(6.8, 5.0, 0.6, _TREE / 3.8),
        "LL128": ProtocolModel(14.0, 8.5, 1.25, _TREE * 120 / 128),
        "Simple": ProtocolModel(8.4, 14.0, 4.0, _TREE),
    },
}
_RCCL: Tuning = {
    "ring": {
        "LL": ProtocolModel(12.0, 9.5, 2.0, 0.5),
        "Simple": ProtocolModel(17.0, 320.0, 6.0, 1.0),
    },
    "tree": {
        "LL": ProtocolModel(12.0, 10.5, 0.9, _TREE / 3.8),
        "Simple": ProtocolModel(17.0, 25.0, 2.3, _TREE),
    },
}


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library: the ``tuning`` that it chooses by, and the times of ``steps`` where they differ.

    ``launch_us`` is what a launch takes beyond the table's ``base_us``, and ``rate`` what all
    channels of a GPU move with the protocol Simple, in GB/s: the bus bandwidth of a ring with
    sizes of GiB, where the GPU bounds it.  ``fitted`` names the measurements that they are from.
    There are ``channels``, one of which alone moves ``channel_rate`` (GB/s).  With protocols of
    ``up_then_down`` a tree sends nothing down before all has come up it.  ``nvls_rates`` are those
    of :data:`NVLS`, as ``rate``, in one server, in two and in more, if the library has it.
    """

    tuning: Tuning
    steps: Mapping[tuple[str, str], ProtocolModel]
    launch_us: float
    rate: float
    fitted: str
    channels: int
    channel_rate: float
    up_then_down: frozenset[str] = frozenset()
    nvls_rates: tuple[float, float, float] | None = None

    def step(self, algorithm: str, protocol: str) -> ProtocolModel:
        """Return the constants of a step of ``algorithm`` (ring, tree or nvls)."""
        known = self.steps.get((algorithm, protocol))
        return self.tuning[algorithm][protocol] if known is None else known


LIBRARIES: Mapping[str, Library] = {
    "nccl": Library(
        tuning=_NCCL,
        steps={
            ("ring", "LL"): replace(_NCCL["ring"]["LL"], nvlink_us=0.6),
            # The way up to the switch and down again takes 25 us together.
            (NVLS, "Simple"): ProtocolModel(0.0, 20.9, 12.5, 1.0),
        },
        launch_us=0.0,
        rate=368.76,
        fitted="rate: 2 x 8 H100 without NVLS, AllReduce of GiB (hardware point 8.15)",
        # A log of 3 x 8 H100 (NVIDIA/nccl#1453).
        channels=16,
        # The rate, by as many channels.
        channel_rate=23.05,
        # Eight heads of a server of H100.  Each has the least of 40 GB/s (sm90SpeedArrayIntra) x
        # 0.85 (nvlsEfficiency) x 7/8 x 2; between servers perChMaxNVLSTreeBws, 57.7 and 45.5.
        nvls_rates=(476.0, 461.6, 364.0),
    ),
    "rccl": Library(
        tuning=_RCCL,
        steps={
            ("ring", "LL"): replace(_RCCL["ring"]["LL"], nvlink_us=0.8),
            ("ring", "Simple"): replace(_RCCL["ring"]["Simple"], network_us=25.0, nvlink_us=2.1),
        },
        launch_us=9.48,
        # ROCm/rocm-systems#9764: between servers MI350X had 64 before RCCL 2.30.4.
        channels=64,
        # A guess: what NCCL's table has for a tree on A100, 23.6 for two channels of two servers.
        channel_rate=11.8,
        up_then_down=frozenset({"Simple"}),
        rate=369.04,
        fitted="2 x 8 MI355X: launch_us on 8 KiB (hardware point 8.3), rate on 8 GiB (8.10)",
    ),
}


@dataclass(frozen=True, kw_only=True)
class LibraryChoice:
    """What a library does with a size: our ``algorithm``, its ``protocol``, and the time of it."""

    algorithm: str
    protocol: str
    times_us: Mapping[str, float]
    gpu_time: GpuTime
    up_then_down: bool = False
    under_way: int = 2**20

    @property
    def limits(self) -> dict[str, Any]:
        """Return the arguments that a ``CollectiveCall`` has of it."""
        return {"up_then_down": self.up_then_down, "under_way": self.under_way}


def choose(
    name: str,
    communicator: Communicator,
    size: int,
    *,
    algorithm: str,
    protocol: str,
    cut: int = 1,
) -> LibraryChoice:
    """Return what library ``name`` does over ``communicator`` with ``size`` octets.

    With ``cut`` the size stands for one that is so many times as large: that is what the library
    chooses by, and launch and steps are so many times as short.  ``algorithm`` and ``protocol``
    are the user's, or :data:`AUTO`.  An algorithm that the library has not is taken for a ring, or
    for a tree if its name says so.  The choice is that of an AllReduce.  Raises UserError for a
    protocol that the library does not have.
    """
    library = LIBRARIES[name]
    known = {one for protocols in library.tuning.values() for one in protocols}
    if protocol not in (AUTO, *known):
        raise UserError(
            f"library={name} has no protocol {protocol}; take {', '.join(sorted(known))} or {AUTO}"
        )
    if algorithm == NVLS:
        return _nvls(name, communicator, protocol, cut)
    kind = AUTO if algorithm == AUTO else "tree" if "tree" in algorithm else "ring"
    choice: Choice = choose_allreduce(library.tuning, communicator, size * cut)
    times = {
        path: time
        for path, time in choice.times_us.items()
        if kind in (AUTO, path.partition("/")[0]) and protocol in (AUTO, path.partition("/")[2])
    }
    taken, _, spoken = min(times, key=times.__getitem__).partition("/")
    return LibraryChoice(
        algorithm=OURS[taken] if algorithm == AUTO else algorithm,
        protocol=spoken,
        times_us=choice.times_us,
        gpu_time=_gpu_time(library, communicator, size * cut, taken, spoken, cut),
        up_then_down=spoken in library.up_then_down,
    )


def _nvls(name: str, communicator: Communicator, protocol: str, cut: int) -> LibraryChoice:
    library = LIBRARIES[name]
    if library.nvls_rates is None:
        raise UserError(f"library={name} has no algorithm=nvls; take library=nccl, or another one")
    if protocol not in (AUTO, "Simple"):
        raise UserError(f"algorithm=nvls has no protocol {protocol}; take Simple or {AUTO}")
    rate = library.nvls_rates[min(3, len(communicator.hosts)) - 1]
    return LibraryChoice(
        algorithm=NVLS,
        protocol="Simple",
        times_us={},
        gpu_time=_time(library.step(NVLS, "Simple"), communicator.topology, 0.0, rate, 0.0, cut),
        under_way=max(LibraryChoice.under_way, library.channels * _NVLS_BUFFER // cut),
    )


def _gpu_time(
    library: Library, communicator: Communicator, size: int, algorithm: str, protocol: str, cut: int
) -> GpuTime:
    topology, step = communicator.topology, library.step(algorithm, protocol)
    slice_us = 0.0
    if protocol == "Simple":
        octets = _slice_octets(library, communicator, size, algorithm)
        slice_us = octets / (1000 * library.channel_rate)
    return _time(step, topology, library.launch_us, library.rate, slice_us, cut)


def _time(
    step: ProtocolModel,
    topology: Topology,
    launch_us: float,
    rate: float,
    slice_us: float,
    cut: int,
) -> GpuTime:
    fabric_ns = base_rtt_ns(topology, ACK_BYTES) // 2
    scale_up_ns = min(server.scale_up.latency_ns for server in topology.servers)
    return GpuTime(
        launch_ns=_ns((step.base_us + launch_us) / cut),
        copy_ns=max(0, _ns((step.nvlink_us + slice_us) / cut) - scale_up_ns),
        write_ns=max(0, _ns((step.network_us + slice_us) / cut) - fabric_ns),
        rate_bps=math.floor(rate * step.bandwidth * 8e9),
    )


def _slice_octets(library: Library, communicator: Communicator, size: int, algorithm: str) -> int:
    """Return the octets of a slice of the protocol Simple."""
    channels, members, hosts = library.channels, len(communicator), len(communicator.hosts)
    if algorithm == "ring":
        return -(-min(4 * _STEP, -(-size // (channels * members))) // 2)
    depth = -(-members // hosts) - 1 + int(math.log2(hosts))
    chunk = _STEP
    for chunks, least in ((8 * depth, 2**17), (4 * depth, 2**16), (depth, 2**15)):
        while size // (channels * chunk) < chunks and chunk > least:
            chunk //= 2
    return min(chunk, -(-size // channels))


def _ns(us: float) -> int:
    return round(us * 1000)
