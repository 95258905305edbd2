"""A fabric as an InfraGraph infrastructure (schema 3.1), in JSON, which its library reads as YAML.

Nodes of one name and consecutive numbers become an instance with a count: ``h0`` to ``h5`` is
``h[0]`` to ``h[5]``.  A server has components ``xpu`` and ``nic``, and ``nvlsw`` where its scale-up
network is a switch.  Port n of a switch is ``port[n]``.  Links have bandwidth and latency; MTU and
buffer, for which the schema has no place, stand in the description.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from topologies import model
from topologies.exports.export_registry import EXPORTS, Export

Json = dict[str, Any]

#: The suffix of such files.
SUFFIX = ".infragraph.json"
XPU, NIC, PORT, NVLINK_SWITCH = "xpu", "nic", "port", "nvlsw"
ONE_TO_ONE, MANY_TO_MANY = "one2one", "many2many"
_PCIE, _NVLINK, _CHIP = "pcie", "nvlink", "asic"
_NUMBERED = re.compile(r"(.*?)(\d+)")


def to_infragraph(topology: model.Topology) -> str:
    """Return ``topology`` as JSON; TopologyError for what InfraGraph or the import has no form."""
    _check(topology)
    gpu_link = next(link for link in topology.links if _is_gpu(topology, link))
    places = _places([server.name for server in topology.servers])
    places |= _places([switch.name for switch in topology.switches])
    devices: dict[str, Json] = {}
    kinds: dict[str, str] = {}
    for server in topology.servers:
        device = _server(server, len(topology.node(server.gpus[0]).ports))
        kinds[server.name] = device["name"]
        devices.setdefault(device["name"], device)
    for switch in topology.switches:
        device = _switch(switch)
        kinds[switch.name] = device["name"]
        devices.setdefault(device["name"], device)
    instances: dict[str, Json] = {}
    for name, (instance, number) in places.items():
        entry = instances.setdefault(
            instance, {"name": instance, "device": kinds[name], "count": 0}
        )
        entry["count"] = max(entry["count"], number + 1)
    links = _links(topology)
    content = {
        "name": topology.name,
        "description": f"Written by uetemu: IP MTU {gpu_link.mtu} octets, buffer "
        f"{gpu_link.buffer_bytes} octets.",
        "devices": list(devices.values()),
        "links": list(links.values()),
        "instances": list(instances.values()),
        "edges": [
            _edge(topology, places, link, links[_key(link)]["name"]) for link in topology.links
        ],
    }
    return json.dumps(content, indent=1) + "\n"


def _check(topology: model.Topology) -> None:
    """Raise TopologyError for a fabric that would come back as another one."""
    if any(node.role is model.Role.NIC for node in topology.nodes):
        raise model.TopologyError(
            f"topology {topology.name} has NICs that GPUs share, which this export does not write; "
            "take --format json"
        )
    if any(link.standby for link in topology.links) or any(node.bonds for node in topology.nodes):
        raise model.TopologyError(
            f"topology {topology.name} has bonds or standby links, for which InfraGraph has no "
            "form; take homing=paths, or --format json"
        )
    if not any(node.role is model.Role.GPU for node in topology.nodes):
        raise model.TopologyError(
            f"topology {topology.name} joins machines and no GPUs, which this export does not "
            "write; take --format json"
        )
    if any(server.scale_up.hosts > 1 for server in topology.servers):
        raise model.TopologyError(
            f"topology {topology.name} has scale-up networks over several servers, which this "
            "export does not write; take --format json"
        )


def _is_gpu(topology: model.Topology, link: model.Link) -> bool:
    return any(topology.node(end.node).role is model.Role.GPU for end in link.ends)


def _places(names: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return the instance and the number of each node.

    Names with consecutive numbers from 0 share an instance; another name is an instance of one.
    """
    found: dict[str, list[int]] = {}
    parts = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is not None and match[1] and str(int(match[2])) == match[2]:
            parts[name] = (match[1], int(match[2]))
            found.setdefault(match[1], []).append(int(match[2]))
    whole = {head for head, numbers in found.items() if sorted(numbers) == [*range(len(numbers))]}
    return {
        name: parts[name] if name in parts and parts[name][0] in whole else (name, 0)
        for name in names
    }


