"""What a node knows of each destination: what it was told, what it chose, what it tells others.

The names are those of RFC 4271 (1.1): Adj-RIB-In is what BGP's peers advertise, Loc-RIB what the
switch has chosen of it, Adj-RIB-Out what it advertises to each peer.  The RIB is zebra's, with the
routes of all protocols.  FRR is asked for them.  For what no daemon knows stand the routes that the
topology gives, and ``stands_in`` says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Address
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict, cast

from emulator.dataplane.control_plane import control_plane_choice
from emulator.dataplane.control_plane.convergence import ConvergedState
from emulator.dataplane.control_plane.daemons import directory_of
from emulator.dataplane.control_plane.lab_routing import Routing
from emulator.dataplane.control_plane.render import render
from emulator.dataplane.control_plane.speakers import Speaker, speakers
from emulator.errors import UserError
from topologies.model import CableEnd, Topology
from topologies.routing.forwarding import RouteTable
from topologies.routing.static_routes import destinations, static_routes

#: A switch's file in the folder of a run, beside ``frr.conf``.
ROUTES = "routes.json"
IPV4, EVPN = "ipv4 unicast", "l2vpn evpn"
DEFAULT_VRF = "default"
BEST, EQUAL = "best", "equal"
#: Networks and paths of the node itself.
OWN = "own"
#: Routes that the kernel makes of an interface's address.
CONNECTED = "connected"
#: Lines of FRR's configuration that decide what is advertised.
_EXPORTS = re.compile(
    r"(network|aggregate-address|redistribute|advertise)\b"
    r"|neighbor \S+ (.* out$|route-reflector-client|addpath-tx|attribute-unchanged|next-hop-self)"
)


class BgpPath(TypedDict):
    """A path that ``peer`` advertises, None: this switch.

    ``choice`` is ``best``, ``equal`` (forwards as well), or empty.
    """

    peer: str | None
    next_hop: str
    as_path: str
    choice: str


class RibRoute(TypedDict):
    """A route of zebra or the kernel, over all of ``next_hops``; ``chosen`` among those to it."""

    protocol: str
    chosen: bool
    next_hops: list[str]


class RouteRow(TypedDict):
    """One destination.  ``suppressed``: a summary is advertised in its place."""

    vrf: str
    family: str
    prefix: str
    rib: list[RibRoute]
    loc_rib: list[BgpPath]
    adj_rib_in: list[BgpPath]
    adj_rib_out: list[str]
    suppressed: bool


class RoutesRecord(TypedDict):
    """The routes of a node.  ``source`` is where they were read.

    ``stands_in`` has for columns that are something else, or nothing, what they are.
    """

    node: str
    control_plane: str
    source: str
    export_policy: dict[str, list[str]]
    stands_in: dict[str, str]
    routes: list[RouteRow]


def overlapping(record: RoutesRecord, prefix: IPv4Network) -> RoutesRecord:
    """Return ``record`` with those of its routes alone that cover ``prefix``, or lie in it."""
    rows = [
        row
        for row in record["routes"]
        if any(network.overlaps(prefix) for network in _networks(row["prefix"]))
    ]
    return {**record, "routes": rows}


def _networks(prefix: str) -> Iterator[IPv4Network]:
    """Yield what ``prefix`` is, or has in it if it is one of EVPN.

    ``[2]:[0]:[48]:[MAC]:[32]:[10.0.1.2]`` is a host, ``[5]:[0]:[24]:[10.0.1.0]`` a network.
    """
    if "[" not in prefix:
        yield IPv4Network(prefix)
        return
    fields = re.findall(r"\[([^]]*)\]", prefix)
    for length, address in pairwise(fields):
        if re.fullmatch(r"(\d+\.){3}\d+", address):
            bits = int(length) if length.isdecimal() and int(length) <= 32 else 32
            yield IPv4Network((address, bits), strict=False)


# ------------------------------------------------------------------ FRR


def asked(
    routing: Routing, switch: str, source: str, speaker: Speaker | None = None
) -> RoutesRecord:
    """Return what FRR of ``switch`` answers.  Raises UserError if it does not.

    ``speaker`` is that of the switch, where the caller has it.
    """
    daemons = routing.switches[switch]
    daemons.check_alive()
    speaker = speaker or speakers(routing.topology, routing.plane)[switch]
    peers = _peers(speaker)
    seen = {_seen(routing.topology, switch, key): peer for key, peer in peers.items()}
    families = (IPV4, *((EVPN,) if routing.plane.name == control_plane_choice.EVPN else ()))
    vrfs = (DEFAULT_VRF, *(vrf.name for vrf in speaker.vrfs))
    commands = [f"show ip route vrf {vrf} json" for vrf in vrfs]
    commands += [f"show bgp vrf {vrf} {IPV4} json" for vrf in vrfs]
    commands += [f"show bgp {family} json" for family in families if family == EVPN]
    commands += [
        f"show bgp {family} neighbors {key} advertised-routes json"
        for family in families
        for key in peers
    ]
    answers = _documents(daemons.vtysh(*commands, "show running-config"), len(commands))
    rows: dict[tuple[str, str, str], RouteRow] = {}
    for vrf in vrfs:
        for prefix, routes in next(answers).items():
            _row(rows, vrf, IPV4, prefix)["rib"] = [_rib(route) for route in routes]
    for vrf in vrfs:
        for prefix, paths in next(answers).get("routes", {}).items():
            _add_paths(_row(rows, vrf, IPV4, prefix), paths, seen)
    if EVPN in families:
        for prefix, entry in _evpn(next(answers)):
            _add_paths(_row(rows, DEFAULT_VRF, EVPN, prefix), entry["paths"], seen)
    for family in families:
        for peer in peers.values():
            told = next(answers).get("advertisedRoutes", {})
            for prefix in told if family == IPV4 else dict(_evpn(told)):
                _row(rows, DEFAULT_VRF, family, prefix)["adj_rib_out"].append(peer)
    return {
        "node": switch,
        "control_plane": routing.plane.spec,
        "source": source,
        "export_policy": _exports(next(answers)),
        "stands_in": {
            "adj_rib_in": "BGP's table: no policy refuses a path, FRR drops those with its own AS"
        },
        "routes": [rows[key] for key in sorted(rows, key=_order)],
    }


def _peers(speaker: Speaker) -> dict[str, str]:
    """The peers of ``speaker`` by address, or by port if unnumbered.

    One with several sessions is named with this key.
    """
    by_key = {session.port or str(session.address): session.peer for session in speaker.sessions}
    names = list(by_key.values())
    return {
        key: peer if names.count(peer) == 1 else f"{peer} ({key})" for key, peer in by_key.items()
    }


def _seen(topology: Topology, switch: str, key: str) -> str:
    """Return the address that paths name for the peer ``key``: link-local, if it is a port."""
    if key not in (port.name for port in topology.node(switch).ports):
        return key
    far = topology.far_end(CableEnd(switch, key))
    return link_local(topology.node(far.node).port(far.port).mac)


def link_local(mac: str) -> str:
    """Return the IPv6 address that Linux gives to an interface by itself (RFC 4291, appendix A)."""
    octets = bytes.fromhex(mac.replace(":", ""))
    identifier = bytes((octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]))
    return str(IPv6Address(b"\xfe\x80" + bytes(6) + identifier))


def _documents(text: str, number: int) -> Iterator[Any]:
    """Yield the ``number`` JSON documents that vtysh prints one behind the other, and the rest."""
    decoder = json.JSONDecoder()
    place = 0
    for _ in range(number):
        while text[place].isspace():
            place += 1
        document, place = decoder.raw_decode(text, place)
        yield document
    yield text[place:]


def _row(
    rows: dict[tuple[str, str, str], RouteRow], vrf: str, family: str, prefix: str
) -> RouteRow:
    key = vrf, family, prefix
    if key not in rows:
        rows[key] = _empty(vrf, family, prefix)
    return rows[key]


def _empty(vrf: str, family: str, prefix: str) -> RouteRow:
    return {
        "vrf": vrf,
        "family": family,
        "prefix": prefix,
        "rib": [],
        "loc_rib": [],
        "adj_rib_in": [],
        "adj_rib_out": [],
        "suppressed": False,
    }


def _order(key: tuple[str, str, str]) -> tuple[object, ...]:
    vrf, family, prefix = key
    place = IPv4Network(prefix) if family == IPV4 else prefix
    return vrf != DEFAULT_VRF, vrf, family != IPV4, place


def _rib(route: Mapping[str, Any]) -> RibRoute:
    hops = []
    for hop in route.get("nexthops", ()):
        if hop.get("blackhole") or hop.get("unreachable"):
            hops.append("blackhole")
        elif hop.get("fib"):
            via = f" ({hop['ip']})" if "ip" in hop else ""
            hops.append(f"{hop.get('interfaceName', '')}{via}".strip())
    chosen = bool(route.get("selected"))
    return {"protocol": route["protocol"], "chosen": chosen, "next_hops": hops}


def _add_paths(row: RouteRow, paths: Iterable[Any], seen: Mapping[str, str]) -> None:
    """Add ``paths``; ``seen`` names the peers by the address that paths have for them."""
    for group in paths:
        for path in group if isinstance(group, list) else [group]:
            choice = BEST if path.get("bestpath") else EQUAL if path.get("multipath") else ""
            hops = [hop["ip"] for hop in path.get("nexthops", ()) if "ip" in hop]
            made: BgpPath = {
                "peer": seen.get(path.get("peerId", "")),
                "next_hop": hops[0] if hops else "",
                "as_path": str(path.get("path", "")),
                "choice": choice,
            }
            if made["peer"] is not None:
                row["adj_rib_in"].append(made)
            if choice:
                row["loc_rib"].append(made)
            row["suppressed"] |= bool(path.get("suppressed"))
    for kept in (row["adj_rib_in"], row["loc_rib"]):
        kept.sort(key=lambda path: (path["choice"] != BEST, path["peer"] or ""))


def _evpn(answer: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the routes of EVPN, which stand by their route distinguisher."""
    for distinguisher, routes in answer.items():
        if isinstance(routes, dict):
            for prefix, entry in routes.items():
                if isinstance(entry, dict):
                    yield f"{distinguisher} {prefix}", entry


