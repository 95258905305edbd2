"""Servers and how their GPUs come to the network: a NIC each, a shared NIC, a NIC with two planes.

Numbers in the docstrings are those of the defaults; a test computes them.
"""

from __future__ import annotations

from topologies.designs.clos import Clos
from topologies.parts.design import register, with_defaults


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
