"""A fabric from an InfraGraph infrastructure: servers with XPUs, switches, and the edges between.

InfraGraph has a graph with rates and latencies.  What a fabric has beside it follows from the graph
or is the default of all designs: tiers by the distance from GPUs, a subnet for each bottom switch
(a rail's, where all of its GPUs have one local rank that no other switch has), addresses by the
plan.

An InfraGraph infrastructure expanded: every endpoint of every edge, by the schema's slices.

The schema is that of InfraGraph 3.1.  What is expanded is bounded, whatever a file claims.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from topologies import addressing as plan
from topologies.exports.infragraph_export import MANY_TO_MANY, ONE_TO_ONE
from topologies.model import MESH, RING, SWITCH, Role, ScaleUp, Topology, TopologyError
from topologies.parts.assembly import Assembly
from topologies.parts.design import CabledDesign
from topologies.profile.yaml_lines import DEEPEST, bracket_depth

Json = Mapping[str, Any]
#: Instances, edges and components that are expanded, at most.
MOST_INSTANCES, MOST_EDGES, MOST_COMPONENTS = 100_000, 1_000_000, 100_000
#: Devices inside each other.
DEEPEST_DEVICE = 8
#: Components of a path, each with its index: ``(("cx5", 0), ("port", 1))``.
Path = tuple[tuple[str, int], ...]
_PART = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")
_SLICE = re.compile(r"(-?\d{1,9})?(?::(-?\d{1,9})?(?::(\d{1,9}))?)?")


@dataclass(frozen=True)
class GraphEndpoint:
    instance: str
    number: int
    path: Path


def objects(container: Json, key: str, what: str) -> list[Json]:
    """Return the list of objects ``key`` of ``container``; TopologyError if it is none."""
    found = container.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise TopologyError(f"{what} {key!r} is no list of objects")
    return found


def text_of(container: Json, key: str, what: str) -> str:
    found = container.get(key)
    if not isinstance(found, str) or not found:
        raise TopologyError(f"{what} has no {key!r} that is a text")
    return found


def count_of(container: Json, what: str, most: int) -> int:
    found = container.get("count")
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= most:
        raise TopologyError(f"{what} has the count {found!r}; a number from 1 to {most} is needed")
    return found


class Devices:
    """The devices of an infrastructure by name, and what they consist of."""

    def __init__(self, infrastructure: Json) -> None:
        self._components: dict[str, dict[str, Json]] = {}
        self._totals: dict[tuple[str, str], int] = {}
        self.by_name: dict[str, Json] = {}
        for device in objects(infrastructure, "devices", "the infrastructure's"):
            name = text_of(device, "name", "a device")
            self.by_name[name] = device
            self._components[name] = {
                text_of(one, "name", f"a component of {name}"): one
                for one in objects(device, "components", f"device {name}'s")
            }

    def components(self, device: str) -> Mapping[str, Json]:
        if device not in self._components:
            raise TopologyError(f"there is no device {device!r} among the infrastructure's")
        return self._components[device]

    def number_of(self, device: str, choice: str, above: tuple[str, ...] = ()) -> int:
        """Return how many components of a ``choice`` a device has, those of inner ones included.

        ``above`` are the devices that contain it.
        """
        if (device, choice) in self._totals:
            return self._totals[device, choice]
        if device in above or len(above) > DEEPEST_DEVICE:
            raise TopologyError(
                f"device {device} contains itself, or is {DEEPEST_DEVICE} levels deep"
            )
        total = 0
        for name, component in self.components(device).items():
            count = count_of(component, f"component {name} of {device}", MOST_COMPONENTS)
            if component.get("choice") == choice:
                total += count
            elif component.get("choice") == "device":
                total += count * self.number_of(name, choice, (*above, device))
        if total > MOST_COMPONENTS:
            raise TopologyError(f"device {device} has more than {MOST_COMPONENTS} components")
        self._totals[device, choice] = total
        return total

    def paths(self, device: str, text: str) -> list[Path]:
        """Return the components that ``text`` names: ``nic[0:4]``, ``cx5[0].port[1]``."""
        parts: list[list[tuple[str, int]]] = []
        total = 1
        for part in text.split("."):
            name, inside = split(part)
            component = self.components(device).get(name)
            if component is None:
                raise TopologyError(f"device {device} has no component {name!r} ({text})")
            count = count_of(component, f"component {name} of {device}", MOST_COMPONENTS)
            parts.append([(name, number) for number in indices(inside, count, text)])
            total *= len(parts[-1])
            if total > MOST_COMPONENTS:
                raise TopologyError(f"{text!r} names more than {MOST_COMPONENTS} components")
            device = name  # an inner device has its component's name
        return list(product(*parts))


def split(part: str) -> tuple[str, str]:
    """Return name and slice of ``name[slice]``; all where there is no slice."""
    match = _PART.fullmatch(part)
    if match is None:
        raise TopologyError(f"{part!r} is no name with a slice such as nic[0:4]")
    return match[1], match[2] if match[2] is not None else ":"


def indices(inside: str, count: int, text: str) -> Sequence[int]:
    """Return what a slice selects of ``count`` things, as Python has it."""
    match = _SLICE.fullmatch(inside)
    if match is None:
        raise TopologyError(f"the slice [{inside}] of {text!r} is none; write [0], [0:4] or [:]")
    start, stop, step = (int(one) if one else None for one in match.groups())
    if ":" not in inside:
        number = start if start is not None else 0
        if not -count <= number < count:
            raise TopologyError(f"{text!r} has no number {number}; there are {count}")
        return [number % count]
    if step == 0:
        raise TopologyError(f"the slice [{inside}] of {text!r} has the step 0")
    return range(*slice(start, stop, step).indices(count))


def pairs(one: Sequence[Any], other: Sequence[Any], scheme: object) -> Iterator[tuple[Any, Any]]:
    """Yield what a scheme joins; TopologyError for one that InfraGraph's own library refuses."""
    if scheme in (None, ONE_TO_ONE):
        yield from zip(one, other, strict=False)
    elif scheme == MANY_TO_MANY:
        yield from product(one, other)
    else:
        raise TopologyError(f"edges have the scheme {scheme!r}; take one2one or many2many")


