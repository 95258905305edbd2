"""A switch fitted to a fabric: thresholds in octets, for every kind of cable, checked.

Two things of a topology bear on a switch: the bandwidth-delay product of its plane
(:mod:`topologies.analysis.round_trip`), which is the unit of thresholds, and the ``buffer`` of each
port. The buffer is a port's share of the memory on the chip, so no queue of the profiles
``shallow`` and ``lossless`` gets deeper: what they would hold beyond it is trimmed or dropped
there.  Where PFC keeps them from it, the buffer bounds what came in by a port
(:mod:`emulator.dataplane.switch.cable_fitting`). ``deep`` is a switch with packet memory
outside of the chip, and holds its own limits.

Where ports share a pool, the topology's ``buffer`` says nothing.  What a port has for itself comes
off the pool: octets reserved for queues, headroom, and lossless buffers of a fixed size (an
``xoff`` that a user set, credits).

The kernel's own queues below, which hold the frames, are more than twice as large: a frame that
the model has let in is not to be dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from emulator.dataplane.clock import Dilation
from emulator.dataplane.kernel.shaping import CONTROL_BUFFER_BYTES, Egress
from emulator.dataplane.settings import Clock
from emulator.dataplane.switch import cable_fitting as pausing
from emulator.dataplane.switch.balancing import PRELOADED_METHODS, LoadBalancing
from emulator.dataplane.switch.bpf.layout import HOPS, Queue, TrafficClass
from emulator.dataplane.switch.bpf.switch_program import Size
from emulator.dataplane.switch.cable_fitting import (
    CableKind,
    LinkRules,
    fit_link,
    kind_of,
    link_warnings,
    most_octets_of_cell,
)
from emulator.dataplane.switch.code_points import LAB
from emulator.dataplane.switch.parameters import (
    CBFC,
    CLASS_NAMES,
    DEEPEST,
    DEPARTURE,
    LATENCY,
    LLR,
    LOSSLESS_CLASSES,
    MARK_ON,
    OF_CLASS,
    PFC,
    POOL,
    ClassRules,
    in_octets,
)
from emulator.dataplane.switch.pause import PauseRules
from emulator.dataplane.switch.switch_choice import SwitchChoice
from emulator.dataplane.switch.switch_profile import (
    LARGEST_HOST_RATE,
    SMALLEST_HOST_RATE,
    CodePoints,
    Profile,
    named,
)
from emulator.errors import Misfit, UserError
from topologies.analysis.deadlock import buffer_cycle
from topologies.analysis.round_trip import base_rtt_ns, bdp_bytes, mtu_frame_bytes
from topologies.ethernet import PACKET_OVERHEAD_OCTETS
from topologies.interface_indices import interface_indices
from topologies.model import SWITCH_ROLES, Link, Role, Topology
from topologies.routing.forwarding import RouteTable, forwarding_of
from topologies.routing.static_routes import Route, static_routes
from topologies.stretch import stretch_of
from topologies.units import format_size, format_time

#: Profiles of switches that have only the chip's own memory.
ON_CHIP = frozenset({"shallow", "lossless"})
#: How much larger the kernel's queue is than the model's: frames that are not yet reported to have
#: arrived, and those that one duplicates.
MARGIN = 2
LONGEST_GAP_NS = 86_400 * 10**9  # of host time: a day; the program counts in 64 bits
SHOWN_CHANNELS = 3  # of a cyclic buffer dependency, in a refusal


@dataclass(frozen=True, slots=True)
class PoolRules:
    """The pool of one switch (``virtual.h``); octets are those on the wire."""

    size_bytes: int
    reserved_bytes: int
    headroom_bytes: int


@dataclass(frozen=True, kw_only=True)
class FittedSwitch:
    """``choice`` in one fabric.  Times are fabric time; profiles go by the buffer of a cable."""

    choice: SwitchChoice
    base_rtt_ns: int
    bdp_bytes: int
    flowlet_gap_ns: int
    profiles: Mapping[int, Profile]
    #: priority flow control by the kind of cable; empty without
    pauses: Mapping[CableKind, PauseRules] = field(default_factory=dict)
    #: the link layer by the kind of cable; empty without
    links: Mapping[CableKind, LinkRules] = field(default_factory=dict)
    #: what ports share, by the name of the switch; empty where they share nothing
    pools: Mapping[str, PoolRules] = field(default_factory=dict)
    #: cables over which packets go in tunnels, where nothing is trimmed
    tunnelled: frozenset[Link] = frozenset()
    #: sentences about what will not do what its name implies
    warnings: tuple[str, ...] = ()

    def pause(self, cable: Link) -> PauseRules | None:
        """Return what both ends of ``cable`` do about pauses; None: nothing."""
        return self.pauses.get(kind_of(cable))

    def link(self, cable: Link) -> LinkRules | None:
        """Return the link layer at both ends of ``cable``; None: there is none."""
        return self.links.get(kind_of(cable))

    def lossless_bytes(self, cable: Link) -> int | None:
        """Return the buffer that a port of ``cable`` keeps for lossless data; None: it keeps none.

        With PFC that is XOFF and headroom, with CBFC all that credits stand for.
        """
        pause, link = self.pause(cable), self.link(cable)
        if pause is not None:
            return pause.ceiling_bytes
        return link.cbfc.buffer_bytes if link is not None and link.cbfc is not None else None

    def profile(self, cable: Link) -> Profile:
        profile = self.profiles[cable.buffer_bytes]
        return profile.without_trimming() if cable in self.tunnelled else profile

    def balancing(self, *, switch: int, seed: int) -> LoadBalancing:
        return LoadBalancing(
            method=self.choice.method,
            switch=switch,
            seed=seed,
            flowlet_gap_ns=self.flowlet_gap_ns,
        )

    def egress(self, cable: Link, plain: Egress) -> Egress:
        """The kernel's queues below a switch port of ``cable``; ``plain`` is a NIC's."""
        deepest = dict.fromkeys(Queue, 0)
        rules = self.profile(cable)
        for traffic_class in TrafficClass:
            queue = rules.queue(traffic_class)
            deepest[queue] = max(deepest[queue], rules.rules(traffic_class).limit_bytes or 0)
        return replace(
            plain,
            data_share=rules.data_share,
            gated=bool(self.pauses),
            buffer_bytes=MARGIN * max(deepest[Queue.LOW], cable.buffer_bytes),
            control_buffer_bytes=max(
                MARGIN * (deepest[Queue.HIGH] + deepest[Queue.MEDIUM]), CONTROL_BUFFER_BYTES
            ),
        )


UNTRIMMED = (
    "trimming is off on links between switches, where packets are in tunnels: "
    "those that find no room there are dropped"
)


def fit(
    choice: SwitchChoice,
    topology: Topology,
    dilation: float,
    *,
    code_points: CodePoints = LAB,
    clock: Clock = "host",
) -> FittedSwitch:
    """``choice`` for ``topology`` at ``dilation``, which is 1 for a virtual clock.

    Touches no kernel.  With a virtual clock links may have any rate, and switches a latency.

    Raises UserError for thresholds that make no sense here, for link rates beyond the program's,
    and for more next hops than it balances over. PFC on routes that can deadlock raises it, too.
    """
    if choice.latency_ns and clock != "virtual":
        raise Misfit(
            f"{LATENCY}={format_time(choice.latency_ns)} of the switch takes the virtual clock of "
            "a run; by the host's a switch has no pipeline, so leave it out",
            LATENCY,
        )
    if choice.mark_on == DEPARTURE and clock != "virtual":
        raise Misfit(
            f"{MARK_ON}={DEPARTURE} of the switch takes the virtual clock of a run: by the host's, "
            "packets are marked as they come into their queue, so leave it out",
            MARK_ON,
        )
    topology = topology.with_switch_latency(choice.latency_ns)
    frame = mtu_frame_bytes(topology)
    round_trip = base_rtt_ns(topology, frame)
    bdp = bdp_bytes(topology, round_trip)
    changes = {key: in_octets(value, bdp) for key, value in choice.changes.items()}
    mtu = max(link.mtu for link in topology.links)
    try:
        rules = named(
            choice.profile, bdp_bytes=bdp, mtu=mtu, code_points=code_points, changes=changes
        )
    except UserError as error:
        raise Misfit(
            f"{error} (switch {choice.name}; one BDP of this fabric is {format_size(bdp)})",
            *(error.parameters if isinstance(error, Misfit) else ()),
        ) from None
    if Dilation(dilation).host_ns(choice.flowlet_gap_ns) > LONGEST_GAP_NS:
        raise Misfit(
            f"flowlet_gap is {choice.flowlet_gap_ns * 1e-9:g} s of fabric time, a day or more at "
            f"dilation {dilation:g}: no flow pauses that long; balance=flow never changes its hop",
            "flowlet_gap",
        )
    switches = {switch.name for switch in topology.switches}
    cables = [link for link in topology.links if switches & {link.a.node, link.b.node}]
    pauses = pausing.fit_pauses(choice, topology, cables, bdp, code_points)
    links = _fit_links(choice, topology, cables, clock)
    if choice.pool is None:
        rules = pausing.unlimited(rules, choice, topology, _held(pauses, links))
    else:
        rules = _pooled(rules, choice)
    pools = _fit_pools(choice, rules, topology, pauses, links, clock)
    tunnelled = (
        [cable for cable in cables if {cable.a.node, cable.b.node} <= switches]
        if stretch_of(topology) is not None
        else []
    )
    fitted = FittedSwitch(
        choice=choice,
        base_rtt_ns=round_trip,
        bdp_bytes=bdp,
        flowlet_gap_ns=choice.flowlet_gap_ns or round_trip,
        profiles={
            buffer: _within(rules, choice, changes, buffer)
            for buffer in {cable.buffer_bytes for cable in cables}
        },
        pauses=pauses,
        links=links,
        pools=pools,
        tunnelled=frozenset(tunnelled),
        warnings=(
            *pausing.warnings(pauses),
            *link_warnings(links.values()),
            *_headroom_warnings(choice, topology, pauses),
            *([UNTRIMMED] if tunnelled and rules.trims else []),
        ),
    )
    if clock == "host":
        _check_rates(topology, cables, dilation)
    if choice.cbfc is not None:
        _check_dependencies(topology, CBFC)
    elif choice.pausing is not None and choice.pausing.pfc_deadlock == "refuse":
        _check_dependencies(topology, PFC)
    if choice.method in PRELOADED_METHODS:
        _check_hops(topology, choice)
    return fitted


def size_of(topology: Topology) -> Size:
    """Return how large the program's tables must be for ``topology``."""
    return Size(
        ports=max(interface_indices(topology).values()) + 1,
        switches=max(1, len(topology.switches)),
        prefixes=max(1, sum(len(routes) for routes in multipath(topology).values())),
    )


