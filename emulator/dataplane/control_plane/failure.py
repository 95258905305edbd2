"""Measurement of how long the fabric takes to detect a dead link and to route around it.

::

    after = time_failure(lab.routing, link, lambda: lab.asic.inject("rail0:up0", BLACK_HOLE))
    after.detected_s["rail0"], after.rerouted_s

Times are this machine's, for FRR's clocks are; :attr:`ControlPlane.detection_s` is what they are to
be compared with.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from emulator.dataplane.control_plane.control_plane_choice import ControlPlane
from emulator.dataplane.control_plane.convergence import ConvergedState
from emulator.dataplane.control_plane.daemons import given_up
from emulator.dataplane.control_plane.lab_routing import Routing, not_converged
from emulator.errors import UserError
from topologies.model import CableEnd, Link, Topology

POLL_S = 0.002
#: What a fabric may take beyond the time in which it finds the failure (s).
REROUTING_BUDGET_S = 30.0
STAMP = re.compile(r"(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}) ")
NOTIFICATION = re.compile(r"NOTIFICATION.* \d+/\d+ \((.*?)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """The time at which a switch gave up its neighbour (s after the failure), and its reason."""

    after_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reroute:
    """The duration of detection and of rerouting after the failure of ``link`` (s of this machine).

    ``detected`` is by the switches at its ends that had given up their neighbour by the time of
    ``rerouted_s`` (OSPF needs but one of them: nobody uses a link that only one end advertises).
    That is when the kernel of the last switch had the routes that are shortest without the link.
    """

    link: Link
    detected: Mapping[str, Detection]
    rerouted_s: float

    @property
    def detected_s(self) -> float | None:
        """Return when the first of both ends detected the loss.

        None if no route had to change before either did.
        """
        return min((found.after_s for found in self.detected.values()), default=None)


def time_failure(
    routing: Routing,
    link: Link,
    fail: Callable[[], None],
    *,
    budget_s: float = REROUTING_BUDGET_S,
) -> Reroute:
    """Call ``fail``, which is to make ``link`` useless, and wait until all routes avoid it.

    Times count from that call, whatever it takes itself.
    Raises UserError if ``link`` does not join switches, or if the routes have not come
    ``budget_s`` after the failure was to be found.
    """
    for end in link.ends:
        if end.node not in routing.switches:
            raise UserError(
                f"{link.a} - {link.b} ends at {end.node}, which has no routes to change"
            )
    expectation = expected_without(routing.topology, link, routing.plane)
    read = {end.node: len(routing.switches[end.node].log()) for end in link.ends}
    began, failed = time.time(), time.monotonic()  # FRR's log has the former
    fail()
    lacking = list(routing.switches)
    while True:
        missing = routing.differences(lacking, expectation)
        if not missing:
            missing = routing.differences(None, expectation)
        if not missing:
            rerouted_s = time.monotonic() - failed
            break
        lacking = list(dict.fromkeys(one.switch for one in missing))
        if time.monotonic() - failed > routing.plane.detection_s + budget_s:
            raise UserError(not_converged(missing, time.monotonic() - failed))
        time.sleep(POLL_S)
    detected = {}
    for end in link.ends:
        news = routing.switches[end.node].log()[read[end.node] :]
        found = _detection(news, given_up(_neighbour(routing, end)), began)
        if found is not None:
            detected[end.node] = found
    return Reroute(link=link, detected=detected, rerouted_s=rerouted_s)


def expected_without(topology: Topology, link: Link, plane: ControlPlane) -> ConvergedState:
    """Return the routes of every switch once ``plane`` has routed around ``link``.

    Spines keep the AS that they share though the link may have been all that joined them.
    """
    return ConvergedState(without(topology, link), plane, topology)


def without(topology: Topology, link: Link) -> Topology:
    """``topology`` as if ``link`` and the ports it is plugged into had never been."""
    nodes = tuple(
        replace(
            node, ports=tuple(p for p in node.ports if CableEnd(node.name, p.name) not in link.ends)
        )
        for node in topology.nodes
    )
    links = tuple(other for other in topology.links if other is not link)
    return replace(topology, nodes=nodes, links=links)


def _neighbour(routing: Routing, end: CableEnd) -> str:
    """Return what the switch at ``end`` calls the one at the other end, as a regular expression."""
    address = routing.topology.addresses[routing.topology.far_end(end)]
    return rf"(?:{re.escape(end.port)}|{re.escape(str(address.ip))})"


def _detection(log: str, given_up: re.Pattern[str], began: float) -> Detection | None:
    """Return the first line of ``log`` that ``given_up`` matches; BGP gives its reason before."""
    notified = ""
    for line in log.splitlines():
        if (notification := NOTIFICATION.search(line)) is not None:
            notified = f" ({notification[1]})"
        stamp, found = STAMP.match(line), given_up.search(line)
        if stamp is not None and found is not None:
            when = datetime.strptime(stamp[1], "%Y/%m/%d %H:%M:%S.%f").timestamp()
            return Detection(
                after_s=when - began, reason=(found["bgp"] or found["ospf"]) + notified
            )
    return None