def _component(name: str, count: int, choice: str) -> Json:
    return {"name": name, "count": count, "choice": choice}


def _physical(name: str, rate_bps: int, latency_ns: int) -> Json:
    return {
        "name": name,
        "physical": {
            "bandwidth": {
                "choice": "gigabits_per_second",
                "gigabits_per_second": _plain(rate_bps / 10**9),
            },
            "latency": {"choice": "ns", "ns": latency_ns},
        },
    }


def _plain(number: float) -> float | int:
    return int(number) if number.is_integer() else number


def _between(one: str, other: str, link: str, scheme: str) -> Json:
    return {"ep1": {"component": one}, "ep2": {"component": other}, "scheme": scheme, "link": link}


def _server(server: model.Server, ports: int) -> Json:
    """Return the device of a server whose GPUs have ``ports`` ports each."""
    gpus, scale_up = len(server.gpus), server.scale_up
    components = [_component(XPU, gpus, "xpu"), _component(NIC, gpus * ports, "nic")]
    edges = [
        _between(f"{XPU}[{gpu}]", f"{NIC}[{gpu * ports}:{(gpu + 1) * ports}]", _PCIE, MANY_TO_MANY)
        for gpu in range(gpus)
    ]
    if scale_up.shape == model.SWITCH:
        components.append(_component(NVLINK_SWITCH, 1, "switch"))
        edges.append(_between(f"{XPU}[0:{gpus}]", f"{NVLINK_SWITCH}[0]", _NVLINK, MANY_TO_MANY))
    elif scale_up.shape == model.MESH:
        edges.append(_between(f"{XPU}[0:{gpus}]", f"{XPU}[0:{gpus}]", _NVLINK, MANY_TO_MANY))
    else:  # a ring
        edges.append(_between(f"{XPU}[0:{gpus - 1}]", f"{XPU}[1:{gpus}]", _NVLINK, ONE_TO_ONE))
        edges.append(_between(f"{XPU}[{gpus - 1}]", f"{XPU}[0]", _NVLINK, ONE_TO_ONE))
    return {
        "name": f"server_{gpus}x{ports}_{scale_up.shape}",
        "components": components,
        "links": [{"name": _PCIE}, _physical(_NVLINK, scale_up.rate_bps, scale_up.latency_ns)],
        "edges": edges,
    }


def _switch(switch: model.Node) -> Json:
    ports = len(switch.ports)
    return {
        "name": f"{switch.role.value.replace('-', '_')}_switch_{ports}",
        "components": [_component(_CHIP, 1, "switch"), _component(PORT, ports, "port")],
        "links": [{"name": _CHIP}],
        "edges": [_between(f"{_CHIP}[0]", f"{PORT}[0:{ports}]", _CHIP, MANY_TO_MANY)],
    }


def _key(link: model.Link) -> tuple[int, int]:
    return link.rate_bps, link.delay_ns


def _links(topology: model.Topology) -> dict[tuple[int, int], Json]:
    keys: Iterable[tuple[int, int]] = dict.fromkeys(_key(link) for link in topology.links)
    return {key: _physical(f"ethernet_{number}", *key) for number, key in enumerate(keys)}


def _edge(
    topology: model.Topology, places: dict[str, tuple[str, int]], link: model.Link, name: str
) -> Json:
    return {
        "ep1": _endpoint(topology, places, link.a),
        "ep2": _endpoint(topology, places, link.b),
        "scheme": ONE_TO_ONE,
        "link": name,
    }


def _endpoint(
    topology: model.Topology, places: dict[str, tuple[str, int]], end: model.CableEnd
) -> Json:
    node = topology.node(end.node)
    number = [port.name for port in node.ports].index(end.port)
    owner, component = node.name, PORT
    if node.server is not None and node.local_rank is not None:
        owner, component = node.server, NIC
        number += node.local_rank * len(node.ports)
    instance, place = places[owner]
    return {"instance": f"{instance}[{place}]", "component": f"{component}[{number}]"}


EXPORTS.register(Export("infragraph", "InfraGraph's YAML", (SUFFIX,), to_infragraph))
