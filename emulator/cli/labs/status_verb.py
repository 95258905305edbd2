"""``uetemu status``: running labs, their nodes and ports."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import click
from rich import box
from rich.console import Console
from rich.table import Table

from emulator.cli.options import TABLE_OR_JSON
from emulator.cluster import isolation
from emulator.dataplane import lab_record
from emulator.dataplane.control_plane.lab_routing import Routing
from emulator.dataplane.kernel.port_counters import PortCounters
from emulator.dataplane.lab import Lab
from emulator.dataplane.lab_record import LabRecord
from emulator.dataplane.switch.switch_counters import AsicCounters
from emulator.errors import UserError
from emulator.run.faults.condition import Condition, described
from emulator.run.faults.fault_injector import recorded
from topologies.cluster import BORDER
from topologies.model import CableEnd, Link
from topologies.units import format_rate

WIDEST = 1000  # columns: no cell is cut


@click.command("status")
@click.argument("lab", required=False)
@TABLE_OR_JSON
def command(lab: str | None, form: str) -> None:
    """List the labs of this machine, or the nodes and ports of LAB with their counters."""
    if lab is None:
        records = lab_record.labs()
        if form == "json":
            click.echo(json.dumps([_lab_facts(record) for record in records], indent=2))
        elif records:
            _show_labs(records)
        else:
            click.echo("no lab is running; start one: uetemu up")
        return
    found: list[dict[str, object]] = []
    for each in (lab, *(member.lab for member in lab_record.members(lab))):
        with Lab.attach(each) as running:
            counters = running.counters()
            switches = running.asic.counters() if running.asic is not None else {}
            faulted = recorded(running.name, running.topology)
            if form == "json":
                found.append(_facts(running, counters, switches) | {"struck": faulted.words()})
            else:
                _show_ports(running, counters, switches, faulted)
    if found:
        first, *others = found
        click.echo(json.dumps(first | ({"networks": others} if others else {}), indent=2))


def state_of(record: LabRecord) -> str:
    """The lab's phase, or that its maker died."""
    return "abandoned" if record.abandoned else str(record.phase)


def _time_of(record: LabRecord) -> str:
    """The dilation, which a virtual clock has not."""
    return "virtual" if record.settings.clock == "virtual" else f"{record.settings.dilation:g}"


def _lab_facts(record: LabRecord) -> dict[str, object]:
    return record.as_dict() | {"nodes": len(record.nodes), "state": state_of(record)}


def _facts(
    lab: Lab, counters: dict[str, PortCounters], switches: dict[str, AsicCounters]
) -> dict[str, object]:
    nodes = [
        {
            "name": node.name,
            "role": str(node.role),
            "namespace": str(lab.netns(node.name)),
            "addresses": [str(bridge.gateway) for bridge in node.bridges if bridge.gateway]
            + [str(port.address) for port in node.ports if port.address is not None],
            "ports": {
                port.name: counters[f"{node.name}:{port.name}"].as_dict()
                for port in node.ports
                if f"{node.name}:{port.name}" in counters
            },
            "asic": {
                port.name: switches[f"{node.name}:{port.name}"].as_dict()
                for port in node.ports
                if f"{node.name}:{port.name}" in switches
            },
        }
        for node in lab.topology.nodes
    ]
    facts: dict[str, object] = {
        "control_plane": lab.topology.profile.control_plane,
        "dead_daemons": _dead_daemons(lab),
    }
    if isolation.tenants_of(lab.topology):
        facts["isolation"] = lab.topology.profile.isolation
        facts["lost_routers"] = _lost_routers(lab)
        facts["routers_put_back"] = _routers_put_back(lab)
    return _lab_facts(lab.record) | facts | {"nodes": nodes}


def _dead_daemons(lab: Lab) -> list[str]:
    """Return a sentence for each switch that has lost a daemon of FRR."""
    found = []
    for switch in lab.routing.switches.values() if isinstance(lab.routing, Routing) else ():
        try:
            switch.check_alive()
        except UserError as error:
            found.append(str(error))
    return found


def _lost_routers(lab: Lab) -> list[str]:
    return lab.routing.lost_routers() if isinstance(lab.routing, Routing) else []


