"""Fabrics of public documents by name, at a size that runs here; ``scale=1`` is the document's.

``scale`` divides the numbers of pods, segments, servers and switches, at least to two (servers to
one).  The servers, their NICs, and the oversubscription of every tier stay as they are: uplinks get
the number, and where that is no whole one the rate, that it takes.

The table of README.md has the document of each number, and what is a guess.
Numbers in the docstrings are those of the defaults; a test computes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from topologies.clos import APART, DIVIDED
from topologies.designs.clos import Clos
from topologies.model import Topology
from topologies.parts.design import parameter, register, with_defaults
from topologies.parts.design_parameters import COUNT


@dataclass(frozen=True, kw_only=True)
class Reference(Clos):
    """A Clos fabric of a document, whose other parameters are those of its full size."""

    scale: int = parameter(
        1, COUNT, "divides pods, segments, servers and switches; 1: as in the document"
    )

    def topology(self) -> Topology:
        return super(Reference, self.scaled()).topology()

    def scaled(self) -> Self:
        """Return the design of the fabric that is built, whose scale is 1."""
        full = self.plan.trunks
        new: dict[str, Any] = {
            name: min(getattr(self, name), max(2, -(-getattr(self, name) // self.scale)))
            for name in ("pods", "segments", "spines", "super_spines")
        }
        new["hosts"] = -(-self.hosts // self.scale)
        if self.scale > 1 and self.spines:
            up = full.up * full.uplink_bps * new["hosts"] // self.hosts
            each, rate = _links(up, new["spines"], full.uplink_bps)
            new |= {"uplinks_per_spine": each, "uplink_rate": rate}
            if self.super_spines:
                above = self.super_spines * full.parallel_super * full.super_bps
                now, before = new["segments"] * each * rate, full.parallel * full.uplink_bps
                above = above * now // (self.segments * before)
                each, rate = _links(above, new["super_spines"], full.super_bps)
                new |= {"uplinks_per_super": each, "super_rate": rate}
        return replace(self, scale=1, **new)


def _links(capacity: int, switches: int, rate: int) -> tuple[int, int]:
    """Return how many links to each of ``switches`` share ``capacity``, and their rate (bit/s).

    It is as close to ``rate`` as can be.
    """
    each = max(1, round(capacity / (switches * rate)))
    return each, capacity // (switches * each)


@register
@with_defaults(scale=16, segments=4, hosts=32, gpus_per_host=8, spines=16, scale_up="nvswitch3")
class DgxSuperPod(Reference):
    """NVIDIA DGX SuperPOD H100: scalable units of 32 servers on eight rail leaves.

    ::

        spine0 ... spine15                     each leaf has 2 x 400 Gbps to each
        +--------------------------+  ...  +---------------------------+
        | SU 1: rail0 ... rail7    |       | SU 4: rail24 ... rail31   |   32 x 400 Gbps down and up
        +--------------------------+       +---------------------------+
          h0 ... h31, 8 x 400 Gbps           h96 ... h127

    The document's links are InfiniBand (NDR); here they are Ethernet of the same rate.  One unit
    alone is ``segments=1,spines=4``.

    32 GPUs, 18 switches, 64 links; bisection: servers 6.4 Tbps, rails 6.4 Tbps;
    oversubscription: rail 1:1.
    """

    NAME = "dgx_superpod"


@register
@with_defaults(
    scale=32,
    pods=8,
    segments=192,
    hosts=2,
    gpus_per_host=8,
    rails_per_switch=8,
    spines=16,
    super_spines=28,
    uplinks_per_super=1,
    subnets="divided",
    subnet_prefix=27,
    scale_up="nvswitch3",
)
class Meta24k(Reference):
    """Meta's RoCE cluster of 24,576 H100: racks of two servers, pods of 3,072 GPUs.

    ::

        aggregation      super0 ... super27              7:1 between the pods
                       /                     \\
        cluster     spine0 ... spine15  ...  spine127     no oversubscription within a pod
                     /             \\
        rack     rail0 ... rail191  ...  rail1535        16 x 400 Gbps down, 16 x 400 Gbps up
                 h0, h1

    A rack's switch has all rails of its servers.  One pod is ``pods=1,super_spines=0``.

    96 GPUs, 18 switches, 208 links; bisection: servers 2.8 Tbps, rails 19.2 Tbps;
    oversubscription: rail 1:1, spine 6.86:1.
    """

    NAME = "meta_24k"


@register
@with_defaults(
    scale=64,
    segments=15,
    hosts=128,
    gpus_per_host=8,
    nic_ports=2,
    nic_rate="200Gbps",
    planes="own",
    spines=60,
    uplink_rate="400Gbps",
    uplinks_per_spine=1,
)
class AlibabaHpn(Reference):
    """A pod of Alibaba's HPN 7.0: dual ToR, dual plane, 15 segments of 1,024 GPUs.

    ::

        plane 1: spine0 ... spine59          plane 2: spine60 ... spine119
             |  60 x 400 Gbps                     |
        rail0 ... rail7 (first ports)        rail8 ... rail15 (second ports)     segment 1 of 15
             |  128 x 200 Gbps each, 16:15        |
        h0 ... h127: eight GPUs, each with a NIC of 2 x 200 Gbps: a switch a rail and port

    A GPU has one address over both ports.  The core above the pod (15:1) and the eight spare
    servers of a segment are left out.

    32 GPUs, 36 switches, 128 links; bisection: servers 6 Tbps, rails 6 Tbps;
    oversubscription: rail 1.07:1.
    """

    NAME = "alibaba_hpn"


FIT_A_26 = 61  # servers of a rail, beside network, gateway and broadcast


@register
@with_defaults(
    scale=128,
    segments=512,
    hosts=64,
    gpus_per_host=4,
    nic_ports=8,
    nic_rate="100Gbps",
    homing="planes",
    planes="own",
    rails_per_switch=4,
    spines=256,
    subnets="divided",
    subnet_prefix=26,
    scale_up="nvswitch4",
)
class Mrc(Reference):
    """The multi-plane fabric of MRC: 800G NICs as 8 x 100G, a two-tier Clos for each plane.

    ::

        plane 1: T1  spine0 ... spine255          ...   plane 8: T1  spine1792 ... spine2047
                 |  every T0 to every T1                         |
                 T0  256 x 100 Gbps down and up                  T0
                 |                                               |
               eth0                                            eth7       of every GPU's NIC

    131,072 GPUs at full size, where each rail has a /25 of its own: 64 servers do not fit a /26.
    Planes of 200G, which Oracle's Acceleron also has: ``nic_ports=4,nic_rate=200Gbps``.

    16 GPUs, 48 switches, 256 links; bisection: servers 6.4 Tbps, rails 6.4 Tbps;
    oversubscription: rail 1:1.
    """

    NAME = "mrc"

    def scaled(self) -> Self:
        built = super().scaled()
        if built.hosts > FIT_A_26 and (built.subnets, built.subnet_prefix) == (DIVIDED, 26):
            return replace(built, subnets=APART, subnet_prefix=25)
        return built


@register
@with_defaults(
    scale=16,
    segments=128,
    hosts=64,
    gpus_per_host=1,
    nic_rate="800Gbps",
    nic_delay="1us",
    uplink_delay="1us",
    spines=64,
)
class UeLeafSpine(Reference):
    """The leaf-spine fabric of 8,192 x 800G in the Ultra Ethernet Consortium's simulator.

    ::

        spine0 ... spine63              128 x 800 Gbps down
             |  every leaf to every spine, 1 us a cable
        rail0 ... rail127               64 x 800 Gbps down and up
        h0 ... h63  ...

    32 GPUs, 12 switches, 64 links; bisection: servers 12.8 Tbps;
    oversubscription: rail 1:1.
    """

    NAME = "ue_leaf_spine"
