"""Rail-optimised two-tier Clos: the 6x4 reference cluster and everything of its shape.

::

                +---------+             +---------+
                | spine0  |             | spine1  |             routers
                +---------+             +---------+
                 ||| ||| ||| |||         ||| ||| ||| |||        3 x 400G per rail and spine
          +-------+   |   |    +----------+   |   |   +----+
      +-------+   +-------+   +-------+   +-------+             1 bridge + routed uplinks each
      | rail0 |   | rail1 |   | rail2 |   | rail3 |             10.0.1.1/24 ... 10.0.4.1/24
      +-------+   +-------+   +-------+   +-------+
       |  ..  |    |  ..  |    |  ..  |    |  ..  |             6 x 400G per rail
      h0g0  h5g0  h0g1  h5g1  h0g2  h5g2  h0g3  h5g3            .2 (host 0) ... .7 (host 5)

GPUs of equal local rank share a rail switch and a subnet, so that a rail's traffic crosses one
switch; traffic between rails is routed over a spine.  The GPUs of a host are joined by its
scale-up network as well.

Computed numbers of the default: 24 GPUs; each rail switch has 6 x 400G = 2.4 Tb/s down and
2 spines x 3 x 400G = 2.4 Tb/s up, oversubscription 1:1.  Uplinks are parallel links of a standard
rate (what a switch has ports for), as many per spine as non-blocking needs, rounded up.

``nic_delay`` and ``uplink_delay`` stand for everything on a hop that is neither serialisation nor
queueing: cable (about 5 ns a metre), transceivers and FEC, and the pipeline of the switch.  The
default of 600 ns for each is an assumption, not a measurement; it makes one way 1.2 us inside a
rail and 2.4 us across a spine.  ``buffer`` is what one egress queue may hold; 1 MiB is about an
even share of a 64 MiB shared-memory switch with 64 ports.  ``scale_up_rate`` is per GPU and each
way: the 900 GB/s of an H100's 18 NVLink 4 links counts both directions together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from topologies.designs.clos import Clos
from topologies.model import Topology, TopologyError
from topologies.parts.design import parameter, register
from topologies.parts.design_parameters import COUNT


@register
@dataclass(frozen=True, kw_only=True)
class RailClos(Clos):
    """Rail-optimised two-tier Clos: the 6x4 reference cluster and everything of its shape."""

    NAME = "rail_clos"

    rails: int | None = parameter(None, COUNT, "rail switches, one per local rank")

    def parameters(self) -> dict[str, object]:
        return super().parameters() | {"rails": self.rail_count}

    def check(self) -> None:
        if self.rails is not None and self.rails != self.rail_count:
            raise TopologyError(
                f"rails is {self.rails} and gpus_per_host {self.gpus_per_host}; {self.NAME} has "
                "one rail per local rank, so leave rails out or make them equal"
            )
        super().check()


def rail_clos(**parameters: Any) -> Topology:
    """The fabric drawn above, by parameters of :class:`RailClos`, as text or in base units.

    Raises TopologyError, which names the parameter, when a value is out of range.
    """
    return RailClos(**parameters).topology()
