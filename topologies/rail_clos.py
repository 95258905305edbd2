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

from typing import Annotated

from topologies import addressing as plan
from topologies.model import (
    ETHERNET_HEADER,
    Bridge,
    End,
    Link,
    Node,
    Port,
    Role,
    ScaleUp,
    Server,
    Topology,
    TopologyError,
)
from topologies.parameters import COUNT, MTU, PREFIX, RATE, SIZE, TIME
from topologies.units import format_size

NAME = "rail_clos"
MAX_PORTS = 4096  # of one switch: eight times what the largest chips of 2025 offer


def rail_clos(
    *,
    hosts: Annotated[int | str, COUNT, "servers"] = 6,
    gpus_per_host: Annotated[int | str, COUNT, "GPUs of each server, one NIC each"] = 4,
    rails: Annotated[int | str | None, COUNT, "rail switches, one per local rank"] = None,
    spines: Annotated[int | str, COUNT, "spine switches"] = 2,
    nic_rate: Annotated[int | str, RATE, "rate of each NIC"] = "400Gbps",
    uplink_rate: Annotated[int | str | None, RATE, "rate of one uplink; auto: nic_rate"] = None,
    uplinks_per_spine: Annotated[
        int | str | None, COUNT, "parallel links from each rail to each spine; auto: non-blocking"
    ] = None,
    nic_delay: Annotated[int | str, TIME, "delay of a GPU - rail link"] = "600ns",
    uplink_delay: Annotated[int | str, TIME, "delay of a rail - spine link"] = "600ns",
    mtu: Annotated[int | str, MTU, "IP MTU of every link"] = "9000",
    buffer: Annotated[int | str, SIZE, "egress queue of every port"] = "1MiB",
    subnet_prefix: Annotated[int | str, PREFIX, "prefix length of a rail's subnet"] = 24,
    scale_up_rate: Annotated[int | str, RATE, "scale-up rate per GPU, each way"] = "3.6Tbps",
    scale_up_latency: Annotated[int | str, TIME, "scale-up latency"] = "700ns",
) -> Topology:
    """Build the fabric drawn above.

    Raises TopologyError, which names the parameter, when a value is out of range.
    """
    n_hosts = COUNT.read("hosts", hosts)
    n_rails = COUNT.read("gpus_per_host", gpus_per_host)
    n_spines = COUNT.read("spines", spines)
    nic_bps = RATE.read("nic_rate", nic_rate)
    uplink_bps = nic_bps if uplink_rate is None else RATE.read("uplink_rate", uplink_rate)
    nic_ns, uplink_ns = TIME.read("nic_delay", nic_delay), TIME.read("uplink_delay", uplink_delay)
    mtu_bytes, buffer_bytes = MTU.read("mtu", mtu), SIZE.read("buffer", buffer)
    prefix = PREFIX.read("subnet_prefix", subnet_prefix)
    scale_up = ScaleUp(
        rate_bps=RATE.read("scale_up_rate", scale_up_rate),
        latency_ns=TIME.read("scale_up_latency", scale_up_latency),
    )
    if rails is not None and (asked := COUNT.read("rails", rails)) != n_rails:
        raise TopologyError(
            f"rails is {asked} and gpus_per_host {n_rails}; {NAME} has one rail per local rank, "
            "so leave rails out or make them equal"
        )
    if uplinks_per_spine is None:
        parallel = -(-n_hosts * nic_bps // (n_spines * uplink_bps))
    else:
        parallel = COUNT.read("uplinks_per_spine", uplinks_per_spine)

    if (panel := n_hosts + n_spines * parallel) > MAX_PORTS:
        raise TopologyError(
            f"a rail switch would have {panel} ports, above {MAX_PORTS}; take fewer hosts, spines "
            "or uplinks_per_spine, or a higher uplink_rate"
        )
    plan.check_room(n_hosts, prefix)
    if buffer_bytes < mtu_bytes + ETHERNET_HEADER:
        raise TopologyError(
            f"buffer is {format_size(buffer_bytes)}, less than one frame of mtu {mtu_bytes}; "
            "take a larger buffer"
        )

    links: list[Link] = []

    def cable(a: End, b: End, rate_bps: int, delay_ns: int) -> None:
        links.append(
            Link(
                a=a,
                b=b,
                rate_bps=rate_bps,
                delay_ns=delay_ns,
                mtu=mtu_bytes,
                buffer_bytes=buffer_bytes,
            )
        )

    gpus: dict[tuple[int, int], Node] = {}
    spine_ports: list[list[Port]] = [[] for _ in range(n_spines)]
    rail_nodes: list[Node] = []
    for rail in range(n_rails):
        name = f"rail{rail}"
        subnet = plan.rail_subnet(rail, subnet_prefix=prefix)
        gateway = plan.rail_gateway(subnet)
        bridge = Bridge(
            name=name, rail=rail, mac=plan.bridge_mac(switch=rail, rail=rail), gateway=gateway
        )
        ports: list[Port] = []
        for host in range(n_hosts):
            gpu = f"h{host}g{rail}"
            gpus[host, rail] = Node(
                name=gpu,
                role=Role.GPU,
                ports=(
                    Port(
                        name="eth0",
                        mac=plan.gpu_mac(host=host, local_rank=rail),
                        address=plan.rail_address(subnet, host),
                    ),
                ),
                server=f"h{host}",
                local_rank=rail,
                rail=rail,
                gateway=str(gateway.ip),
            )
            mac = plan.switch_mac(Role.RAIL, switch=rail, port=len(ports))
            ports.append(Port(name=f"down{host}", mac=mac, bridge=name))
            cable(End(gpu, "eth0"), End(name, f"down{host}"), nic_bps, nic_ns)
        for spine in range(n_spines):
            for _ in range(parallel):
                up, down = len(ports) - n_hosts, len(spine_ports[spine])
                link_number = (rail * n_spines * parallel) + up
                lower, upper = plan.fabric_link(Role.SPINE, link_number)
                mac = plan.switch_mac(Role.RAIL, switch=rail, port=len(ports))
                ports.append(Port(name=f"up{up}", mac=mac, address=lower))
                mac = plan.switch_mac(Role.SPINE, switch=spine, port=down)
                spine_ports[spine].append(Port(name=f"down{down}", mac=mac, address=upper))
                far = End(f"spine{spine}", f"down{down}")
                cable(End(name, f"up{up}"), far, uplink_bps, uplink_ns)
        rail_nodes.append(_switch(name, Role.RAIL, rail, ports, rail=rail, bridges=(bridge,)))
    spine_nodes = [
        _switch(f"spine{spine}", Role.SPINE, spine, ports)
        for spine, ports in enumerate(spine_ports)
    ]
    return Topology(
        name=NAME,
        parameters={
            "hosts": n_hosts,
            "gpus_per_host": n_rails,
            "rails": n_rails,
            "spines": n_spines,
            "nic_rate": nic_bps,
            "uplink_rate": uplink_bps,
            "uplinks_per_spine": parallel,
            "nic_delay": nic_ns,
            "uplink_delay": uplink_ns,
            "mtu": mtu_bytes,
            "buffer": buffer_bytes,
            "subnet_prefix": prefix,
            "scale_up_rate": scale_up.rate_bps,
            "scale_up_latency": scale_up.latency_ns,
        },
        servers=tuple(
            Server(
                name=f"h{host}",
                gpus=tuple(f"h{host}g{rail}" for rail in range(n_rails)),
                scale_up=scale_up,
            )
            for host in range(n_hosts)
        ),
        nodes=(
            *(gpus[host, rail] for host in range(n_hosts) for rail in range(n_rails)),
            *rail_nodes,
            *spine_nodes,
        ),
        links=tuple(links),
    )


def _switch(
    name: str,
    role: Role,
    number: int,
    ports: list[Port],
    *,
    rail: int | None = None,
    bridges: tuple[Bridge, ...] = (),
) -> Node:
    return Node(
        name=name,
        role=role,
        ports=tuple(ports),
        bridges=bridges,
        rail=rail,
        loopback=plan.loopback(role, number),
        hash_seed=plan.hash_seed(name),
    )
