"""Cross-checks: keys of a fabric profile that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from topologies.clos.rail_subnets import STRETCHED
from topologies.model import EVPN
from topologies.profile.fabric_keys import (
    CLASSES,
    CLOS,
    LOSSLESS,
    NO_SWITCH,
    ROCEV2,
    STATIC,
    measured,
    switch_name,
)

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


def _of_switches(stated: Stated) -> Findings:
    switch = switch_name(stated)
    on = {key for key, value in stated.items() if value == "on"}
    if "pfc" in on and switch != LOSSLESS:
        yield (
            "pfc",
            f"pfc is on and switch {switch}, which has no lossless class to pause: "
            f"take switch: {LOSSLESS}, or leave pfc out",
        )
    if "cbfc" in on and switch != LOSSLESS:
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
    elif "trimming" in on and switch == LOSSLESS and stated.get("pfc") != "off":
        yield (
            "trimming",
            f"trimming is on and switch {LOSSLESS}, which pauses, so that nothing is cut: take "
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