def multipath(topology: Topology) -> Mapping[str, tuple[Route, ...]]:
    """Routes of the main table over several next hops, by switch."""
    routes = static_routes(topology)
    return {
        switch.name: tuple(
            route
            for route in routes[switch.name]
            if len(route.hops) > 1 and route.table is RouteTable.MAIN
        )
        for switch in topology.switches
    }


def _fit_links(
    choice: SwitchChoice, topology: Topology, cables: Sequence[Link], clock: Clock
) -> dict[CableKind, LinkRules]:
    """The link layer by kind of cable; empty without.  Raises UserError for what cannot be."""
    asked = [name for name in (LLR, CBFC) if getattr(choice, name) is not None]
    if not asked:
        return {}
    if clock != "virtual":
        raise Misfit(
            f"{asked[0]}=on takes the virtual clock of a run: by the host's, cables have no link "
            "layer, so leave it out",
            *asked,
        )
    if choice.cbfc is not None and has_tunnels(topology):
        raise Misfit(
            "cbfc=on counts the cells that a frame takes, and in the tunnels of this fabric frames "
            "change their length: take pfc=on, or a fabric without tunnels",
            CBFC,
        )
    return {
        kind_of(cable): fit_link(choice.llr, choice.cbfc, cable, choice.latency_ns)
        for cable in cables
    }