#: Characters of a file, by its form: YAML takes far longer to read.
LARGEST_JSON, LARGEST_YAML = 64 << 20, 1 << 20
_NAME = "infragraph"
_ROLES = (Role.LEAF, Role.SPINE, Role.SUPER_SPINE)
_UNITS_BPS = {"gigabits_per_second": 10**9, "gigabytes_per_second": 8 * 10**9}
_UNITS_NS = {"ns": 1, "us": 1000, "ms": 10**6}
_STATED = re.compile(r"IP MTU (\d{1,6}) octets, buffer (\d{1,10}) octets")
BRIDGE = "gpus"


@dataclass(frozen=True)
class _Cable:
    """An edge between two instances, with its rate and delay."""

    ends: tuple[GraphEndpoint, GraphEndpoint]
    rate_bps: int
    delay_ns: int


@dataclass
class _Graph:
    """Servers with their devices, switches, and cables between them."""

    servers: dict[str, str] = field(default_factory=dict)
    switches: dict[str, str] = field(default_factory=dict)
    cables: list[_Cable] = field(default_factory=list)


def read_infragraph(text: str, name: str) -> Topology:
    """Return the fabric in ``text``, the content of the file ``name``.

    TopologyError, which begins with the file's name, for what cannot be built.
    """
    try:
        infrastructure = _content(text, name)
        return _Importer(infrastructure).topology(name)
    except TopologyError as error:
        raise TopologyError(f"{name}: {error}") from None


def _content(text: str, name: str) -> Json:
    is_json = name.lower().endswith(".json")
    most = LARGEST_JSON if is_json else LARGEST_YAML
    if len(text) > most:
        form = "JSON" if is_json else "YAML; as JSON it may be larger"
        raise TopologyError(f"longer than {most} characters of {form}")
    if not is_json and bracket_depth(text) > DEEPEST:
        raise TopologyError(f"more than {DEEPEST} brackets are open at once")
    try:
        content: Any = json.loads(text) if is_json else YAML(typ="safe", pure=True).load(text)
    except (ValueError, YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())[:160]
        raise TopologyError(f"it cannot be read ({reason})") from None
    if isinstance(content, dict) and isinstance(content.get("infrastructure"), dict):
        content = content["infrastructure"]
    if not isinstance(content, dict):
        raise TopologyError("it holds no object with devices, instances and edges")
    return content


