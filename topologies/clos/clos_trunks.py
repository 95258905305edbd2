"""The links above the rail switches of a Clos fabric: their rates, and how many are parallel.

What is not given is computed: as many parallel links as a non-blocking tier needs, rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass

from topologies import addressing as plan
from topologies.clos.clos_tiers import ClosTiers
from topologies.elements import Role


@dataclass(frozen=True, kw_only=True)
class ClosTrunks:
    """The uplinks of rail switches and spines; None stands for what is computed."""

    tiers: ClosTiers
    nic_rate: int
    uplink_rate: int | None
    uplinks_per_spine: int | None
    super_rate: int | None
    uplinks_per_super: int | None

    @property
    def uplink_bps(self) -> int:
        """Return the rate of a link from a rail switch to a spine."""
        return self.uplink_rate or self.nic_rate

    @property
    def super_bps(self) -> int:
        """Return the rate of a link from a spine to a super-spine."""
        return self.super_rate or self.uplink_bps

    @property
    def parallel(self) -> int:
        """Return the number of links from a rail switch to each spine."""
        tiers = self.tiers
        if self.uplinks_per_spine is not None or not tiers.spines:
            return self.uplinks_per_spine or 0
        down = tiers.hosts * tiers.rails_of_switch * self.nic_rate
        return -(-down // (tiers.spines * self.uplink_bps))

    @property
    def parallel_super(self) -> int:
        """Return the number of links from a spine to each super-spine."""
        tiers = self.tiers
        if self.uplinks_per_super is not None or not tiers.super_spines:
            return self.uplinks_per_super or 0
        below = tiers.switches * tiers.segments * tiers.planes_per_spine * self.parallel
        return -(-below * self.uplink_bps // (tiers.super_spines * self.super_bps))

    @property
    def up(self) -> int:
        """Return the number of links from a rail switch to all its spines."""
        return self.tiers.spines * self.parallel

    def check(self) -> None:
        """Raise TopologyError unless the addressing plan has room for all links."""
        tiers = self.tiers
        plan.check_links(
            Role.SPINE,
            tiers.rail_switches * self.up,
            "pods, segments or spines, or a higher uplink_rate",
        )
        spines = tiers.pods * tiers.spines * tiers.spine_sets
        plan.check_links(
            Role.SUPER_SPINE,
            spines * tiers.super_spines * self.parallel_super,
            "pods, spines or super_spines, or a higher super_rate",
        )