def _pooled(rules: Profile, choice: SwitchChoice) -> Profile:
    """Return ``rules`` where queues share a pool, but for those that ports of arrival count."""
    lossless = choice.pausing is not None or choice.cbfc is not None
    shared = [name for name in CLASS_NAMES if not (lossless and name in LOSSLESS_CLASSES)]
    alphas = {name: getattr(rules, name).alpha or 1.0 for name in shared}
    kept = {name: replace(getattr(rules, name), alpha=alpha) for name, alpha in alphas.items()}
    return replace(rules, **kept)


def _fit_pools(
    choice: SwitchChoice,
    rules: Profile,
    topology: Topology,
    pauses: Mapping[CableKind, PauseRules],
    links: Mapping[CableKind, LinkRules],
    clock: Clock,
) -> dict[str, PoolRules]:
    """Return the pool of each switch.  Raises UserError if its ports leave nothing to share."""
    pool = choice.pool
    if pool is None:
        return {}
    if clock != "virtual":
        raise Misfit(
            f"pool={format_size(pool.pool_bytes)} of the switch takes the virtual clock of a run; "
            "by the host's each port has a buffer, so say pool=none",
            POOL,
        )
    queues = {rules.queue(kind) for kind in TrafficClass} | {Queue.LOW}
    made = {}
    for switch in topology.switches:
        own, headroom = 0, sum(_headrooms(topology, switch.name, pauses))
        for cable, _, _ in topology.neighbours(switch.name):
            pause, link = pauses.get(kind_of(cable)), links.get(kind_of(cable))
            own += len(queues) * pool.reserved_bytes
            if pause is not None:
                own += 0 if pause.alpha else pause.ceiling_bytes
            elif link is not None and link.cbfc is not None:
                own += link.cbfc.buffer_bytes
        if pool.headroom_pool_bytes is not None:
            headroom = min(headroom, pool.headroom_pool_bytes)
        size = pool.pool_bytes - own - headroom
        if size < rules.mtu + PACKET_OVERHEAD_OCTETS:
            raise Misfit(
                f"the pool of {format_size(pool.pool_bytes)} leaves {format_size(max(size, 0))} to "
                f"share at {switch.name}: its ports keep {format_size(own)}, and "
                f"{format_size(headroom)} of headroom; take a larger one, or a smaller "
                "headroom_pool",
                *(POOL, "reserved", "headroom_pool", "headroom", "xoff", "cbfc_buffer"),
            )
        made[switch.name] = PoolRules(size, pool.reserved_bytes, headroom)
    return made


