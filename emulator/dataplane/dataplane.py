"""A fabric's nodes as a run in virtual time uses them: namespaces of the kernel, or a model.

::

    the cable to a port --> enter --> [switch program, bridge or route] --> what comes out, by port
    a GPU's transport  --> send  --> [its interface, a bond]           --> what comes out, by port
    the cable to a GPU  --> receiver's function --> [its interface]    --> ``deliver``

A frame passes a node in no time: what it becomes is there before the call returns.  Whoever calls
has the lines between nodes, and the time (:mod:`emulator.sim.network`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from emulator.dataplane.account import Account
from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.kernel.port_counters import PortCounters
from emulator.dataplane.switch.virtual_state import SWITCH_WORDS
from emulator.dataplane.wires import Wires
from topologies.model import CableEnd, Link, Topology
from uet.transport import Frame

if TYPE_CHECKING:
    from emulator.dataplane.control_plane.computed_routing import ComputedRouting
    from emulator.dataplane.control_plane.lab_routing import Routing
    from emulator.dataplane.switch.fabric_asic import FabricAsic

#: A frame that has come out of a node, and the index of the port's inner end (see ``wires``).
Taken = tuple[int, bytes]
#: Brings a frame into a port at a time (ns of fabric time); returns what comes out of the node.
Enter = Callable[[bytes, int], Sequence[Taken]]

NO_CARRIER = "port without carrier"
FILTERED = "filtered in its namespace"


class Astray(Exception):
    """A frame went into a node and neither came out nor was counted as dropped."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A GPU's ``node``: the ``interfaces`` that it uses, and the frames that are for it.

    ``frame_octets`` is the longest frame.
    """

    node: str
    interfaces: Sequence[str]
    frames: TransportFrames
    frame_octets: int


class HostPort(Protocol):
    """One interface of a GPU."""

    @property
    def lost(self) -> int:
        """Frames that found no room on their way to the GPU."""

    def send(self, frame: Frame) -> Sequence[Taken]:
        """Send ``frame`` out; return it as it comes out, or nothing if a filter there took it."""

    def receiver(
        self, end: CableEnd, deliver: Callable[[memoryview], None]
    ) -> Callable[[bytes], None]:
        """Return the function that brings a frame from the cable to ``end`` in, to ``deliver``.

        What ``deliver`` is given is valid until it returns.
        """


class Frames(Protocol):
    """The way of frames into nodes and out of them again, for one worker's nodes."""

    account: Account

    def entrance(self, end: CableEnd, without_carrier: Collection[CableEnd]) -> Enter:
        """Return the function that brings frames into port ``end`` of a switch.

        ``without_carrier`` are the ports of that switch which have none at the time: what a bridge
        has for one of them it drops, and counts nowhere.
        """

    def open_hosts(self, hosts: Sequence[Host]) -> list[list[HostPort]]:
        """Open the interfaces of ``hosts``, in their order."""

    def rest(self) -> None:
        """Let other processes see what nodes have counted: no frame moves now."""

    def close_hosts(self) -> None:
        """Close all interfaces of hosts; others can be opened."""

    def close(self) -> None:
        """Give up everything."""


class Cabling(Protocol):
    """The cables as the nodes at their ends see them."""

    def pull(self, links: Iterable[Link]) -> None:
        """Take carrier from both ends of ``links``; no harm if they have none."""

    def plug(self, links: Collection[Link], *, out: Collection[Link] = ()) -> None:
        """Give ``links`` carrier; those of ``out`` stay pulled."""


class Dataplane(Protocol):
    """The nodes of a fabric.

    ``directory`` is where other processes find what there is to know of them; None: nobody else
    sees them.
    """

    @property
    def name(self) -> str: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def seed(self) -> int: ...

    @property
    def dilation(self) -> float: ...

    @property
    def cable_delay(self) -> str: ...

    @property
    def directory(self) -> Path | None: ...

    @property
    def wires(self) -> Wires: ...

    @property
    def asic(self) -> FabricAsic | None: ...

    @property
    def routing(self) -> Routing | ComputedRouting | None: ...

    @property
    def cables(self) -> Cabling: ...

    def counters(self, nodes: Iterable[str] | None = None) -> dict[str, PortCounters]:
        """Counters of all ports here, or those of ``nodes``, by ``node:port``, in their order."""

    def frames(self, worker: int) -> Frames:
        """Open the way of frames through the nodes of ``worker``, in the process that uses it."""

    def follow(self) -> list[Any]:
        """Return a list to which all is added from now on that a process forked now has to do.

        It shares with this one what the nodes count.
        """

    def take(self, changes: Sequence[Any]) -> None:
        """Do ``changes``, which the process that this one was forked from has done."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def close(self) -> None:
        """Give up the nodes."""


def switch_words(asic: FabricAsic | None, end: CableEnd) -> tuple[memoryview, int] | None:
    """Return the words that the program of the switch of ``end`` shares, and where its own begin.

    There :data:`~emulator.dataplane.switch.virtual_state.NOW`, ``PASSED`` and ``DROPPED`` count
    from.  None: there is no program.
    """
    if asic is None or str(end) not in asic.ports:
        return None
    return asic.state.switches, asic.ports[str(end)].switch * SWITCH_WORDS
