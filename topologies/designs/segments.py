"""Segments without spines: one rail switch, two of them, or one for each rail.

Numbers in the docstrings are those of the defaults; a test computes them.
"""

from __future__ import annotations

from topologies.designs.clos import Clos
from topologies.parts.design import register, with_defaults


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