def _headrooms(
    topology: Topology, switch: str, pauses: Mapping[CableKind, PauseRules]
) -> list[int]:
    """Return the headroom (octets) of each port of ``switch`` whose XOFF follows the pool."""
    kinds = (kind_of(cable) for cable, _, _ in topology.neighbours(switch))
    rules = (pauses.get(kind) for kind in kinds)
    return [pause.headroom_bytes for pause in rules if pause is not None and pause.alpha]


def _headroom_warnings(
    choice: SwitchChoice, topology: Topology, pauses: Mapping[CableKind, PauseRules]
) -> list[str]:
    """Return a sentence about a headroom pool that is too small for the ports of a switch."""
    if choice.pool is None or choice.pool.headroom_pool_bytes is None:
        return []
    needed, name, ports = 0, "", 0
    for switch in topology.switches:
        headrooms = _headrooms(topology, switch.name, pauses)
        if sum(headrooms) > needed:
            needed, name, ports = sum(headrooms), switch.name, len(headrooms)
    if needed <= choice.pool.headroom_pool_bytes:
        return []
    return [
        f"the headroom pool of {format_size(choice.pool.headroom_pool_bytes)} is less than the "
        f"{format_size(needed)} that the {ports} ports of {name} need if all of them pause at "
        "once: lossless packets may be dropped; raise headroom_pool"
    ]


