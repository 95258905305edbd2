"""Pulls cables out of a fabric with a virtual clock, and plugs them in again.

Both inner ends of a cable go down, so both ports lose carrier and stay up themselves: they keep
their addresses, neighbours, routes (marked ``linkdown``) and forwarding entries, as ports do whose
cable is pulled, and nothing has to be put back.

Carrier reaches bonds, bridges and routes by the kernel's link watch, which is asynchronous.  As the
virtual clock stands still meanwhile, :class:`InnerCables` returns when it is done.  The state that
RTM_GETLINK of one link returns is under the lock under which the link watch notifies bridges and
routes. So whoever reads the new state can rely on these notices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel.fabric import vlans
from emulator.dataplane.kernel.kernel_objects import (
    IF_OPER_UP,
    IFINFOMSG,
    IFLA_LINKINFO,
    IFLA_OPERSTATE,
)
from emulator.dataplane.kernel.netlink import RTM_GETLINK, U32, RouteSocket, attribute, attributes
from emulator.dataplane.wires import NODE, Wires
from emulator.errors import UserError
from topologies.interface_indices import vlan_bridge_of
from topologies.model import Bridge, CableEnd, Link, Node

BUDGET_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0001, 0.005
IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS = 29, 8
IFLA_INFO_SLAVE_DATA, IFLA_BOND_SLAVE_MII_STATUS, BOND_LINK_UP = 5, 2, 0

#: A netlink socket in the namespace of a node, or of the wires.
Kernels = Callable[[str], RouteSocket]


@dataclass(frozen=True, slots=True)
class LinkState:
    """The kernel's state of an interface: ``in_bond`` is whether its bond sends by it."""

    up: bool
    in_bond: bool


def link_state(kernel: RouteSocket, index: int, *, subject: str) -> LinkState:
    """Query the state of one interface.

    Raises KernelRefusal if there is none.
    """
    body = IFINFOMSG.pack(0, 0, 0, index, 0, 0)
    body += attribute(IFLA_EXT_MASK, U32(RTEXT_FILTER_SKIP_STATS))
    answer = kernel.ask(RTM_GETLINK, body, subject)
    up = in_bond = False
    for kind, value in attributes(answer, IFINFOMSG.size):
        if kind == IFLA_OPERSTATE:
            up = value[0] == IF_OPER_UP
        elif kind == IFLA_LINKINFO:
            in_bond = _mii_status(value) == BOND_LINK_UP
    return LinkState(up, in_bond)


def _mii_status(link_info: memoryview) -> int | None:
    for kind, value in attributes(link_info):
        if kind == IFLA_INFO_SLAVE_DATA:
            for inner, status in attributes(value):
                if inner == IFLA_BOND_SLAVE_MII_STATUS:
                    return status[0]
    return None


class InnerCables:
    """The cables of the fabric whose inner ends are ``wires``."""

    def __init__(self, wires: Wires, *, kernels: Kernels) -> None:
        self._wires, self._topology, self._kernels = wires, wires.topology, kernels

    def pull(self, links: Iterable[Link]) -> None:
        """Take carrier from both ends of ``links``; no harm if they have none.

        Returns when no bond, bridge or route uses them.  Raises :class:`UserError` if that takes
        too long.
        """
        kernel = self._kernels(NODE)
        ends = self._ends(links)
        for end in ends:
            kernel_object.lower_link(kernel, self._wires.index(end), subject=f"inner end of {end}")
        kernel.flush()
        self._await(ends, up=False)

    def plug(self, links: Collection[Link], *, out: Collection[Link] = ()) -> None:
        """Give ``links`` carrier; those of ``out`` stay pulled.

        Returns when all of them can send.  Raises :class:`UserError` if that takes too long.
        """
        kernel = self._kernels(NODE)
        ends = self._ends(link for link in links if link not in out)
        for end in ends:
            kernel_object.raise_link(kernel, self._wires.index(end), subject=f"inner end of {end}")
        kernel.flush()
        self._await(ends, up=True)

    def _ends(self, links: Iterable[Link]) -> list[CableEnd]:
        """The ends of ``links`` at nodes of this lab."""
        ends = (end for link in links for end in link.ends)
        return sorted(end for end in ends if self._wires.here(end.node))

    def _await(self, ends: Collection[CableEnd], *, up: bool) -> None:
        deadline = time.monotonic() + BUDGET_S
        for end in ends:
            self._await_one(end, partial(self._has, end, up), deadline)
        for node in dict.fromkeys(end.node for end in ends):
            model = self._topology.node(node)
            ports = {end.port for end in ends if end.node == node}
            for upper, lower in self._above(model, ports):
                self._await_one(upper, partial(self._follows, upper, lower), deadline)

    def _await_one(self, end: CableEnd, done: Callable[[], bool], deadline: float) -> None:
        pause = FIRST_PAUSE_S
        while not done():
            if time.monotonic() > deadline:
                raise UserError(
                    f"{end} has not got or lost carrier {BUDGET_S:g} s after its cable: "
                    "something else holds it up or down"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _state(self, end: CableEnd) -> LinkState:
        kernel = self._kernels(end.node)
        return link_state(kernel, self._wires.indices[end], subject=str(end))

    def _has(self, end: CableEnd, up: bool) -> bool:
        """Return whether the port ``end`` is ``up``, and its bond has seen that."""
        state = self._state(end)
        bonded = self._topology.node(end.node).port(end.port).bond is not None
        return state.up is up and (not bonded or state.in_bond is up)

    def _follows(self, upper: CableEnd, lower: Collection[CableEnd] | None) -> bool:
        """Return whether ``upper`` has carrier exactly if one of ``lower`` has; None.

        It always has.
        """
        return self._state(upper).up is (lower is None or any(self._state(e).up for e in lower))

    def _above(
        self, node: Node, ports: Collection[str]
    ) -> Iterator[tuple[CableEnd, Collection[CableEnd] | None]]:
        """Yield the interfaces above ``ports`` of ``node`` from below, each with those it is on."""
        bonds = {
            bond: [CableEnd(node.name, port.name) for port in members]
            for bond, members in node.bonds.items()
            if any(port.name in ports for port in members)
        }
        yield from ((CableEnd(node.name, bond), members) for bond, members in bonds.items())
        if not node.is_switch:
            return
        touched = {port.bridge for port in node.ports if port.name in ports and port.bridge}
        whole = vlan_bridge_of(self._topology, node) if self._has_vlans else None
        if whole is None:
            for bridge in node.bridges:
                if bridge.name in touched:
                    yield CableEnd(node.name, bridge.name), _members(node, [bridge])
        elif touched:
            yield whole, _members(node, node.bridges)
            yield from ((CableEnd(node.name, bridge.name), [whole]) for bridge in node.bridges)

    @cached_property
    def _has_vlans(self) -> bool:
        return vlans.requested(self._topology)


def _members(node: Node, bridges: Collection[Bridge]) -> Collection[CableEnd] | None:
    """Return the members of ``bridges``; None if one is a tunnel, which always has carrier."""
    if any(bridge.vni is not None for bridge in bridges):
        return None
    names = {bridge.name for bridge in bridges}
    members = dict.fromkeys(port.interface for port in node.ports if port.bridge in names)
    return [CableEnd(node.name, member) for member in members]
