"""The ways of spraying by name: how unordered PDCs choose their paths (UES 3.6.16)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from topologies.registry import Registry
from uet.congestion.congestion_parameters import Parameters, PathParameters
from uet.congestion.spraying.bitmap import PenaltySpraying
from uet.congestion.spraying.paths import (
    EV_SET_SIZE,
    ObliviousSpraying,
    PathSelection,
    RoundRobin,
    ev_set_size,
)
from uet.congestion.spraying.port_entropy import PerPort, Ports
from uet.congestion.spraying.reps import Reps


@dataclass(frozen=True, kw_only=True)
class SprayedPeer:
    """The peer that a policy is opened for: ``path`` to it from ``ports``, and randomness.

    ``tuned`` are the policy's own parameters.  REPS freezes for ``freeze_time`` (ns).
    """

    rng: random.Random
    path: PathParameters
    ports: Ports
    freeze_time: int
    tuned: Any

    @property
    def evs(self) -> int:
        """Return how many EVs come round within about two RTTs."""
        return ev_set_size(self.path.bdp, self.path.mtu)


@dataclass(frozen=True, kw_only=True)
class Spraying:
    """A way of spraying; ``open`` makes the selection of paths to a peer.

    Of an endpoint with several ports it redirects what the selection picks away from ports without
    carrier, unless the policy is ``per_port`` and does so itself.  ``parameters`` is the class of
    those that users set as ``NAME.PARAMETER``.
    """

    name: str
    meaning: str
    open: Callable[[SprayedPeer], PathSelection]
    parameters: type[Parameters] | None = None
    per_port: bool = False

    def selection(self, peer: SprayedPeer) -> PathSelection:
        """Return the selection of paths to ``peer``."""
        made = self.open(peer)
        return made if self.per_port else peer.ports.steer(made)


SPRAYING: Final[Registry[Spraying]] = Registry("way of spraying")


def _reps(peer: SprayedPeer) -> PathSelection:
    packets = max(peer.path.bdp // peer.path.mtu // peer.ports.count, 1)
    more: dict[str, Any] = {"window_packets": packets, "freeze_time": peer.freeze_time}
    if peer.ports.count == 1:
        return Reps(peer.rng, **more)
    return PerPort(
        peer.rng, peer.ports, lambda evs: Reps(peer.rng, evs=evs, **more), size=EV_SET_SIZE
    )


SPRAYING.register(
    Spraying(
        name="oblivious",
        meaning="all EVs in random order",
        open=lambda peer: ObliviousSpraying(peer.rng),
    )
)
SPRAYING.register(
    Spraying(
        name="round_robin",
        meaning="the EVs of a set in turn",
        open=lambda peer: RoundRobin(peer.rng, peer.evs),
    )
)
SPRAYING.register(
    Spraying(
        name="bitmap",
        meaning="in turn, but for those that were bad",
        open=lambda peer: PenaltySpraying(peer.rng, size=peer.evs, rest=peer.path.base_rtt),
    )
)
SPRAYING.register(
    Spraying(name="reps", meaning="EVs that came back unmarked, again", open=_reps, per_port=True)
)