def _held(
    pauses: Mapping[CableKind, PauseRules], links: Mapping[CableKind, LinkRules]
) -> dict[CableKind, int]:
    """The most octets on the wire that a port holds of lossless frames, by kind of cable."""
    if pauses:
        return {kind: pause.ceiling_bytes for kind, pause in pauses.items()}
    return {
        kind: link.cbfc.cells * most_octets_of_cell(link.cbfc)
        for kind, link in links.items()
        if link.cbfc is not None
    }


def has_tunnels(topology: Topology) -> bool:
    """Return whether switches put packets into tunnels."""
    return any(bridge.vni is not None for node in topology.switches for bridge in node.bridges)


def _within(
    rules: Profile, choice: SwitchChoice, changes: Mapping[str, Any], buffer: int
) -> Profile:
    """``rules`` for a port of ``buffer`` octets."""
    if (frame := rules.mtu + PACKET_OVERHEAD_OCTETS) > buffer:
        raise Misfit(
            f"the topology's buffer of {format_size(buffer)} is less than a frame of its MTU on "
            f"the wire ({frame} octets), and a switch queues whole frames: take a larger one",
            *("buffer", "mtu"),
        )
    limited = {}
    for name in CLASS_NAMES:
        before: ClassRules = getattr(rules, name)
        if choice.pool is not None:
            after = before
        elif before.limit_bytes is None:
            after = replace(before, limit_bytes=max(buffer, before.trim_bytes or 0))
        else:
            after = before
        if choice.profile in ON_CHIP and choice.pool is None and not _paused(choice, name, changes):
            for what in ("trim_bytes", "limit_bytes"):
                depth = getattr(after, what)
                if depth is None or depth <= buffer:
                    continue
                if changes.get(f"{name}.{what}") is not None:
                    raise Misfit(
                        f"{name}.{what} of the switch is {format_size(depth)}, and a port of this "
                        f"fabric holds {format_size(buffer)}: raise the topology's buffer, or take "
                        "a deep switch",
                        *(f"{name}.{what}", "buffer"),
                    )
                after = replace(after, **{what: buffer})
        for what in OF_CLASS:
            if ((depth := getattr(after, what)) or 0) > DEEPEST:
                raise Misfit(
                    f"{name}.{what} of the switch is {format_size(depth)}, and the kernel queues "
                    f"at most {format_size(DEEPEST)}: take less",
                    *(f"{name}.{what}", "buffer"),
                )
        _check_marks(name, after, changes)
        limited[name] = after
    return replace(rules, **limited)  # type: ignore[arg-type]


def _paused(choice: SwitchChoice, name: str, changes: Mapping[str, Any]) -> bool:
    """Return whether class ``name`` is bound by the buffers of the ports that it comes in by."""
    return (
        (choice.pausing is not None or choice.cbfc is not None)
        and name in LOSSLESS_CLASSES
        and changes.get(f"{name}.limit_bytes") is None
    )