def _routers_put_back(lab: Lab) -> int:
    return lab.routing.routers_put_back() if isinstance(lab.routing, Routing) else 0


def _show_labs(records: Sequence[LabRecord]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("lab", "state", "topology", "switch", "nodes", "dilation", "owner", "created"):
        right = column in ("nodes", "dilation", "owner")
        table.add_column(column, justify="right" if right else "left")
    for record in records:
        table.add_row(
            record.lab,
            state_of(record),
            record.settings.spec,
            record.switch or "none",
            str(len(record.nodes)),
            _time_of(record),
            str(record.owner.pid) if record.in_use else "-",
            record.created,
        )
    _show(table)
    for record in records:
        if record.abandoned:
            click.echo(f"lab {record.lab} was left behind; remove it: uetemu clean {record.lab}")


def _show_ports(
    lab: Lab,
    counters: dict[str, PortCounters],
    switches: dict[str, AsicCounters],
    faulted: Condition,
) -> None:
    plane = lab.topology.profile.control_plane
    click.echo(
        f"lab {lab.name}: {lab.record.settings.spec}, {state_of(lab.record)}, "
        f"switch {lab.record.switch or 'none'}, control plane {plane}, "
        f"dilation {_time_of(lab.record)}, seed {lab.seed}"
    )
    for words in faulted.words():
        click.echo(f"struck: {words}")
    for words in _dead_daemons(lab):
        click.echo(f"no routing: {words}")
    if isolation.tenants_of(lab.topology):
        click.echo(isolation.stated(lab.topology))
        for words in _lost_routers(lab):
            click.echo(f"lost traffic: {words}")
        if number := _routers_put_back(lab):
            click.echo(f"router MACs of tenants that zebra had lost, put back: {number}")
    if lab.record.settings.membership is not None and isolation.has_border(lab):
        packets, octets = isolation.refused_by_border(lab)
        click.echo(f"firewall of {BORDER}: {packets} packets of users refused, {octets} octets")
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("port", "to", "address", "rate"):
        table.add_column(column)
    for column in ("rx packets", "tx packets", "tx bytes", "queued bytes", "drops"):
        table.add_column(column, justify="right")
    for column in ("marked", "trimmed") if switches else ():
        table.add_column(column, justify="right")
    for node in lab.topology.nodes:
        gateways = {bridge.name: str(bridge.gateway or "L2") for bridge in node.bridges}
        cables = {ours.port: (link, far) for link, ours, far in lab.topology.neighbours(node.name)}
        for port in node.ports:
            link, far = cables[port.name]
            end = str(CableEnd(node.name, port.name))
            seen, asic = counters.get(end), switches.get(end)
            if seen is None:
                table.add_row(end, str(far), "gone")
                continue
            address = port.address or (f"({gateways[port.bridge]})" if port.bridge else "")
            table.add_row(
                end,
                str(far),
                str(address),
                "down" if link in faulted.dead else _rate(link, faulted),
                str(seen.rx_packets),
                str(seen.tx_packets),
                str(seen.tx_bytes),
                str(seen.data.backlog_bytes + seen.control.backlog_bytes),
                str(seen.data.drops + seen.control.drops + seen.tx_dropped + _dropped(asic)),
                *_marks(asic),
            )
    _show(table)


def _rate(link: Link, faulted: Condition) -> str:
    reported = described(faulted.of(link), link)
    return format_rate(link.rate_bps) + (f" ({' '.join(reported)})" if reported else "")


def _dropped(asic: AsicCounters | None) -> int:
    """Return what the ASIC dropped, faults included, before the kernel's queues saw it."""
    return sum(row.dropped for row in asic.classes.values()) if asic is not None else 0


def _marks(asic: AsicCounters | None) -> tuple[str, ...]:
    if asic is None:
        return ()
    rows = asic.classes.values()
    return str(sum(row.marked for row in rows)), str(sum(row.trimmed for row in rows))


def _show(table: Table) -> None:
    """Print as wide as the table is; what reads it may be a pipe."""
    text = io.StringIO()
    Console(file=text, width=WIDEST).print(table)
    click.echo("\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines()))
