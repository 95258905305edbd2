"""Fabrics of rail switches as drawn: how many rails a switch has, and what a NIC joins.

The more rails on a switch, the fewer switches a pod of few servers takes; the fewer, the more
servers fit, and the fewer GPUs a failing switch takes with it.  Rail r is VLAN 100 + r of the
drawings, counted from 1, and rail number r - 1 here.  Behind them stand segments without spines,
and servers with a NIC for each GPU, a shared NIC, or a NIC with two planes.

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


@register
@with_defaults(
    hosts=3,
    gpus_per_host=8,
    nic_rate="200Gbps",
    rails_per_switch=8,
    port_order="host",
    spines=0,
)
class SingleRailSwitch(Clos):
    """One switch for all rails: three servers, ports grouped by server (figure 13-4).

    ::

                  +-----------------------------------------------+
                  | rail0 (the switch): rail r is VLAN 101 + r,   |   the gateway of all rails
                  | 10.0.<r+1>.0/24, bridge rail<r>               |
                  +-----------------------------------------------+
                    1 ... 8          9 ... 16         17 ... 24       interfaces
                    | ... |          |  ... |          |  ... |
                   h0g0  h0g7       h1g0  h1g7        h2g0  h2g7    24 x 200 Gbps

    Traffic between rails is routed inside the switch.  When it fails, everything is down.

    24 GPUs, 1 switch, 24 links; bisection: servers 1.6 Tbps, rails 2.4 Tbps.
    """

    NAME = "single_rail_switch"


@register
@with_defaults(
    hosts=3,
    gpus_per_host=8,
    nic_ports=2,
    nic_rate="200Gbps",
    homing="auto",
    rails_per_switch=8,
    port_order="host",
    spines=0,
)
class DualRailSwitch(Clos):
    """Two switches for all rails, every NIC with a port on both: nothing cut off (figure 13-5).

    ::

        +-----------------------+  peers  +-----------------------+
        | rail0: all rails      |---------| rail1: the same       |   one gateway for each rail,
        | 10.0.1.0 ... 10.0.8.0 |  (8 x)  | 10.0.1.0 ... 10.0.8.0 |   as with MLAG
        +-----------------------+         +-----------------------+
             |     ...    |                    |     ...    |
            eth0         eth0                 eth1         eth1         2 x 200 Gbps a GPU:
            h0g0   ...   h2g7                 h0g0   ...   h2g7         bond0, one address

    The two switches look like one.  A switch, a link or a port that fails leaves every GPU half of
    its bandwidth.  A kernel without bonds has two paths to each GPU instead, at a fabric address.

    24 GPUs, 2 switches, 56 links; bisection: servers 3.2 Tbps, rails 4.8 Tbps.
    """

    NAME = "dual_rail_switch"


@register
@with_defaults(hosts=4, gpus_per_host=8, spines=0)
class RailOnly(Clos):
    """One switch a rail and no spine: other rails are reached over NVLink (figure 13-6).

    ::

        +-------+  +-------+       +-------+
        | rail0 |  | rail1 |  ...  | rail7 |        nothing joins the rails but the servers:
        +-------+  +-------+       +-------+        h0g1 -> h1g2 goes by NVLink to h0g2,
         | .. |     | .. |          | .. |          and leaves on rail 2 (PXN)
        h0g0 h3g0  h0g1 h3g1       h0g7 h3g7        4 x 400 Gbps a switch

    The figure has its rails on two switches: ``rails_per_switch=4``.

    32 GPUs, 8 switches, 32 links; bisection: servers 6.4 Tbps, rails 0 bps.
    """

    NAME = "rail_only"


@register
@with_defaults(
    hosts=4,
    gpus_per_host=8,
    nic_ports=2,
    nic_rate="200Gbps",
    homing="auto",
    rails_per_switch=8,
    switch_ports=48,
    port_order="interleaved",
    spines=0,
)
class HostSegment(Clos):
    """Four servers of eight GPUs, 2 x 200 Gb/s each, on two switches (figures 13-6, 13-7).

    ::

        rail 1: 1  4  7 10   rail 2: 13 16 19 22   rail 3: 25 28 31 34   rail 4: 37 40 43 46
        rail 5: 2  5  8 11   rail 6: 14 17 20 23   rail 7: 26 29 32 35   rail 8: 38 41 44 47
                h0 h1 h2 h3          h0 h1 h2 h3           h0 h1 h2 h3           h0 h1 h2 h3
        +-----------------------------------------------------------------------------------+
        | rail0: 10.0.1.0 ... 10.0.8.0, first ports; interface n of its 48 is down<n - 1>   |
        +-----------------------------------------------------------------------------------+
        +-----------------------------------------------------------------------------------+
        | rail1: the same, second ports; looks like one switch with rail0, as with MLAG     |
        +-----------------------------------------------------------------------------------+

    A GPU has both ports in a bond, with one address; a peer link for each rail joins the switches.
    A kernel without bonds has two paths to each GPU instead, at a fabric address.

    32 GPUs, 2 switches, 72 links; bisection: servers 6.4 Tbps, rails 6.4 Tbps.
    """

    NAME = "host_segment"


@register
@with_defaults(
    hosts=2,
    gpus_per_host=8,
    nic_rate="200Gbps",
    rails_per_switch=8,
    port_order="host",
    spines=0,
)
class NicPerGpu(Clos):
    """H100-style servers with a 200 Gb/s NIC for each GPU (figure 13-2).

    ::

        h0g0  h0g1 ... h0g7     h1g0  h1g1 ... h1g7      each GPU has a PCIe switch and a NIC
          |     |        |        |     |        |       of its own: nothing is divided
        +-------------------------------------------+
        |        rail0 (the switch): 8 rails        |    16 x 200 Gbps
        +-------------------------------------------+

    16 GPUs, 1 switch, 16 links; bisection: servers 1.6 Tbps, rails 1.6 Tbps.
    """

    NAME = "nic_per_gpu"


@register
@with_defaults(
    hosts=2,
    gpus_per_host=8,
    gpus_per_nic=4,
    nic_rate="200Gbps",
    rails_per_switch=2,
    port_order="host",
    spines=0,
)
class SharedNic(Clos):
    """H100-style servers whose baseboards of four GPUs share a 200 Gb/s NIC (figure 13-1).

    ::

        h0g0 h0g1 h0g2 h0g3   h0g4 h0g5 h0g6 h0g7        PCIe Gen5 x16: 32 GB/s a GPU, each way
          |    |    |    |      |    |    |    |
        +-------------------+ +-------------------+
        |       h0n0        | |       h0n1        |      the NIC, 25 GB/s: four GPUs divide it
        +-------------------+ +-------------------+
                  |                     |                2 x 200 Gbps a server
        +-------------------------------------------+
        |        rail0 (the switch): 2 rails        |
        +-------------------------------------------+

    16 GPUs, 1 switch, 20 links; bisection: servers 400 Gbps, rails 400 Gbps;
    oversubscription: nic 5.12:1.
    """

    NAME = "shared_nic"


@register
@with_defaults(
    hosts=2,
    gpus_per_host=2,
    nic_ports=2,
    homing="planes",
    rails_per_switch=2,
    planes="own",
    spines=0,
)
class FabricPlanes(Clos):
    """Two fabric planes under UET: an endpoint of every NIC in each of them (figure 14-1).

    ::

        plane 1                    plane 2
        +----------------------+   +----------------------+
        | rail0 (leaf 101)     |   | rail1 (leaf 102)     |
        +----------------------+   +----------------------+
          |    |    |    |           |    |    |    |
         111  112  121  122         211  212  221  222       FEPs: plane, server, GPU
        h0g0 h0g1 h1g0 h1g1        h0g0 h0g1 h1g0 h1g1       (eth0 left, eth1 right)

    Each NIC is a fabric interface: its FEPs have an address each (FEP 111 is 10.1.1.2, FEP 211
    10.2.1.2) and one MAC.  Nothing joins the planes but the NICs: an address of plane 2 is not
    reached through plane 1.  With ``spines`` each plane has as many of its own.  With
    ``homing=paths`` a NIC is one FEP, with one address over both ports.

    4 GPUs, 2 switches, 8 links; bisection: servers 1.6 Tbps, rails 1.6 Tbps.
    """

    NAME = "fabric_planes"
