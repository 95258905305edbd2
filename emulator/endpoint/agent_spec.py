"""Messages between the runner and its agents, as plain data that can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from emulator.endpoint.clock import Clock
from emulator.endpoint.nic.multi_port_nic import PortSpec
from emulator.endpoint.operations.nvlink import ScaleUpLink
from emulator.endpoint.operations.rank_result import RankResult
from emulator.endpoint.operations.schedule import Schedule
from emulator.kernel.frame_filter import TransportFrames

#: Default capacity of a GPU's memory in octets (sparse: only what is used takes memory).
GPU_MEMORY_OCTETS = 1 << 30


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """One rank: where it lives, whom it reaches, and which transport it speaks.

    ``transport`` names a function ``module:function``; it is called with ``transport_config`` as
    keyword arguments and ``seed``, and returns a :class:`uet.transport.Transport`; for each later
    life of the endpoint, which no packet of an earlier one must reach, with its number ``life``,
    too. ``netns`` is the path of the namespace (``None``: the current one) and ``ports`` are those
    of the NIC in it; ``fep_per_port``: each has a fabric endpoint of its own.  ``peers`` maps every
    rank that the fabric reaches to its fabric address, the first plane's where it has several.
    ``scale_up_peers`` maps the ranks that its scale-up network reaches to their node names.
    ``mtu`` is that of the port and ``frame_octets`` the longest frame that the transport makes
    (``None``: what the MTU allows), by which receive slots are sized.  ``scale_up`` is its NVLink
    (``None``: there is none).  ``send_by_class``: the port's data can be paused, and control leaves
    meanwhile.  ``header_bits``: what the transport carries of a write's header data.
    """

    rank: int
    node: str
    netns: str | None
    ports: tuple[PortSpec, ...]
    address: str
    peers: Mapping[int, str]
    transport: str
    transport_config: Mapping[str, object]
    frames: TransportFrames = field(default_factory=TransportFrames)
    seed: int = 0
    scale_up_peers: Mapping[int, str] = field(default_factory=dict)
    scale_up: ScaleUpLink | None = None
    mtu: int = 4500
    frame_octets: int | None = None
    memory_octets: int = GPU_MEMORY_OCTETS
    receive_slots: int = 512
    send_queue_frames: int = 8
    send_by_class: bool = False
    header_bits: int = 64
    fep_per_port: bool = False


@dataclass(frozen=True, kw_only=True)
class AgentStart:
    """Everything a new agent needs; its control connection comes beside it."""

    lab: str
    spec: AgentSpec
    clock: Clock


# From the runner to an agent.


@dataclass(frozen=True, slots=True)
class ScheduleLoad:
    """Take this schedule; ``layouts`` are the buffers of every rank it writes to, by rank."""

    schedule: Schedule
    layouts: Mapping[int, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Renew:
    """Begin life number ``life``: a new transport, which has learned nothing; counters go on."""

    life: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The new transport is there."""


@dataclass(frozen=True, slots=True)
class Run:
    """Execute the schedule from ``start_at`` on, and give up at ``deadline`` (fabric ns)."""

    execution: int
    start_at: int
    deadline: int


@dataclass(frozen=True, slots=True)
class Abort:
    """End the execution now: another rank failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Pass:
    """All ranks have reached barrier ``name``."""

    execution: int
    name: str


@dataclass(frozen=True, slots=True)
class ReadCounters:
    """Send the counters of all layers."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the transport in order and report it, at the latest by ``deadline`` (fabric ns).

    The agent goes on answering its peers, who may not be done, until its connection is closed.
    """

    deadline: int


# From an agent to the runner.


@dataclass(frozen=True, slots=True)
class Ready:
    """The agent is in its namespace, its NIC is open.  ``silence`` is the mechanism in use."""

    pid: int
    silence: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The schedule is valid and in place."""


@dataclass(frozen=True, slots=True)
class Finished:
    result: RankResult


@dataclass(frozen=True, slots=True)
class AtBarrier:
    execution: int
    name: str


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters by layer: ``transport``, ``nic``, ``scale_up``, ``executor``, ``loop``."""

    layers: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Closed:
    """``orderly`` is false when the transport was still open at the deadline."""

    orderly: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The agent cannot go on: one sentence, and the traceback for developers.

    ``by_user`` marks a failure that the user can mend (a bad schedule, a missing interface).
    """

    sentence: str
    traceback: str
    by_user: bool


# From the fork server to the runner.


@dataclass(frozen=True, slots=True)
class Born:
    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class Died:
    """``status`` is the exit status, or minus the signal's number."""

    rank: int
    pid: int
    status: int