def _exports(configuration: str) -> dict[str, list[str]]:
    """Return by family the lines of ``configuration`` that decide what is advertised."""
    found: dict[str, list[str]] = {}
    vrf = family = ""
    for line in map(str.strip, configuration.splitlines()):
        if line.startswith("router bgp "):
            vrf = line.partition(" vrf ")[2]
        elif line.startswith("address-family "):
            family = line.removeprefix("address-family ") + (f", VRF {vrf}" if vrf else "")
        elif _EXPORTS.match(line):
            found.setdefault(family, []).append(line)
    return found


# ------------------------------------------------------------------ of the topology


def computed(
    topology: Topology, node: str, source: str, *, kernel: Mapping[str, RibRoute] | None = None
) -> RoutesRecord:
    """Return what stands for the routes of ``node`` where no daemon can be asked.

    ``kernel`` has the routes of a running node by destination (:func:`living_routes`).
    """
    at = topology.node(node)
    plane = control_plane_choice.of(topology) if at.is_switch else None
    rows: list[RouteRow] = []

    def add(prefix: object, protocol: str, hops: Iterable[object]) -> None:
        row = _empty(DEFAULT_VRF, IPV4, str(prefix))
        row["rib"] = [
            {"protocol": protocol, "chosen": True, "next_hops": [str(hop) for hop in hops]}
        ]
        rows.append(row)

    own = destinations(topology).get(node, ())
    for network in own:
        add(network, OWN, ())
    policy: dict[str, list[str]] = {}
    has = f"all {topology.profile.routing} paths" if at.is_switch else "its gateways"
    stands_in = {
        "export_policy": "none: no protocol runs here",
        "adj_rib_in": "nothing: no neighbour tells of routes",
        "adj_rib_out": "nothing: others have routes to what is its own",
        "loc_rib": f"nothing is chosen: the RIB has {has}",
    }
    if plane is not None:
        nowhere = dict.fromkeys((one.name for one in topology.switches), Path("frr.log"))
        policy = _exports(render(topology, plane, logs=nowhere)[node])
        stands_in = dict.fromkeys(("adj_rib_in", "adj_rib_out"), "not known: no daemon was asked")
        stands_in["loc_rib"] = "not known: the RIB has the paths that BGP ends with"
        for destination, found in ConvergedState(topology, plane).requested[node].items():
            add(destination, "bgp", found)
    else:
        for route in static_routes(topology)[node]:
            if kernel is None or route.table is not RouteTable.MAIN:
                name = route.table.name.lower()
                table = "" if route.table is RouteTable.MAIN else f", table {name}"
                hops = [f"{hop.port} ({hop.via})" for hop in route.hops]
                add(route.destination, f"static{table}", hops)
    if kernel is None:
        addresses = {port.interface: port.address for port in at.ports if port.address is not None}
        for interface, address in addresses.items():
            add(address.network, CONNECTED, [interface])
    else:
        for known, living in kernel.items():
            if IPv4Network(known) not in own:
                add(known, living["protocol"], living["next_hops"])
    return {
        "node": node,
        "control_plane": control_plane_choice.STATIC if plane is None else plane.spec,
        "source": source,
        "export_policy": policy,
        "stands_in": stands_in,
        "routes": sorted(rows, key=lambda row: IPv4Network(row["prefix"])),
    }


