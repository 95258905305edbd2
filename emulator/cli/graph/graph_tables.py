"""The tables of ``uetemu graph``: a topology, its addresses, the links of a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from emulator.cli.plain_tables import page, plain_table
from emulator.report.row_heat import MEASURES, busiest, describe
from emulator.report.run_folder import RunRecord
from topologies.analysis import capacity
from topologies.analysis.failure_domain import failure_domains
from topologies.analysis.one_way_delay import OneWayDelay
from topologies.clos import AUTO_HOMING
from topologies.exports import address_table
from topologies.exports.heat import number
from topologies.exports.mermaid import bundle_rate, bundles, inventory
from topologies.exports.picture import span
from topologies.model import SHORTEST, SWITCH, Bridge, CableEnd, Port, Role, Topology
from topologies.routing.paths import path_delays
from topologies.units import format_rate, format_size, format_time

if TYPE_CHECKING:
    from emulator.cli.graph.partition_table import AskedParts

#: Tables longer than this are for `--format json`, not for reading.
LONGEST_TABLE = 64
#: Of more values than this the least and the largest are shown.
MOST_VALUES = 6
#: Directions of links that are listed of a run.
MOST_LINKS = 24


def text(
    topology: Topology,
    delays: Iterable[OneWayDelay] = (),
    *,
    switch: str | None = None,
    asked: AskedParts | None = None,
    to_terminal: bool = False,
) -> str:
    """Summary, tiers, failures, rails and uplinks as tables, coloured only for a terminal.

    ``delays`` are the longest of an idle fabric.  ``switch`` is what the switches do, where the
    fabric names it.  What ``asked`` is for follows: the parts of workers.
    """
    summary = _summary(topology)
    if switch is not None:
        summary.add_row("switch", switch)
    for delay in delays:
        summary.add_row(f"one-way, {delay.name}", str(delay))
    shown: list[object] = [summary, ""]
    for made in (_tiers, _failures, _rails, _summaries, _uplinks, _networks):
        table = made(topology)
        if isinstance(table, str) or table.row_count:
            shown.append(table)
    if asked is not None:
        from emulator.cli.graph.partition_table import parts

        shown.append(parts(topology, asked))
    return page(shown, to_terminal=to_terminal)


def addresses(topology: Topology, *, to_terminal: bool = False) -> str:
    """Every interface of every node, however many they are."""
    shown = list(address_table.rows(topology))
    several = any(row.fep for row in shown)
    table = plain_table(
        "Addresses and ports",
        *("node", "port", "MAC", "address"),
        *(("FEP",) if several else ()),
        *("bridge, subnet", "far end", "rate"),
    )
    for row in shown:
        table.add_row(
            row.node,
            row.port,
            row.mac or "-",
            row.address or "-",
            *((row.fep or "-",) if several else ()),
            f"{row.bridge} {row.subnet}" if row.bridge else "-",
            row.far_end or "-",
            format_rate(row.rate_bps) if row.rate_bps else "-",
        )
    return page([table], to_terminal=to_terminal)


def links_of(run: RunRecord, row: int | None, colour: str, *, to_terminal: bool = False) -> str:
    found = busiest(run, row, colour)
    shown = [one for one in found if one.utilisation][:MOST_LINKS]
    title = f"{MEASURES[colour].title}: {describe(run, run.ports_of(row))}"
    table = plain_table(
        None,  # which would be broken at the table's width
        *("from", "to", "used (%)", "marked", "trimmed", "dropped", "paused (us)"),
        right=2,
    )
    for one in shown:
        counts = (one.marked, one.trimmed, one.dropped, one.paused_us)
        table.add_row(
            str(one.port),
            str(one.to),
            number(100 * one.utilisation),
            *("-" if count is None else number(count) for count in counts),
        )
    left = len(found) - len(shown)
    more = [f"and {left} more directions of links, which saw less or nothing"] if left else []
    return page([title, table, *more], to_terminal=to_terminal)


def _summary(topology: Topology) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    links, sizes = topology.links, sorted({len(server.gpus) for server in topology.servers})
    shape = "-".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1])))
    table.add_row("topology", topology.name)
    table.add_row("GPUs", f"{len(topology.gpus)} ({len(topology.servers)} x {shape})")
    table.add_row("links", str(len(links)))
    ports = capacity.switch_ports(topology)
    table.add_row("switch ports", f"{ports} ({ports / len(topology.gpus):.3g} per GPU)")
    if topology.parameters.get("homing") == AUTO_HOMING:
        table.add_row("homing", "bond, drawn here; paths where the kernel has no bonds")
    if topology.profile.routing != SHORTEST:
        table.add_row("routing", topology.profile.routing)
    table.add_row("link delay", _each((link.delay_ns for link in links), format_time))
    table.add_row("MTU", _each((link.mtu for link in links), format_size))
    table.add_row("egress queue", _each((link.buffer_bytes for link in links), format_size))
    for scale_up in dict.fromkeys(server.scale_up for server in topology.servers):
        rate, latency = format_rate(scale_up.rate_bps), format_time(scale_up.latency_ns)
        reported = f"{rate} per GPU each way, {latency}"
        if scale_up.links:
            reported += f", {scale_up.links} links"
        if scale_up.shape != SWITCH:
            reported += f", {scale_up.shape}"
        if scale_up.hosts > 1:
            reported += f", {scale_up.hosts} servers"
        table.add_row("scale-up", reported)
    for name, bps in capacity.bisection_bandwidth(topology).items():
        table.add_row(f"bisection, {name}", f"{format_rate(bps)} each way")
    if delays := path_delays(topology, topology.gpus[0].name).values():
        table.add_row("one-way delay", f"{_span_of(delays, format_time)} (sum of link delays)")
    return table


def _networks(topology: Topology) -> Table:
    """The other networks of a cluster, each to be drawn with ``--network``."""
    table = plain_table("Other networks (--network)", "network", "what", "control plane")
    for one in topology.networks:
        table.add_row(one.network, inventory(one), one.profile.control_plane)
    return table


def _each(values: Iterable[int], shown: Callable[[int], str]) -> str:
    return ", ".join(shown(value) for value in sorted(set(values)))


def _span_of(values: Iterable[int], shown: Callable[[int], str]) -> str:
    """Each of a few values, of many the least and the largest."""
    distinct = sorted(set(values))
    if len(distinct) <= MOST_VALUES:
        return _each(distinct, shown)
    return f"{shown(distinct[0])} .. {shown(distinct[-1])}"


def _tiers(topology: Topology) -> Table:
    ratios = capacity.oversubscription(topology)
    kinds = capacity.rates_by_kind(topology)
    flat = any(across for _, _, (_, across, _) in kinds)  # else the column would be empty
    names = ("down", "across", "up") if flat else ("down", "up")
    table = plain_table("Tiers", "tier", "nodes", *names, "oversubscription")
    for tier in reversed(capacity.TIERS):
        rows = [sides for node, _, sides in kinds if node.role is tier]
        if not rows:
            continue
        count = sum(number for node, number, _ in kinds if node.role is tier)
        down, across, up = (
            "; ".join(dict.fromkeys(_ports(counts) for counts in side))
            for side in zip(*rows, strict=True)
        )
        ratio = capacity.format_ratio(ratios[tier]) if tier in ratios else "-"
        shown = (down, across, up) if flat else (down, up)
        table.add_row(tier.value, str(count), *shown, ratio)
    return table


def _ports(counts: Counter[int]) -> str:
    shown = (f"{count} x {format_rate(rate)}" for rate, count in sorted(counts.items()))
    return " + ".join(shown) or "-"


def _failures(topology: Topology) -> Table:
    table = plain_table("When one fails", "one", "such as", "GPUs")
    for domain in failure_domains(topology):
        table.add_row(domain.kind, domain.example, domain.reported())
    return table


def _only_counted(title: str, rows: int) -> str:
    return f"{title}: {rows} rows, see --format json"


def _rails(topology: Topology) -> Table | str:
    railed = any(switch.role is Role.RAIL for switch in topology.switches)
    gateways = [bool(bridge.gateway) for node in topology.switches for bridge in node.bridges]
    if (rows := sum(gateways)) > LONGEST_TABLE:
        return _only_counted("Rails" if railed else "Subnets", rows)
    columns = ("switch", "subnet", "gateway", "GPUs", "addresses", "ports")
    table = (
        plain_table("Rails", "rail", "VLAN", *columns)
        if railed
        else plain_table("Subnets", *columns)
    )
    for switch in topology.switches:
        for bridge in switch.bridges:
            if bridge.gateway is None:  # only a shared NIC has none
                continue
            members = [
                port.name
                for port in switch.ports
                if port.bridge == bridge.name
                and CableEnd(switch.name, port.name) not in topology.standby_ends
            ]
            gpus = [far for name in members for far in topology.beyond(CableEnd(switch.name, name))]
            addresses = [
                str(port.address.ip)
                for _, port in gpus
                if isinstance(port, Port) and port.address is not None
            ]
            table.add_row(
                *([str(bridge.rail), _vlan(bridge)] if railed else []),
                switch.name,
                str(bridge.gateway.network),
                str(bridge.gateway.ip),
                span([far.node for far, _ in gpus]),
                span(addresses),
                reported_ports(members),
            )
    return table


def reported_ports(names: Sequence[str]) -> str:
    """Return a short form of neighbouring ports, such as ``down0 .. down3``.

    Ports with others between are listed: a few each, such as ``down0, down3, down6``, more as
    ``down0, down8 .. down64``.
    """
    last = [int(found.group()) for name in names[:2] if (found := re.search(r"\d+$", name))]
    if len(names) < 2 or len(last) < 2 or last[1] == last[0] + 1:
        return span(names)
    if len(names) <= MOST_VALUES:
        return ", ".join(names)
    return f"{names[0]}, {span(names[1:])}"


def _vlan(bridge: Bridge) -> str:
    vni = f" (VNI {bridge.vni})" if bridge.vni is not None else ""
    return f"{bridge.vlan or '-'}{vni}"


def _summaries(topology: Topology) -> Table | str:
    rows = sum(bool(switch.summaries) for switch in topology.switches)
    if rows > LONGEST_TABLE:
        return _only_counted("Summaries", rows)
    table = plain_table("Summaries", "switch", "what others are told of its rails")
    for switch in topology.switches:
        if switch.summaries:
            table.add_row(switch.name, ", ".join(map(str, switch.summaries)))
    return table


def _uplinks(topology: Topology) -> Table | str:
    title = "Switch - switch links"
    heights = {switch.name: capacity.HEIGHT[switch.role] for switch in topology.switches}
    joined = {
        (a, b, link.standby) if heights[a] <= heights[b] else (b, a, link.standby)
        for link in topology.links
        if (a := link.a.node) in heights and (b := link.b.node) in heights
    }
    if len(joined) > LONGEST_TABLE:
        return _only_counted(title, len(joined))
    table = plain_table(title, "from", "to", "rate", "subnets")
    for lower, upper, links in bundles(topology):
        if not lower.is_switch:
            continue
        ends = [sorted(link.ends, key=lambda end: end.node == upper.name) for link in links]
        subnets = [
            str(address.network) for ours, _ in ends if (address := topology.addresses.get(ours))
        ]
        table.add_row(
            f"{lower.name}:{span([ours.port for ours, _ in ends])}",
            f"{upper.name}:{span([theirs.port for _, theirs in ends])}",
            f"{'standby ' if links[0].standby else ''}{bundle_rate(links)}",
            span(subnets),
        )
    return table
