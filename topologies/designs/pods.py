"""Pods: segments under spines, and pods under super-spines.

Numbers in the docstrings are those of the defaults; a test computes them.
"""

from __future__ import annotations

from topologies.designs.clos import Clos
from topologies.parts.design import register, with_defaults

POD: dict[str, int | str] = {
    "segments": 2,
    "hosts": 4,
    "gpus_per_host": 8,
    "nic_ports": 2,
    "nic_rate": "100Gbps",
    "rails_per_switch": 8,
    "spines": 4,
    "uplink_rate": "800Gbps",
}


@register
@with_defaults(**POD)
class Pod(Clos):
    """64 GPUs in two segments under four spines: two tiers, three stages (figure 13-8).

    ::

        +--------+  +--------+  +--------+  +--------+
        | spine0 |  | spine1 |  | spine2 |  | spine3 |        4 x 800 Gbps down each
        +--------+  +--------+  +--------+  +--------+
             |  every rail switch to every spine  |           800 Gbps, or 2 x 400 Gbps:
        +-------+  +-------+    +-------+  +-------+          uplink_rate=400G
        | rail0 |  | rail1 |    | rail2 |  | rail3 |          3.2 Tbps down, 3.2 Tbps up
        +-------+  +-------+    +-------+  +-------+
          eth0       eth1         eth0       eth1             32 x 100 Gbps each: 8 rails of 4
        segment 0: h0 ... h3    segment 1: h4 ... h7          8 GPUs a server, 2 x 100 Gbps a GPU

    Every GPU has a port on both switches of its segment, and a fabric address over both.

    64 GPUs, 8 switches, 144 links; bisection: servers 6.4 Tbps, rails 6.4 Tbps;
    oversubscription: rail 1:1.
    """

    NAME = "pod"


@register
@with_defaults(**POD, pods=2, super_spines=4)
class MultiPod(Clos):
    """Two pods of 64 GPUs joined by four super-spines: three tiers, five stages (figure 13-9).

    ::

        +--------+  +--------+  +--------+  +--------+
        | super0 |  | super1 |  | super2 |  | super3 |        8 x 800 Gbps each
        +--------+  +--------+  +--------+  +--------+
               |  every spine to every super-spine |          800 Gbps
        +----------------------+  +----------------------+
        | pod 0: spine0 ... 3  |  | pod 1: spine4 ... 7  |    3.2 Tbps down, 3.2 Tbps up each
        |        rail0 ... 3   |  |        rail4 ... 7   |    3.2 Tbps down, 3.2 Tbps up each
        |        64 GPUs       |  |        64 GPUs       |    10.0.0.0/16, 10.1.0.0/16
        +----------------------+  +----------------------+

    Rail switches are those of the pod: 32 x 100 Gbps down, two ports a GPU.

    128 GPUs, 20 switches, 320 links; bisection: servers 12.8 Tbps, rails 12.8 Tbps;
    oversubscription: rail 1:1, spine 1:1.
    """

    NAME = "multi_pod"