class _Importer:
    """Reads an infrastructure, and puts its fabric together."""

    def __init__(self, infrastructure: Json) -> None:
        self._content = infrastructure
        self._devices = Devices(infrastructure)
        self._links = {
            text_of(link, "name", "a link"): link
            for link in objects(infrastructure, "links", "the infrastructure's")
        }
        self._instances: dict[str, tuple[str, int]] = {}
        names: dict[str, str] = {}
        for one in objects(infrastructure, "instances", "the infrastructure's"):
            instance = text_of(one, "name", "an instance")
            device = text_of(one, "device", f"instance {instance}")
            self._devices.components(device)
            count = count_of(one, f"instance {instance}", MOST_INSTANCES)
            alike = names.setdefault(node_name(instance, 0, count), instance)
            if alike != instance:
                raise TopologyError(f"instances {alike} and {instance} have one name in lower case")
            self._instances[instance] = (device, count)

    def topology(self, name: str) -> Topology:
        graph = self._graph()
        levels = _levels(graph)
        homes = self._homes(graph)
        rails = _rails(graph, homes, levels)
        fabric = self._assembly()
        gpus: dict[GraphEndpoint, str] = {}
        for server, device in graph.servers.items():
            xpus = self._devices.number_of(device, "xpu")
            each = len(homes[server]) // xpus
            names = fabric.server(
                server, xpus, scale_up=self._scale_up(device), homed=each, rails=rails is not None
            )
            for port, rank in homes[server].items():
                gpus[port] = names[rank]
        self._switches(fabric, graph, levels, rails)
        self._plug(fabric, graph, levels, gpus)
        return fabric.topology(_NAME, {"file": name})

    # ------------------------------------------------------------------ the graph

    def _graph(self) -> _Graph:
        graph = _Graph()
        taken: set[GraphEndpoint] = set()
        for edge in objects(self._content, "edges", "the infrastructure's"):
            link = text_of(edge, "link", "an edge of the infrastructure")
            rate_bps, delay_ns = self._physical(link)
            near, far = (self._endpoints(edge, key) for key in ("ep1", "ep2"))
            for one, other in pairs(near, far, edge.get("scheme")):
                for end in (one, other):
                    if end in taken:
                        raise TopologyError(f"{_where(end)} has two cables; a port has one")
                    taken.add(end)
                graph.cables.append(_Cable((one, other), rate_bps, delay_ns))
                if len(graph.cables) > MOST_EDGES:
                    raise TopologyError(f"there are more than {MOST_EDGES} edges")
        # in the order of the instances, which is that of ranks
        used = {end.instance for cable in graph.cables for end in cable.ends}
        for instance, (device, count) in self._instances.items():
            is_server = self._devices.number_of(device, "xpu") > 0
            for number in range(count):
                node = node_name(instance, number, count)
                if node in used:
                    (graph.servers if is_server else graph.switches)[node] = device
        if not graph.servers or not graph.switches:
            raise TopologyError("a fabric needs servers, whose devices have XPUs, and switches")
        return graph

    def _endpoints(self, edge: Json, key: str) -> list[GraphEndpoint]:
        end = edge.get(key)
        if not isinstance(end, dict):
            raise TopologyError(f"an edge has no {key!r} with instance and component")
        text = text_of(end, "instance", f"the {key} of an edge")
        instance, inside = split(text)
        if instance not in self._instances:
            raise TopologyError(f"there is no instance {instance!r}, which an edge names")
        device, count = self._instances[instance]
        paths = self._devices.paths(device, text_of(end, "component", f"the {key} of an edge"))
        numbers = indices(inside, count, text)
        if len(numbers) * len(paths) > MOST_EDGES:
            raise TopologyError(f"an edge at {text} has more than {MOST_EDGES} ends")
        return [
            GraphEndpoint(node_name(instance, number, count), number, path)
            for number in numbers
            for path in paths
        ]

    def _physical(self, name: str) -> tuple[int, int]:
        """Return rate (bit/s) and latency (ns) of a link of the infrastructure."""
        if name not in self._links:
            raise TopologyError(f"there is no link {name!r} among the infrastructure's")
        rate = _quantity(self._links[name], "bandwidth", _UNITS_BPS)
        if rate is None:
            raise TopologyError(
                f"link {name} has no physical.bandwidth in gigabits_per_second or "
                "gigabytes_per_second, without which nothing can be timed"
            )
        latency = _quantity(self._links[name], "latency", _UNITS_NS)
        return rate, int(_defaults().uplink_delay) if latency is None else latency

    def _homes(self, graph: _Graph) -> dict[str, dict[GraphEndpoint, int]]:
        """Return by server the local rank of the GPU that each of its ports belongs to."""
        ports: dict[str, list[GraphEndpoint]] = {server: [] for server in graph.servers}
        for cable in graph.cables:
            for end in cable.ends:
                if end.instance in ports:
                    ports[end.instance].append(end)
        homes = {}
        for server, ends in ports.items():
            xpus = self._devices.number_of(graph.servers[server], "xpu")
            if len(ends) % xpus:
                raise TopologyError(
                    f"server {server} has {xpus} XPUs and {len(ends)} cables; each XPU needs as "
                    "many of its own: NICs that XPUs share cannot be imported"
                )
            each = len(ends) // xpus
            ends.sort(key=lambda end: end.path)
            homes[server] = {port: number // each for number, port in enumerate(ends)}
        return homes

    def _scale_up(self, device: str) -> ScaleUp:
        """Return the network that joins the XPUs of a device; the default where it shows none."""
        content = self._devices.by_name[device]
        links = {one.get("name"): one for one in objects(content, "links", f"device {device}'s")}
        usual = _defaults().scale_up_network
        for edge in objects(content, "edges", f"device {device}'s"):
            kinds = [self._kind(device, edge.get(key)) for key in ("ep1", "ep2")]
            if kinds.count("xpu") == 0 or not set(kinds) <= {"xpu", "switch"}:
                continue
            link = links.get(edge.get("link"), {})
            rate = _quantity(link, "bandwidth", _UNITS_BPS)
            latency = _quantity(link, "latency", _UNITS_NS)
            if rate is None:
                continue  # PCIe and such
            joined = MESH if edge.get("scheme") == "many2many" else RING
            return ScaleUp(
                rate_bps=rate,
                latency_ns=usual.latency_ns if latency is None else latency,
                shape=SWITCH if "switch" in kinds else joined,
            )
        return usual

    def _kind(self, device: str, end: object) -> str:
        name = end.get("component") if isinstance(end, dict) else None
        if not isinstance(name, str):
            return ""
        component = self._devices.components(device).get(split(name.partition(".")[0])[0], {})
        return str(component.get("choice"))

    # ------------------------------------------------------------------ the fabric

    def _assembly(self) -> Assembly:
        stated = _STATED.search(str(self._content.get("description")))
        usual = _defaults()
        mtu, buffer = (int(stated[1]), int(stated[2])) if stated else (usual.mtu, usual.buffer)
        return Assembly(mtu=mtu, buffer_bytes=buffer)

    @staticmethod
    def _switches(
        fabric: Assembly,
        graph: _Graph,
        levels: Mapping[str, int],
        rails: Mapping[str, int] | None,
    ) -> None:
        members = Counter(
            end.instance
            for cable in graph.cables
            if any(one.instance in graph.servers for one in cable.ends)
            for end in cable.ends
        )
        flat = max(levels.values()) == 0 and len(levels) > 1 and _any_between(graph)
        for level, role in enumerate(_ROLES):
            number = 0
            for switch in graph.switches:
                if levels[switch] != level:
                    continue
                if level:
                    fabric.switch(role, switch)
                    continue
                rail = None if rails is None else rails[switch]
                bottom = Role.ROUTER if flat else role if rail is None else Role.RAIL
                fabric.switch(bottom, switch, rail=rail)
                place = number if rail is None else rail
                subnet = plan.leaf_subnet(place, members[switch])
                fabric.bridge(switch, BRIDGE, rail=rail or 0, subnet=subnet)
                number += 1

    @staticmethod
    def _plug(
        fabric: Assembly,
        graph: _Graph,
        levels: Mapping[str, int],
        gpus: Mapping[GraphEndpoint, str],
    ) -> None:
        down = {end: cable for cable in graph.cables for end in cable.ends if end in gpus}
        for port, gpu in gpus.items():
            cable = down[port]
            far = cable.ends[1] if cable.ends[0] == port else cable.ends[0]
            rate, delay = cable.rate_bps, cable.delay_ns
            fabric.attach(gpu, far.instance, BRIDGE, rate_bps=rate, delay_ns=delay)
        for cable in graph.cables:
            one, other = (end.instance for end in cable.ends)
            if one in levels and other in levels:
                lower, upper = sorted((one, other), key=lambda name: levels[name])
                fabric.join(lower, upper, rate_bps=cable.rate_bps, delay_ns=cable.delay_ns)


def node_name(instance: str, number: int, count: int) -> str:
    """Return the name of a node: ``h[3]`` is h3, ``tier_0[3]`` tier-0-3.

    An instance of one whose name ends in a digit keeps its name.
    """
    base = re.sub(r"[^a-z0-9]+", "-", instance.lower())
    if not base[-1:].isdigit():
        return f"{base}{number}"
    return base if count == 1 else f"{base}-{number}"


def _where(end: GraphEndpoint) -> str:
    return f"{end.instance}:{'.'.join(f'{name}[{number}]' for name, number in end.path)}"


def _quantity(link: Json, key: str, units: Mapping[str, int]) -> int | None:
    """Return a physical property of a link in its base unit; None where it has none."""
    physical = link.get("physical")
    found = physical.get(key) if isinstance(physical, dict) else None
    for unit, factor in units.items():
        value = found.get(unit) if isinstance(found, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e7:
            return round(value * factor)
    return None


def _defaults() -> CabledDesign:
    """Return the parameters that all designs share, with their defaults."""
    return CabledDesign()


def _any_between(graph: _Graph) -> bool:
    return any(all(end.instance in graph.switches for end in one.ends) for one in graph.cables)


def _levels(graph: _Graph) -> dict[str, int]:
    """Return the tier of each switch: 0 has GPUs, 1 stands above it, and so on."""
    neighbours: dict[str, set[str]] = {switch: set() for switch in graph.switches}
    levels: dict[str, int] = {}
    for cable in graph.cables:
        one, other = (end.instance for end in cable.ends)
        if one in graph.servers and other in graph.servers:
            raise TopologyError(f"{one} and {other} are joined without a switch between them")
        for switch, far in ((one, other), (other, one)):
            if switch in neighbours and far in graph.servers:
                levels[switch] = 0
            elif switch in neighbours:
                neighbours[switch].add(far)
    edge = list(levels)
    while edge:
        above = {far for near in edge for far in neighbours[near] if far not in levels}
        level = levels[edge[0]] + 1
        edge = sorted(above)
        levels |= dict.fromkeys(edge, level)
    for switch in graph.switches:
        if switch not in levels:
            raise TopologyError(f"no way leads from a GPU to switch {switch}")
    top = max(levels.values())
    if top >= len(_ROLES):
        raise TopologyError(f"there are {top + 1} tiers of switches; at most {len(_ROLES)} can be")
    for switch, far in _uneven(neighbours, levels, top):
        raise TopologyError(
            f"{switch} and {far} are joined and in the tiers {levels[switch]} and {levels[far]}; "
            "cables lead to the next tier, or all switches have GPUs"
        )
    return levels


def _uneven(
    neighbours: Mapping[str, set[str]], levels: Mapping[str, int], top: int
) -> Iterator[tuple[str, str]]:
    for switch, others in neighbours.items():
        for far in others:
            if abs(levels[switch] - levels[far]) != 1 and top:
                yield switch, far


def _rails(
    graph: _Graph, homes: Mapping[str, Mapping[GraphEndpoint, int]], levels: Mapping[str, int]
) -> dict[str, int] | None:
    """Return the rail of each bottom switch; None where switches are no rails."""
    ranks: dict[str, set[int]] = {}
    for cable in graph.cables:
        for end, far in (cable.ends, cable.ends[::-1]):
            if end.instance in homes:
                ranks.setdefault(far.instance, set()).add(homes[end.instance][end])
    if any(len(found) > 1 for found in ranks.values()):
        return None
    rails = {switch: next(iter(found)) for switch, found in ranks.items()}
    bottom = [switch for switch, level in levels.items() if level == 0]
    if sorted(rails.values()) != list(range(len(bottom))) or len(bottom) < 2:
        return None
    return rails
