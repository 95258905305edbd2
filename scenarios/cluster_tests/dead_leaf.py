"""A leaf of the frontend dies, and flows of servers with a port at two leaves go on by the other.

::

    h0, h1 ... --- front0 --- front-leaf0  X      \\
               \\                                   === front-spine0,1 === border0 --- user0
                 - front1 --- front-leaf1         /

A server has an address of its own, which both of its leaves advertise as a route to one machine
(/32), and a default route over both.  It needs no protocol: a port without carrier leads nowhere
(``ignore_routes_with_linkdown``), and BGP of the spines withdraws the ways by the dead leaf.  That
is for ``tenants=0``: nothing of it is in a tunnel.

Traffic: every server keeps ``flows`` of datagrams and as many TCP connections to an echo server on
``user0`` going, each with something every ``interval``, over both leaves by the hash of the flow.
The first time nothing happens.  The second time all cables of ``front-leaf0`` are pulled, the third
time they are plugged in again.

Measured, in this machine's time: datagrams that did not come back, on how many flows; the longest
time from one of them to the next of its flow that did (``outage_s``); the longest that a connection
waited for an answer, with TCP's retransmissions (``wait_s``); flows that stayed ``silent`` and
connections that are ``broken``, of which there may be none.  Cables are noticed at once here.  A
leaf that keeps its cables up and forwards nothing would be found by BFD at the spines, but not by
the servers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from emulator.cluster.run.clients import echo_flows
from emulator.cluster.run.clients.echo_flows import AT_WORK, EchoProbe, EchoServer
from emulator.cluster.run.cluster_context import ClusterContext
from emulator.cluster.run.processes import last_words
from emulator.errors import UserError
from emulator.scenario import parameter
from topologies.model import FRONTEND
from topologies.parts.design_parameters import COUNT, TIME

TOPOLOGY = "cluster:tenants=0,frontend_homes=2"
SERVICES = "none"
VICTIM = "front-leaf0"
PORT = 7  # of the echo protocol (RFC 862)
NS_PER_S = 10**9


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The load; times are the machine's."""

    flows: int = parameter(8, COUNT, help="flows of datagrams of each server, and connections")
    interval: int = parameter("5ms", TIME, help="from one datagram of a flow to the next")
    seconds: int = parameter(4, COUNT, help="how long each part lasts")


def conduct(run: ClusterContext, parameters: Parameters) -> Iterator[Mapping[str, object]]:
    """Keep flows going while nothing happens, the leaf dies, and comes back."""
    topology = run.cluster.labs[FRONTEND].topology
    alone = [name for name in run.machines.servers if len(topology.node(name).ports) < 2]
    if alone or not run.machines.users:
        raise UserError(
            "servers need a port at two leaves, and a user to talk to: take frontend_homes=2 with "
            "tenants=0 and users=1 or more"
        )
    user = run.machines.users[0]
    where = EchoServer(address=run.machines.address(user, FRONTEND), port=PORT)
    server = run.begin(user, echo_flows.__name__, {"serve": asdict(where)})
    try:
        _await_work(server, f"the echo server on {user}")
        for what, fault in (
            ("nothing happens", None),
            (f"{VICTIM} dies", f"switch {VICTIM} down"),
            (f"{VICTIM} comes back", "heal"),
        ):
            yield _kept_going(run, parameters, where, what, fault)
    finally:
        server.kill()
        server.communicate()


def _kept_going(
    run: ClusterContext, parameters: Parameters, where: EchoServer, what: str, fault: str | None
) -> Mapping[str, object]:
    probe = EchoProbe(
        address=where.address,
        port=where.port,
        flows=parameters.flows,
        interval_s=parameters.interval / NS_PER_S,
        seconds=parameters.seconds,
    )
    begun = {
        name: run.begin(name, echo_flows.__name__, {"probe": asdict(probe)})
        for name in run.machines.servers
    }
    try:
        for name, process in begun.items():
            _await_work(process, f"the flows of {name}")
        if fault is not None:
            run.strike(FRONTEND, fault)
    except BaseException:
        for process in begun.values():
            process.kill()
            process.communicate()
        raise
    return _row(what, [outcome for _, outcome in run.gathered(begun)])


def _row(what: str, outcomes: list[Mapping[str, Any]]) -> Mapping[str, object]:
    sums = {
        key: sum(one[key] for one in outcomes)
        for key in ("sent", "lost", "struck", "silent", "connections", "broken")
    }
    longest = {key: max(one[key] for one in outcomes) for key in ("outage_s", "wait_s")}
    whole = not sums["silent"] and not sums["broken"]
    return {"what": what, **sums, **longest, "ok": whole}


def _await_work(process: subprocess.Popen[str], what: str) -> None:
    """Return when ``process`` is at work; UserError if it ends before."""
    assert process.stdout is not None
    if process.stdout.readline().strip() != AT_WORK:
        _, err = process.communicate()
        raise UserError(f"{what} did not begin: {last_words(err)}")
