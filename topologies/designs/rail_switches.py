"""The number of rails on one rail switch: several, two, or one.

The more rails, the fewer switches a pod of few servers takes; the fewer, the more servers fit, and
the fewer GPUs a failing switch takes with it.  Rail r is VLAN 100 + r of the drawings, counted
from 1, and rail number r - 1 here.

Numbers in the docstrings are those of the defaults; a test computes them.
"""

from __future__ import annotations

from topologies.designs.clos import Clos
from topologies.parts.design import register, with_defaults


@register
@with_defaults(
    segments=2,
    hosts=4,
    gpus_per_host=8,
    rails_per_switch=8,
    switch_ports=48,
    spines=4,
    uplink_rate="800Gbps",
    subnet_prefix=28,
)
class MultiRailPerSwitch(Clos):
    """Eight rails on a 48-port switch, each a /28 whose /24 spines learn (figure 13-10).

    ::

        +--------+  ...  +--------+                      10.0.1.0/24, 10.0.2.0/24, ... by way of
        | spine0 |       | spine3 |                      rail0; 10.0.9.0/24, ... by way of rail1
        +--------+       +--------+
             |  4 x 800 Gbps to each  |
        +--------------------------------------------------+    +-------------------------+
        | rail0  VLAN 101     VLAN 102     ...  VLAN 108   |    | rail1, of the second    |
        |        10.0.1.0/28  10.0.2.0/28  ...             |    | segment                 |
        +--------------------------------------------------+    +-------------------------+
             1 ... 4        5 ... 8        ...  29 ... 32        32 x 400 Gbps down,
            h0g0 h3g0      h0g1 h3g1           h0g7 h3g7         16 x 800 Gbps up: 48 ports

    The figure has one of the two segments.

    64 GPUs, 6 switches, 96 links; bisection: servers 12.8 Tbps, rails 12.8 Tbps;
    oversubscription: rail 1:1.
    """

    NAME = "multi_rail_per_switch"


@register
@with_defaults(
    hosts=16,
    gpus_per_host=8,
    rails_per_switch=2,
    spines=4,
    uplink_rate="800Gbps",
    subnet_prefix=25,
    subnets="divided",
)
class DualRailPerSwitch(Clos):
    """Two rails on a switch, which divide its /24; spines learn that one (figure 13-11).

    ::

        +--------+  ...  +--------+                      10.0.1.0/24 by way of rail0,
        | spine0 |       | spine3 |                      10.0.2.0/24 by way of rail1, ...
        +--------+       +--------+
             |  4 x 800 Gbps to each  |
        +-------------------------------+    +-------------------------------+
        | rail0  VLAN 101   VLAN 102    |    | rail1  VLAN 103   VLAN 104    |   ... rail3
        | 10.0.1.0/25     10.0.1.128/25 |    | 10.0.2.0/25     10.0.2.128/25 |
        +-------------------------------+    +-------------------------------+
            1 ... 16        17 ... 32            1 ... 16        17 ... 32
           h0g0  h15g0     h0g1  h15g1          h0g2  h15g2     h0g3  h15g3

    128 GPUs, 8 switches, 192 links; bisection: servers 25.6 Tbps, rails 25.6 Tbps;
    oversubscription: rail 1:1.
    """

    NAME = "dual_rail_per_switch"


@register
@with_defaults(hosts=32, gpus_per_host=8, spines=4)
class SingleRailPerSwitch(Clos):
    """One rail a switch: 32 servers, no summaries, the smallest failure domain (figure 13-12).

    ::

        +--------+  ...  +--------+
        | spine0 |       | spine3 |                   8 x 400 Gbps from each rail switch
        +--------+       +--------+
             |  every switch to every spine
        +-------------+   +-------------+        +-------------+
        | rail0       |   | rail1       |        | rail7       |
        | VLAN 101    |   | VLAN 102    |  ...   | VLAN 108    |
        | 10.0.1.0/24 |   | 10.0.2.0/24 |        | 10.0.8.0/24 |
        +-------------+   +-------------+        +-------------+
           1 ... 32          1 ... 32               1 ... 32      32 x 400 Gbps
         h0g0 ... h31g0    h0g1 ... h31g1         h0g7 ... h31g7

    The scalable unit of NVIDIA has this shape.

    256 GPUs, 12 switches, 512 links; bisection: servers 51.2 Tbps, rails 51.2 Tbps;
    oversubscription: rail 1:1.
    """

    NAME = "single_rail_per_switch"
