"""Leaves under one spine: the smallest fabric whose GPUs are on several switches.

uetemu graph --plugin ./one_spine.py one_spine:leaves=3,hosts=4

::

          spine0
         /      \\
      leaf0     leaf1        one cable to each leaf
      |   |     |   |
    h0g0 h1g0  h2g0 h3g0     servers of one GPU
"""

from dataclasses import dataclass, fields

from topologies import addressing as plan
from topologies.designs.bottom import Servers
from topologies.model import Role, Topology, TopologyError
from topologies.parts.assembly import Assembly
from topologies.parts.design import CabledDesign, parameter, register
from topologies.parts.design_parameters import COUNT


@register
@dataclass(frozen=True, kw_only=True)
class OneSpine(CabledDesign):
    """Leaves under one spine, with servers of one GPU.

    4 GPUs, 3 switches, 6 links; bisection: servers 400 Gbps; oversubscription: leaf 2:1.
    """

    NAME = "one_spine"

    leaves: int = parameter(2, COUNT, "leaf switches")
    hosts: int = parameter(2, COUNT, "servers at each leaf")

    def topology(self) -> Topology:
        if self.leaves == 1:
            raise TopologyError("leaves is 1; one switch needs no spine: take 2 or more")
        fabric = Assembly(mtu=self.mtu, buffer_bytes=self.buffer)
        total = self.leaves * self.hosts
        servers = Servers(self, fabric, total=total, gpus_per_host=1, fewer="leaves or hosts")
        spine = fabric.switch(Role.SPINE, "spine0")
        for number in range(self.leaves):
            leaf = fabric.switch(Role.LEAF, f"leaf{number}")
            subnet = plan.leaf_subnet(number, self.hosts)
            servers.plug(leaf, self.hosts, subnet, pod=None)
            fabric.join(leaf, spine, rate_bps=self.nic_rate, delay_ns=self.uplink_delay)
        parameters = {field.name: getattr(self, field.name) for field in fields(self)}
        return fabric.topology(self.NAME, parameters)