def _check_marks(name: str, rules: ClassRules, changes: Mapping[str, Any]) -> None:
    """Whoever chose when packets of class ``name`` are marked gets marks."""
    kmin, kmax = f"{name}.kmin_bytes", f"{name}.kmax_bytes"
    if rules.kmax_bytes is None:
        for key in (kmin, f"{name}.pmax"):
            if key in changes:
                raise Misfit(
                    f"{key} of the switch says nothing without {kmax}: set that too, or leave "
                    "out both",
                    *(key, kmax),
                )
        return
    limits = [depth for depth in (rules.trim_bytes, rules.limit_bytes) if depth is not None]
    full = min(limits, default=DEEPEST)
    if {kmin, kmax} & changes.keys() and rules.kmin_bytes >= full:
        raise Misfit(
            f"{kmin} of the switch is {format_size(rules.kmin_bytes)}, and its queue is full at "
            f"{format_size(full)}, before anything is marked: lower it, or set {kmax}=none",
            *(kmin, "buffer", kmax),
        )


def _check_rates(topology: Topology, cables: Sequence[Link], dilation: float) -> None:
    if not cables:
        return
    by_rate = sorted(cables, key=lambda cable: cable.rate_bps)
    slowest, fastest = by_rate[0], by_rate[-1]
    lowest = fastest.rate_bps / LARGEST_HOST_RATE
    highest = slowest.rate_bps / SMALLEST_HOST_RATE
    if not lowest <= dilation <= highest:
        raise Misfit(
            f"at dilation {dilation:g} this fabric's links are outside of the rates that the "
            f"switch ASIC counts in: choose a dilation of {lowest:g} to {highest:g}",
            *_rates_of(topology, fastest if dilation < lowest else slowest),
        )


def _rates_of(topology: Topology, cable: Link) -> Iterator[str]:
    """The parameters of a design that the rate of ``cable`` may come from."""
    roles = {topology.node(end.node).role for end in cable.ends}
    if Role.SUPER_SPINE in roles:
        yield "super_rate"
    if roles <= SWITCH_ROLES:
        yield "uplink_rate"
    yield "nic_rate"


def _check_dependencies(topology: Topology, parameter: str) -> None:
    """Refuse lossless classes, which ``parameter`` turns on, on routes with a cyclic dependency.

    That is one of buffers whose packets wait for room in each other.
    """
    control = parameter.upper()
    seen = ", or pfc_deadlock=allow to see it" if parameter == PFC else ""
    stretch = stretch_of(topology)
    if stretch is not None and stretch.turns_back:
        raise Misfit(
            f"{control} can bring this fabric to a standstill: a packet for another stretched rail "
            "goes down to a switch that has the rail and from there up again, so that links can "
            "have a cyclic buffer dependency: take rails_per_switch of all rails, or switches "
            f"without {control} (such as lossless:pfc=off, shallow){seen}",
            *(parameter, "switch", "rails_per_switch", "subnets"),
        )
    channels = buffer_cycle(topology)
    if channels:
        first = ", ".join(str(channel) for channel in channels[:SHOWN_CHANNELS])
        more = len(channels) - SHOWN_CHANNELS
        raise Misfit(
            f"{control} can bring this fabric to a standstill: with routing="
            f"{topology.profile.routing}, {len(channels)} links have a cyclic buffer dependency "
            f"({first}{f' and {more} more' if more > 0 else ''}): take "
            f"routing=up-down, or switches without {control} (such as lossless:pfc=off, shallow)"
            f"{seen}",
            *(parameter, "switch", "routing"),
        )


def _check_hops(topology: Topology, choice: SwitchChoice) -> None:
    if forwarding_of(topology).lookups:
        raise Misfit(
            f"balance={choice.balance} knows one set of next hops to each destination, and with "
            f"routing={topology.profile.routing} they depend on where a packet comes from: take "
            "another, such as balance=packet",
            "balance",
        )
    for switch, routes in multipath(topology).items():
        for route in routes:
            if len(route.hops) > HOPS:
                raise Misfit(
                    f"{switch} has {len(route.hops)} next hops to {route.destination}, and "
                    f"balance={choice.balance} chooses among at most {HOPS}: take another, such "
                    "as balance=packet",
                    "balance",
                )


def derived_seed(seed: int, *names: str) -> int:
    """64 bits that ``seed`` and ``names`` fix, unlike for any other names."""
    text = "\0".join((str(seed), *names)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
