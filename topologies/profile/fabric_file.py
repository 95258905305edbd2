"""A fabric profile: a Clos fabric and what its switches do, from YAML text.

::

    segment:
      hosts: 4
      gpus_per_host: 8
      gpu_io: {nic_rate: 200Gbps}
      rail_switch: {rails_per_switch: 4, uplink_rate: 800Gbps}
    pod:
      segments: 2
      spine: {spines: 4}
    global:
      load_balancing: packet
      mtu: 4096
    networks:
      frontend: {frontend_rate: 100Gbps}
      management: {}

All keys are in :mod:`topologies.profile.fabric_keys`.  What is left out has the default of
:class:`~topologies.designs.clos.Clos`, and so has what is ``auto``, where it is one that is
computed. Every wrong key and value of a text is reported at once, each with its line; where there
is none, every contradiction.

Cross-checks: keys of a fabric profile that contradict each other.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import date
from typing import Any

from ruamel.yaml.comments import CommentedMap, TaggedScalar

from topologies.advice import question
from topologies.clos import AUTO_HOMING, PATHS, STRETCHED
from topologies.designs.clos import Clos
from topologies.designs.cluster import Cluster
from topologies.model import EVPN, FabricProfile, Topology, TopologyError
from topologies.parts.design_parameters import AUTO
from topologies.profile.fabric_keys import (
    CLASSES,
    CLOS,
    CLUSTER,
    KEYS,
    LOSSLESS,
    NETWORKS,
    NO_SWITCH,
    PAUSING,
    ROCEV2,
    SECTIONS,
    STATIC,
    Queues,
    measured,
    switch_name,
)
from topologies.profile.yaml_lines import Problem, TextError, line_of, parse_mapping
from topologies.units import format_time

#: Balancings whose next hops of every route are loaded before anything is sent.
PRELOADED_BALANCINGS = ("round-robin", "least-loaded")
Stated = Mapping[str, int | str]
Findings = Iterator[tuple[str, str]]


def cross_checks(stated: Stated) -> Findings:
    """Yield the key and a sentence for each contradiction among the given values ``stated``."""
    yield from _of_shape(stated)
    yield from _of_switches(stated)
    yield from _of_planes(stated)


def _of_shape(stated: Stated) -> Findings:
    def count(key: str) -> int:
        value = stated.get(key, CLOS[key].default)
        assert isinstance(value, int)
        return value

    if count("segments") > 1 and not count("spines"):
        yield "segments", "segments is above 1 and spines 0: nothing joins the segments"
    if count("pods") > 1 and not count("super_spines"):
        yield "pods", "pods is above 1 and super_spines 0: nothing joins the pods"
    for needed, keys in (
        ("spines", ("uplink_rate", "uplinks_per_spine")),
        ("super_spines", ("super_rate", "uplinks_per_super")),
    ):
        for key in keys:
            if key in stated and not count(needed):
                yield key, f"{key} says nothing where {needed} is 0: leave it out"
    if "pcie_rate" in stated and count("gpus_per_nic") == 1:
        yield (
            "pcie_rate",
            "pcie_rate is for shared NICs: take gpus_per_nic above 1, or leave it out",
        )
    if stated.get("planes") == "own" and count("nic_ports") == 1:
        yield "planes", "planes is own and nic_ports 1: a second plane needs nic_ports: 2"


def _of_switches(stated: Stated) -> Findings:  # noqa: C901  a rule after the other
    switch = switch_name(stated)
    on = {key for key, value in stated.items() if value == "on"}
    if "pfc" in on and switch not in PAUSING:
        yield (
            "pfc",
            f"pfc is on and switch {switch}, which has no lossless class to pause: "
            f"take switch: {LOSSLESS}, or leave pfc out",
        )
    if "cbfc" in on and switch not in PAUSING:
        yield (
            "cbfc",
            f"cbfc is on and switch {switch}, which has no lossless class to give credits to: "
            f"take switch: {LOSSLESS}, or leave cbfc out",
        )
    elif {"cbfc", "pfc"} <= on:
        yield "cbfc", "cbfc and pfc are on: both keep the data class from loss; keep one of them"
    if "llr" in on and switch == NO_SWITCH:
        yield "llr", f"llr is on and switch {NO_SWITCH}: plain queues have none of it"
    if "trimming" in on and stated.get("control_class") == "off":
        yield (
            "trimming",
            "trimming is on and control_class off: cut packets travel in the control class; "
            "leave one of them out",
        )
    elif stated.get("control_class") == "off" and switch != NO_SWITCH:
        yield (
            "control_class",
            f"control_class is off and switch {switch}, which has one: leave it out, or take "
            f"switch: {NO_SWITCH}",
        )
    if "trimming" in on and stated.get("interconnect") == ROCEV2:
        yield (
            "trimming",
            f"trimming is on and interconnect {ROCEV2}, whose packets no switch cuts: leave one of "
            "them out",
        )
    elif "trimming" in on and "pfc" in on:
        yield "trimming", "trimming and pfc are on: what is paused is never cut; keep one of them"
    elif {"trimming", "cbfc"} <= on:
        yield (
            "trimming",
            "trimming and cbfc are on: what has credits is never cut; keep one",
        )
    elif "trimming" in on and switch in PAUSING and stated.get("pfc") != "off":
        yield (
            "trimming",
            f"trimming is on and switch {switch}, which pauses, so that nothing is cut: take "
            "pfc: off, or leave trimming out",
        )
    if switch == NO_SWITCH:
        for key in ("ecn", "trimming", "control_class"):
            if key in on:
                yield key, f"{key} is on and switch {NO_SWITCH}: plain queues have none of it"
        if CLASSES in stated:
            yield CLASSES, f"{CLASSES} says nothing with switch: {NO_SWITCH}, which has fixed ones"
        if "switch_latency" in stated:
            yield "switch_latency", f"switch_latency says nothing with switch: {NO_SWITCH}"
        for key in ("load_balancing", "flowlet_gap", "ecn_kmin", "ecn_kmax", "ecn_pmax"):
            if key in stated and stated[key] != "kernel":
                yield (
                    key,
                    f"{key} says nothing with switch: {NO_SWITCH}, which hashes as Linux does",
                )
    if "flowlet_gap" in stated and stated.get("load_balancing") != "flowlet":
        yield "flowlet_gap", "flowlet_gap says nothing without load_balancing: flowlet"
    for key in ("ecn_kmin", "ecn_kmax", "ecn_pmax"):
        if key in stated and stated.get("ecn") == "off":
            yield key, f"{key} says nothing with ecn: off"
    low, high = (measured(str(stated.get(key, ""))) for key in ("ecn_kmin", "ecn_kmax"))
    if low and high and low[0] == high[0] and low[1] > high[1]:
        yield (
            "ecn_kmin",
            f"ecn_kmin is {stated['ecn_kmin']}, above ecn_kmax of {stated['ecn_kmax']}",
        )


def _of_planes(stated: Stated) -> Findings:
    plane = stated.get("control_plane", STATIC)
    for key in ("bfd", "bfd_interval", "bfd_multiplier"):
        if key not in stated or stated[key] == "off":
            continue
        if plane == STATIC:
            yield (
                key,
                f"{key} is given and control_plane static: nobody would act on what BFD finds; "
                "take control_plane: ebgp, or leave it out",
            )
        elif key != "bfd" and stated.get("bfd") == "off":
            yield key, f"{key} says nothing with bfd: off"
    balancing = stated.get("load_balancing")
    if plane != STATIC and balancing in PRELOADED_BALANCINGS:
        yield (
            "load_balancing",
            f"load_balancing is {balancing} and control_plane {plane}: that balancing must know "
            f"every route beforehand; take another, such as packet, or control_plane: {STATIC}",
        )
    vxlan = stated.get("data_plane") == "vxlan"
    stretched = stated.get("subnets") == STRETCHED
    if vxlan and plane != EVPN:
        yield (
            "data_plane",
            f"data_plane is vxlan and control_plane {plane}: only {EVPN} tells who is behind which "
            f"tunnel; take control_plane: {EVPN}, or data_plane: ethernet",
        )
    elif vxlan and not stretched:
        yield (
            "data_plane",
            "data_plane is vxlan and no subnet is stretched over pods: there would be nothing in "
            f"the tunnels; take subnets: {STRETCHED}, or data_plane: ethernet",
        )
    if plane == EVPN and not vxlan:
        yield (
            "control_plane",
            f"control_plane is {EVPN} and data_plane ethernet: {EVPN} is for tunnels; take "
            "data_plane: vxlan, or control_plane: ebgp",
        )
    elif stretched and not vxlan:
        yield (
            "subnets",
            f"subnets is {STRETCHED} and data_plane ethernet: only tunnels join the parts of a "
            f"rail; take data_plane: vxlan with control_plane: {EVPN}, or subnets: apart",
        )


Value = int | str
#: Keys that set something of the switches, beside the topology.
OF_SWITCHES = (
    *("switch", "load_balancing", "flowlet_gap", "ecn", "ecn_kmin", "ecn_kmax", "ecn_pmax"),
    *("switch_latency", "pfc", "llr", "cbfc", "trimming", CLASSES),
)
#: What a switch's parameter for the queue of a code point begins with.
DSCP = "dscp."
#: Classes whose packets congestion control watches.
MARKED_CLASSES = ("data", "retransmission", "untrimmed")
#: Parameters of switches and control planes whose keys have other names.
_KEY_OF = {
    "balance": "load_balancing",
    "latency": "switch_latency",
    "kmin_bytes": "ecn_kmin",
    "kmax_bytes": "ecn_kmax",
    "pmax": "ecn_pmax",
    "trim_bytes": "trimming",
    "interval": "bfd_interval",
    "multiplier": "bfd_multiplier",
}
#: The parameters of a class that keys set for all of :data:`MARKED_CLASSES`, and what ``ecn: off``
#: sets of them.
_MARKING = ("kmin_bytes", "kmax_bytes", "pmax")
_MARKING_OFF = {"kmax_bytes": "none"}
_MARKED = rf"\b(?:{'|'.join(MARKED_CLASSES)})\."


@dataclass(frozen=True)
class FabricFile:
    """A fabric read from a file.

    ``switch`` is the choice of :mod:`emulator.dataplane.switch.switch_choice`, None if the text has
    none; ``names_switch``: whether the text has its name.  ``transport`` is the interconnect, None
    if the text has none.  ``lines`` are those of the keys.
    """

    topology: Topology
    switch: str | None
    lines: Mapping[str, int]
    transport: str | None = None
    names_switch: bool = False

    def problem(self, stated: str, parameters: Iterable[str]) -> Problem:
        """Return the problem of others with ``parameters``, and the line of the first one given.

        ``stated`` is their sentence on the parameters of a switch, a control plane or a topology.

        Where none is, that is the line which names the switch, or the first.
        """
        stated = self._in_own_words(stated)
        keys = [_KEY_OF.get(name.rpartition(".")[2], name) for name in parameters]
        given = next((key for key in keys if key in self.lines), None)
        if given is not None and given.startswith(DSCP):
            return Problem(self.lines[given], f"{CLASSES}: {stated}")
        if given is not None:
            reported = stated if re.search(rf"\b{given}\b", stated) else f"{given}: {stated}"
            return Problem(self.lines[given], reported)
        return Problem(
            next((self.lines[key] for key in OF_SWITCHES if key in self.lines), 1), stated
        )

    def _in_own_words(self, stated: str) -> str:
        """Return ``stated`` with this file's keys for the marking parameters of a switch.

        The file has them for each class, and has the switch's name alone for the choice made of
        them.
        """
        if self.switch is not None:
            stated = stated.replace(self.switch, self.switch.partition(":")[0])
        for parameter, value in _MARKING_OFF.items():
            stated = re.sub(rf"{_MARKED}{parameter}={value}\b", "ecn: off", stated)
        return re.sub(
            rf"{_MARKED}({'|'.join(_MARKING)})\b", lambda found: _KEY_OF[found[1]], stated
        )


def read(text: str, name: str) -> FabricFile:
    """The fabric that ``text`` describes.

    Raises TextError, which names the file ``name`` and lines, with all that is wrong.
    """
    reader = _Reader(parse_mapping(text, name))
    if reader.problems:
        raise TextError(reader.problems, name)
    stated = reader.stated
    wrong = [Problem(reader.line(key), what) for key, what in cross_checks(stated)]
    if wrong:
        raise TextError(wrong, name)
    try:
        shape: dict[str, Any] = {key: value for key, value in stated.items() if key in CLOS}
        if shape.get("homing") == AUTO_HOMING and stated.get("control_plane", STATIC) != STATIC:
            shape["homing"] = PATHS  # bonds take static routes
        built = _design(shape, stated, reader.sections).topology()
        profile = dataclasses.replace(_profile(stated), vlans=built.profile.vlans)
        topology = dataclasses.replace(built, profile=profile)
    except TopologyError as error:
        raise TextError([Problem(reader.line_about(str(error)), str(error))], name) from None
    switch = _switch(stated) if any(key in stated for key in OF_SWITCHES) else None
    transport = stated.get("interconnect")
    return FabricFile(
        topology,
        switch,
        reader.lines,
        transport=None if transport is None else str(transport),
        names_switch="switch" in stated,
    )


def _design(
    shape: Mapping[str, Any], stated: Mapping[str, Value], sections: Set[tuple[str, ...]]
) -> Clos:
    """Return the Clos fabric of ``shape``, with the networks whose sections there are."""
    networks = [section[-1] for section in SECTIONS if section[0] == NETWORKS and section[1:]]
    chosen = [name for name in networks if (NETWORKS, name) in sections]
    if not chosen:
        return Clos(**shape)
    of_clos: dict[str, Any] = {name: CLOS[name].default for name in ("hosts", "gpus_per_host")}
    own: dict[str, Any] = {key: value for key, value in stated.items() if key in CLUSTER}
    return Cluster(**of_clos | dict(shape), **own, networks="+".join(chosen))


class _Reader:
    """The keys of a text, and the ``problems`` of keys and values on their own."""

    def __init__(self, content: CommentedMap) -> None:
        self.stated: dict[str, Value] = {}
        self.problems: list[Problem] = []
        self.lines: dict[str, int] = {}
        self.sections: set[tuple[str, ...]] = set()
        self._section((), content, 1)

    def line(self, key: str) -> int:
        return self.lines.get(key, 1)

    def line_about(self, stated: str) -> int:
        """Return the line of the first key that a message of the topology names.

        Keys of switches do not count, as no such message is about them.
        """
        named = (
            word
            for word in re.findall(r"[a-z_]+", stated)
            if word in self.lines and word not in OF_SWITCHES
        )
        return self.line(next(named, ""))

    def _section(self, path: tuple[str, ...], content: CommentedMap, above: int) -> None:
        inner = tuple(each[-1] for each in SECTIONS if each and each[:-1] == path)
        keys = tuple(key.name for key in SECTIONS.get(path, ()))
        for key, value in content.items():
            line = line_of(content, key, above)
            if key in inner:
                self.sections.add((*path, key))
                if isinstance(value, CommentedMap):
                    self._section((*path, key), value, line)
                elif value is not None:  # an empty section sets nothing
                    self._wrong(
                        line, f"{key} is {_shown(value)}, not a mapping of {_known(path, key)}"
                    )
            elif key in keys:
                self._value(key, value, line)
            else:
                self._wrong(line, _unknown(path, key, (*inner, *keys)))

    def _value(self, key: str, value: object, line: int) -> None:
        self.lines[key] = line
        if isinstance(value, bool):
            value = "on" if value else "off"
        if value == AUTO and KEYS[key].automatic:
            return
        if isinstance(KEYS[key].kind, Queues):
            self._queues(key, value, line)
            return
        if not isinstance(value, int | float | str):
            self._wrong(line, f"{key} is {_shown(value)}, not a single value")
            return
        try:
            self.stated[key] = KEYS[key].kind.read(key, str(value))
        except TopologyError as error:
            self._wrong(line, str(error))

    def _queues(self, key: str, value: object, line: int) -> None:
        """Read the code points of ``key``, each with its line."""
        if not isinstance(value, CommentedMap):
            self._wrong(line, f"{key} is {_shown(value)}, not a mapping such as {{EF: high}}")
            return
        found: dict[str, str] = {}
        for point, queue in value.items():
            at = line_of(value, point, line)
            try:
                entry = KEYS[key].kind.read(str(point), str(queue))
            except TopologyError as error:
                self._wrong(at, str(error))
                continue
            number = str(entry).partition("=")[0]
            if number in found:
                self._wrong(at, f"{key} has code point {number} twice; keep one of them")
            found[number] = str(entry)
            self.lines[DSCP + number] = at
        if found:
            self.stated[key] = ",".join(found.values())

    def _wrong(self, line: int, stated: str) -> None:
        self.problems.append(Problem(line, stated))


def _shown(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    for kind, name in ((date, "a date"), (Set, "a set"), (bytes, "binary")):
        if isinstance(value, kind):
            return name
    return f"{str(value)!r} with a tag" if isinstance(value, TaggedScalar) else repr(value)


def _name(key: object) -> str:
    """A key as YAML has it."""
    if key is None:
        return "null"
    if isinstance(key, bool):
        return "true" if key else "false"
    return repr(key) if isinstance(key, str | int | float) else "such key"


def _known(path: tuple[str, ...], key: str) -> str:
    return ", ".join(each.name for each in SECTIONS[*path, key])


def _unknown(path: tuple[str, ...], key: object, known: tuple[str, ...]) -> str:
    where = ".".join(path) or "a fabric profile"
    if asked := question(str(key), known):
        return f"{where} has no {_name(key)}; {asked}"
    for section, keys in SECTIONS.items():
        if key in {each.name for each in keys} | {section[-1]}:
            place = section if key != section[-1] else section[:-1]
            return (
                f"{where} has no {_name(key)}; it belongs in {'.'.join(place) or 'the top level'}"
            )
    return f"{where} has no {_name(key)}; known are {', '.join(known)}"


def _profile(stated: Mapping[str, Value]) -> FabricProfile:
    default = FabricProfile()
    return FabricProfile(
        control_plane=_control_plane(stated),
        load_balancing=str(stated.get("load_balancing", default.load_balancing)),
        data_plane=str(stated.get("data_plane", default.data_plane)),
    )


def _control_plane(stated: Mapping[str, Value]) -> str:
    """``NAME[:PARAMETER=VALUE,...]``."""
    name = str(stated.get("control_plane", STATIC))
    parts = []
    if "bfd" in stated:
        parts.append(f"bfd={stated['bfd']}")
    if "bfd_interval" in stated:
        parts.append(f"interval={_time(stated['bfd_interval'])}")
    if "bfd_multiplier" in stated:
        parts.append(f"multiplier={stated['bfd_multiplier']}")
    return name if name == STATIC or not parts else f"{name}:{','.join(parts)}"


def _time(ns: Value) -> str:
    return format_time(int(ns)).replace(" ", "")


def _switch(stated: Mapping[str, Value]) -> str:
    """``PROFILE[:PARAMETER=VALUE,...]`` of :mod:`emulator.dataplane.switch.switch_choice`."""
    name = switch_name(stated)
    parts = list(_switch_parts(stated)) if name != NO_SWITCH else []
    return f"{name}:{','.join(parts)}" if parts else name


def _switch_parts(stated: Mapping[str, Value]) -> Iterator[str]:
    if "load_balancing" in stated:
        yield f"balance={stated['load_balancing']}"
    if "flowlet_gap" in stated:
        yield f"flowlet_gap={_time(stated['flowlet_gap'])}"
    if "switch_latency" in stated:
        yield f"latency={_time(stated['switch_latency'])}"
    if switch_name(stated) in PAUSING and "pfc" in stated:
        yield f"pfc={stated['pfc']}"
    for key in ("llr", "cbfc"):
        if key in stated:
            yield f"{key}={stated[key]}"
    if "trimming" in stated:
        yield f"trim={stated['trimming']}"
    rules = {
        rule: stated[key]
        for key, rule in ((_KEY_OF[rule], rule) for rule in _MARKING)
        if key in stated
    }
    if stated.get("ecn") == "off":
        rules = dict(_MARKING_OFF)
    for name in MARKED_CLASSES:
        for rule, value in rules.items():
            yield f"{name}.{rule}={value}"
    for entry in filter(None, str(stated.get(CLASSES, "")).split(",")):
        yield f"{DSCP}{entry}"