def living_routes(answer: str) -> dict[str, RibRoute]:
    """Return the routes of ``answer``, of ``ip -j route``, without next hops whose port is down."""
    found: dict[str, RibRoute] = {}
    for route in json.loads(answer):
        prefix = "0.0.0.0/0" if route["dst"] == "default" else route["dst"]
        via = [route["type"]] if "type" in route else []  # such as blackhole
        for hop in route.get("nexthops", [route]):
            if "dev" in hop and "dead" not in hop["flags"]:
                gateway = hop.get("gateway") or hop.get("via", {}).get("host")
                via.append(f"{hop['dev']} ({gateway})" if gateway else hop["dev"])
        protocol = route.get("protocol", "boot")  # that of `ip route add`, which leaves it out
        protocol = CONNECTED if protocol == "kernel" else protocol
        made: RibRoute = {"protocol": protocol, "chosen": True, "next_hops": via}
        found.setdefault(str(IPv4Network(prefix)), made)
    return found


# ------------------------------------------------------------------ run folders


def save(routing: Routing, folder: Path, *, ended: bool) -> None:
    """Write the routes of each switch to the ``folder`` of a run, or why it does not say them.

    FRR is not asked where the run has not ``ended`` by itself: zebra may be stopped there, and
    every switch would be waited for.
    """
    for name, speaker in speakers(routing.topology, routing.plane).items():
        left: object = {"missing": "the run failed or was interrupted"}
        if ended:
            try:
                left = asked(routing, name, "as the run left them", speaker)
            except UserError as error:
                left = {"missing": str(error)}
        (directory_of(folder, name) / ROUTES).write_text(json.dumps(left))


def left_in(folder: Path, switch: str) -> RoutesRecord | None:
    """Return the routes of ``switch`` that a run has left in ``folder``; None: it left none.

    Raises UserError where they are damaged, or FRR did not say them.
    """
    file = directory_of(folder, switch) / ROUTES
    if not file.exists():
        return None
    try:
        left = json.loads(file.read_text())
    except ValueError:
        left = None
    if isinstance(left, dict) and "missing" in left:
        raise UserError(f"the run has not kept the routes of {switch}: {left['missing']}")
    if not _has(left, RoutesRecord) or not (
        isinstance(left["routes"], list) and all(_has(row, RouteRow) for row in left["routes"])
    ):
        raise UserError(f"{file} is damaged; run the scenario again")
    return cast(RoutesRecord, left)


def _has(found: object, record: type) -> bool:
    """Return whether ``found`` has the keys of ``record``."""
    return isinstance(found, dict) and found.keys() == record.__annotations__.keys()
