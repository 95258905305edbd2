"""A watch over management: all of its packets are its own, and the rendezvous is on it alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from emulator.cluster.run.cluster_context import ClusterContext
from emulator.cluster.run.packet_survey import survey
from emulator.cluster.services.kinds.rendezvous import PORT
from emulator.cluster.services.service_registry import KINDS
from emulator.rocev2.wire import codes as rocev2_codes
from topologies.addressing import NETWORK_BLOCKS
from topologies.cluster import MANAGEMENT_SWITCH
from topologies.model import FRONTEND, MANAGEMENT, STORAGE
from uet.wire import codes


@dataclass(frozen=True, kw_only=True)
class ManagementWatch:
    """Captures of all packets of management, and of those of the rendezvous ``elsewhere``."""

    management: Path
    elsewhere: Sequence[Path]

    def rows(self) -> Iterator[Mapping[str, object]]:
        """Yield the rows of what both have seen; call it after the watch."""
        block = [NETWORK_BLOCKS[MANAGEMENT]]
        found = survey(self.management, block, foreign_ports())
        yield found.row("packets on management")
        others = sum(survey(path, block).by_port[PORT] for path in self.elsewhere)
        yield {
            "what": "packets of the rendezvous",
            "on_management": found.by_port[PORT],
            "elsewhere": others,
            "watched_switches": len(self.elsewhere),
            "ok": found.by_port[PORT] > 0 and not others,
        }


def foreign_ports() -> frozenset[int]:
    """Return the TCP and UDP ports of training, and of services of other networks."""
    own = {kind.port for kind in KINDS.values() if kind.network == MANAGEMENT}
    others = {kind.port for kind in KINDS.values() if kind.network not in (None, MANAGEMENT)}
    found = {rocev2_codes.UDP_PORT, codes.UDP_PORT, *others} - own
    return frozenset(port for port in found if port is not None)


@contextmanager
def management_watched(run: ClusterContext) -> Iterator[ManagementWatch]:
    """Capture at the management switch, and at each leaf of frontend and storage, meanwhile."""
    with ExitStack() as capturing:
        elsewhere = [
            capturing.enter_context(run.watched(leaf, f"rendezvous-{leaf}", f"tcp port {PORT}"))
            for leaf in _leaves(run)
        ]
        management = capturing.enter_context(run.watched(MANAGEMENT_SWITCH, "management"))
        yield ManagementWatch(management=management, elsewhere=elsewhere)


def _leaves(run: ClusterContext) -> Iterator[str]:
    """Yield the switches of frontend and storage that have a cable to a server."""
    for network in (FRONTEND, STORAGE):
        if network in run.cluster.labs:
            wiring = run.cluster.labs[network].topology
            found = (
                theirs.node
                for server in run.machines.servers
                for _, _, theirs in wiring.neighbours(server)
            )
            yield from dict.fromkeys(found)
