"""Tunnel ports: what joins the bridges of a stretched rail (VXLAN, RFC 7348).

::

    GPU - down0 -[bridge rail0]- vxlan10101 ~~ UDP between loopbacks ~~ vxlan10101 -[bridge] ...

A tunnel port is no cable's end: what it sends is routed, and leaves by the uplinks in the ordinary
way.  A bridge does not take a frame from its sender's socket
(:mod:`emulator.dataplane.kernel.release`), nor does a tunnel. So the tunnel port lets go of the
sender as the other ports of the bridge do.  With a virtual clock no frame waits in a port, and the
tunnel port sees to it that runs repeat (:mod:`emulator.dataplane.kernel.fabric.tunnel_fields`).
"""

from __future__ import annotations

from emulator.dataplane.kernel import kernel_objects as kernel_object
from emulator.dataplane.kernel.fabric.fabric_plan import FabricPlan
from emulator.dataplane.kernel.fabric.tunnel_fields import tunnel_requests
from emulator.dataplane.kernel.netlink import RouteSocket
from emulator.dataplane.kernel.offloads import switch_off
from emulator.dataplane.kernel.release import release_requests
from topologies.interface_indices import tunnel_port
from topologies.model import VXLAN_OVERHEAD, Bridge, CableEnd, Node


def configure_tunnel(
    kernel: RouteSocket,
    plan: FabricPlan,
    switch: Node,
    bridge: Bridge,
    vni: int,
    *,
    vlan: int | None = None,
) -> None:
    """Queue the tunnel port of ``bridge``, of ``vni``, in ``switch``; the bridge is there.

    With ``vlan`` the bridge is that VLAN of the switch's one.
    """
    end = CableEnd(switch.name, tunnel_port(vni))
    index = plan.indices[end]
    kernel_object.vxlan(
        kernel,
        end.port,
        index,
        vni=vni,
        local=plan.topology.loopbacks[switch.name],
        mtu=mtu_inside(plan, switch, bridge),
        subject=str(end),
    )
    for request in release_requests(tunnel=True) if plan.wires is None else tunnel_requests():
        kernel.queue(request.kind, request.flags, request.body(index), f"{end}, release")
    if plan.wires is not None:
        kernel.flush()  # it has to be there
        switch_off(kernel, end.port)
    master = plan.indices[plan.vlan_bridge(switch) or CableEnd(switch.name, bridge.name)]
    kernel_object.raise_link(kernel, index, alias=plan.alias(end), bridge=master, subject=str(end))
    if vlan is not None:
        kernel_object.vlan_member(kernel, index, vlan, subject=f"{end}, VLAN {vlan}")
    kernel_object.learn_nothing(kernel, index, subject=f"{end}, as a port of its bridge")


def mtu_inside(plan: FabricPlan, switch: Node, bridge: Bridge) -> int:
    """The MTU of the bridge's other ports; of a bridge without any what fits into a tunnel."""
    mtus = {
        port: plan.topology.link_at(CableEnd(switch.name, port.name)).mtu for port in switch.ports
    }
    members = [mtu for port, mtu in mtus.items() if port.bridge == bridge.name]
    return min(members) if members else min(mtus.values()) - VXLAN_OVERHEAD
