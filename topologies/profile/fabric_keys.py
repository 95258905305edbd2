"""The keys of a fabric profile: three domains and what holds for all of them (figure 13-13).

Beside them stand the other networks of the servers.

=============  ==========================================================================
``segment``    servers, their GPU I/O profile, and the rail switch profile
``pod``        how many segments, and the spine profile
``multi_pod``  how many pods, and the super-spine profile
``global``     control plane, data plane, load balancing, ECN, PFC, BFD, MTU
``networks``   frontend, storage and management, each there if it is named
=============  ==========================================================================

A key that is a parameter of :class:`~topologies.designs.clos.Clos`, or of
:class:`~topologies.designs.cluster.Cluster`, has its name, kind, default and help.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

from topologies.designs.clos import Clos
from topologies.designs.cluster import Cluster
from topologies.model import EVPN, FRONTEND, MANAGEMENT, STORAGE, TopologyError
from topologies.parts.design_parameters import (
    AUTO,
    PREFIX,
    TIME,
    ParameterKind,
    WordKind,
    parse_count,
)
from topologies.units import UNITS, UnitError, format_time, parse_size, parse_time_ns


@dataclass(frozen=True)
class TextPattern:
    """A kind of value that is kept as text of a certain form."""

    name: str
    form: str
    example: str

    def read(self, field: str, value: int | str) -> str:
        """``value`` as text.  Raises TopologyError, which names ``field``."""
        text = str(value)
        if not re.fullmatch(self.form, text):
            raise TopologyError(f"{field} is {text!r}, not a {self.name}; write {self.example}")
        return text


CODE_POINTS = 64
#: Of a switch, in the order in which they are served.
QUEUES = ("high", "low")
_NAMED = {"EF": 46, "LE": 1, "DF": 0} | {f"CS{number}": 8 * number for number in range(8)}
_NAMED |= {f"AF{row}{drop}": 8 * row + 2 * drop for row in range(1, 5) for drop in range(1, 4)}


def dscp(text: str) -> int | None:
    """The code point ``text``: a number, or a name of RFC 2474, 2597, 3246 or 8622."""
    if text.isascii() and text.isdecimal() and int(text) < CODE_POINTS:
        return int(text)
    return _NAMED.get(text.upper())


@dataclass(frozen=True)
class Interconnect(WordKind):
    """The kind of what GPUs speak; InfiniBand is known and refused."""

    def read(self, field: str, value: int | str) -> str:
        """``value``, if it is one of the words.  Raises TopologyError, which names ``field``."""
        if str(value).lower() == "infiniband":
            raise TopologyError(
                f"{field} is {value}, whose links and switches are no Ethernet, and there is none "
                f"here; take {' or '.join(self.words)}"
            )
        return super().read(field, value)


@dataclass(frozen=True)
class Queues:
    """The kind of a mapping of DSCPs to queues, kept as text: ``26=low,46=high``."""

    name: str = "mapping of DSCPs to queues"

    def read(self, field: str, value: int | str) -> str:
        """One entry of the mapping: ``field`` is the DSCP, ``value`` the queue; as ``26=low``.

        Raises TopologyError, which names ``classes``.
        """
        number = dscp(field)
        if number is None:
            raise TopologyError(
                f"classes has a code point {field!r}; write 0 to {CODE_POINTS - 1}, or a name such "
                "as EF, AF31, CS6"
            )
        if value not in QUEUES:
            raise TopologyError(
                f"classes puts code point {field} into {value!r}; queues are {', '.join(QUEUES)}"
            )
        return f"{number}={value}"


#: A queue's depth as the switches take it: octets, or multiples of the fabric's BDP.
DEPTH = TextPattern("depth", r"[0-9.]{1,12} ?([KMGT]i?B|B)?|[0-9.]{1,12} ?bdp", "20KiB or 0.2bdp")
SHARE = TextPattern("share above 0, at most 1", r"0?\.[0-9]*[1-9][0-9]*|1(\.0*)?", "0.2")
ON_OFF = WordKind(("on", "off"))
#: What FRR takes, in whole milliseconds; its timers run in this machine's time.
BFD_INTERVAL = ParameterKind("time", "ns", 10 * 10**6, 60 * 10**9, parse_time_ns, format_time)
BFD_MULTIPLIER = ParameterKind("count", "", 2, 255, parse_count, str)


@dataclass(frozen=True)
class Key:
    """A key of a profile.

    ``parameter``: it is one of the design's. ``automatic``: it can be
    left to that (``auto``).
    """

    name: str
    kind: ParameterKind | WordKind | TextPattern | Queues
    help: str
    parameter: bool = False
    automatic: bool = False


CLOS = {field.name: field for field in dataclasses.fields(Clos)}
#: Of the networks of machines alone.
CLUSTER = {field.name: field for field in dataclasses.fields(Cluster) if field.name not in CLOS}
PARAMETERS = {**CLOS, **CLUSTER}


def _parameters(*names: str) -> tuple[Key, ...]:
    return tuple(
        Key(
            name,
            PARAMETERS[name].metadata["kind"],
            PARAMETERS[name].metadata["help"],
            parameter=True,
            automatic=PARAMETERS[name].default is None,
        )
        for name in names
    )


STATIC = "static"
LOSSLESS, NO_SWITCH = "lossless", "none"
#: Switches whose data class pauses, or has credits.
PAUSING = (LOSSLESS, "th5", "spectrum")
UET, ROCEV2 = "uet", "rocev2"
CLASSES = "classes"
NETWORKS = "networks"
#: Every section by its path, with its own keys.
SECTIONS: Mapping[tuple[str, ...], tuple[Key, ...]] = {
    ("segment",): _parameters("hosts", "gpus_per_host"),
    ("segment", "gpu_io"): (
        Key(
            "interconnect",
            Interconnect((UET, ROCEV2)),
            "what GPUs speak, unless a run is told otherwise; default uet",
        ),
        *_parameters(
            *("nic_rate", "nic_ports", "homing", "nic_delay", "gpus_per_nic", "pcie_rate"),
            *("scale_up", "scale_up_links", "scale_up_rate", "scale_up_latency", "scale_up_hosts"),
        ),
    ),
    ("segment", "rail_switch"): (
        *_parameters(
            *("rails_per_switch", "switch_ports", "port_order", "subnet_prefix", "subnets"),
            *("vlans", "uplink_rate", "uplinks_per_spine"),
        ),
        Key(
            CLASSES,
            Queues(),
            "queue (high, low) of each DSCP, on rail switches and those above; default: EF, CS6, "
            "cut packets high, all others low",
        ),
    ),
    ("pod",): _parameters("segments"),
    ("pod", "spine"): _parameters("spines", "planes"),
    ("multi_pod",): _parameters("pods"),
    ("multi_pod", "super_spine"): _parameters("super_spines", "super_rate", "uplinks_per_super"),
    ("global",): (
        Key(
            "control_plane",
            WordKind((STATIC, "ebgp", "ibgp", EVPN)),
            "how switches learn routes; default static",
        ),
        Key("bfd", ON_OFF, "fast failure detection on links between switches"),
        Key("bfd_interval", BFD_INTERVAL, "between two BFD packets; default 300ms"),
        Key("bfd_multiplier", BFD_MULTIPLIER, "BFD packets to miss; default 3"),
        Key(
            "data_plane", WordKind(("ethernet", "vxlan")), "what carries packets; default ethernet"
        ),
        Key(
            "switch",
            WordKind(("shallow", "deep", *PAUSING, "jericho", NO_SWITCH)),
            "buffers and classes of the switches; default shallow",
        ),
        Key(
            "load_balancing",
            WordKind(("flow", "flowlet", "packet", "round-robin", "least-loaded", "kernel")),
            "the next hop of a packet; default flow",
        ),
        Key("flowlet_gap", TIME, "pause that ends a flowlet; default one base RTT"),
        Key("switch_latency", TIME, "of the pipeline, by the virtual clock alone; default 0"),
        Key("ecn", ON_OFF, "marking of data; default on"),
        Key("ecn_kmin", DEPTH, "queue from which packets are marked; default 0.2bdp"),
        Key("ecn_kmax", DEPTH, "queue from which all are; default 0.8bdp"),
        Key("ecn_pmax", SHARE, "share marked just below that; default 1"),
        Key(
            "pfc",
            ON_OFF,
            "pauses for the lossless class; default on where switch pauses",
        ),
        Key("llr", ON_OFF, "cables replay what bit errors take, by the virtual clock alone"),
        Key("cbfc", ON_OFF, "credits in place of pauses, by the virtual clock alone"),
        Key("trimming", ON_OFF, "packets that find no room are cut; default as the switch has it"),
        Key("control_class", ON_OFF, "a class of its own for acknowledgements and cut packets"),
        *_parameters("mtu", "buffer", "uplink_delay"),
    ),
    (NETWORKS,): (),
    (NETWORKS, FRONTEND): _parameters(
        *("frontend_rate", "frontend_leaves", "frontend_spines", "frontend_homes", "users"),
        *("tenants", "tenant_subnets", "tenant_addresses", "isolation"),
        *("subnet_vni", "router_vni"),
    ),
    (NETWORKS, STORAGE): _parameters(
        "storage_rate", "storage_leaves", "storage_spines", "storage_nodes"
    ),
    (NETWORKS, MANAGEMENT): _parameters("management_rate"),
}
KEYS: Mapping[str, Key] = {key.name: key for keys in SECTIONS.values() for key in keys}


def switch_name(stated: Mapping[str, int | str]) -> str:
    """The profile of the switches: ``stated``, or customary for the interconnect."""
    usual = LOSSLESS if stated.get("interconnect") == ROCEV2 else "shallow"
    return str(stated.get("switch", usual))


def measured(depth: str) -> tuple[str, float] | None:
    """The unit (octets or BDPs) and number of a depth, None if it has neither."""
    number = depth.removesuffix("bdp")
    try:
        return ("B", parse_size(depth)) if number == depth else ("bdp", float(number))
    except (UnitError, ValueError):
        return None


DIALECT = "https://json-schema.org/draft/2020-12/schema"
NUMBER = r"[0-9]+(\.[0-9]+)?"
#: Of a DSCP, by its number or its name in any case.
CODE_POINT = r"^([0-9]|[1-5][0-9]|6[0-3]|[EeDd][Ff]|[Ll][Ee]|[Cc][Ss][0-7]|[Aa][Ff][1-4][1-3])$"
TITLES = {
    "segment": "servers, their GPU I/O profile, the rail switch profile",
    "gpu_io": "GPU I/O profile",
    "rail_switch": "rail switch profile",
    "pod": "segments under spines",
    "spine": "spine profile",
    "multi_pod": "pods under super-spines",
    "super_spine": "super-spine profile",
    "global": "what holds for the whole fabric",
    "networks": "the other networks of the servers, each there if it is named",
    "frontend": "the network to users",
    "storage": "the network to storage nodes",
    "management": "the network of all machines that carries no data of jobs",
}


def schema() -> dict[str, object]:
    """Return a schema that accepts every profile whose single values are right.

    Contradictions between values are not found by it.
    """
    return {"$schema": DIALECT, "title": "uetemu fabric profile"} | _section(())


def _section(path: tuple[str, ...]) -> dict[str, object]:
    inner = [each for each in SECTIONS if each[:-1] == path]
    properties = {each[-1]: {"description": TITLES[each[-1]]} | _section(each) for each in inner}
    properties |= {key.name: _key(key) for key in SECTIONS.get(path, ())}
    return {
        "type": "object" if not path else ["object", "null"],
        "additionalProperties": False,
        "properties": properties,
    }


def _key(key: Key) -> dict[str, object]:
    about: dict[str, object] = {"description": key.help}
    forms = _forms(key.kind)
    if key.automatic:
        forms.append({"enum": [AUTO]})
    return about | (forms[0] if len(forms) == 1 else {"anyOf": forms})


def _forms(kind: ParameterKind | WordKind | TextPattern | Queues) -> list[dict[str, object]]:
    if isinstance(kind, WordKind):
        booleans = [True, False] if set(ON_OFF.words) <= set(kind.words) else []
        return [{"enum": [*kind.words, *booleans]}]
    if isinstance(kind, Queues):
        queue = {"enum": list(QUEUES)}
        return [
            {
                "type": "object",
                "patternProperties": {CODE_POINT: queue},
                "additionalProperties": False,
            }
        ]
    if isinstance(kind, TextPattern):
        number = {"type": "integer", "minimum": 0}
        if kind is SHARE:
            number = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
        return [number, {"type": "string", "pattern": f"^({kind.form})$"}]
    whole = {"type": "integer", "minimum": kind.minimum, "maximum": kind.maximum}
    if kind.base in ("", "bits"):
        slash = "/?" if kind is PREFIX else ""
        return [whole, {"type": "string", "pattern": f"^{slash}[0-9]+$"}]
    units = "|".join(UNITS[kind.base])
    quantity: dict[str, object] = {"type": "string", "pattern": rf"^\s*{NUMBER}\s*({units})\s*$"}
    if kind.base == "octets":
        return [whole, quantity]
    return [quantity, {"enum": [0, "0"]}] if kind is TIME else [quantity]
