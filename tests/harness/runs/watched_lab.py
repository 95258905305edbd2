"""A lab that is watched, made of numbers alone: no kernel, no root."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulator.dataplane.lab_record import LabRecord, Phase, Process
from emulator.dataplane.settings import FabricSettings
from emulator.dataplane.switch import switch_choice
from emulator.dataplane.switch.bpf.layout import DropReason
from emulator.dataplane.switch.cable_counters import PauseCounters
from emulator.lab.live.rates import Reading, activities, directions, tiers
from emulator.lab.live.sampler import LabSample, QueueLimits, Sample
from emulator.lab.monitoring.lab_watch import RowName, RunProgress, Watched
from topologies import catalogue
from topologies.model import Topology

INTERVAL_NS = 10_000


def watched_lab(
    spec: str | Topology = "rail_clos:hosts=2,gpus_per_host=2",
    *,
    sent: Mapping[str, int] | None = None,
    **changes: Any,
) -> Watched:
    """Return a lab with a virtual clock after an interval of 10 us.

    Each port has sent 1000 octets in it, or what ``sent`` has; each switch port has counted one
    mark, two trims and three drops at its tail.
    """
    topology = catalogue.load(spec) if isinstance(spec, str) else spec
    switches = {node.name for node in topology.switches}
    ports = [one.port for one in directions(topology)]
    record = LabRecord(
        lab="demo",
        identity="x",
        phase=Phase.UP,
        settings=FabricSettings(
            spec=str(spec), seed=1, switch=switch_choice.parse("lossless"), clock="virtual"
        ),
        owner=Process(1, 1),
        created="2026-01-01T00:00:00+00:00",
        nodes=tuple(node.name for node in topology.nodes),
    )

    def reading(port: str, at_ns: int) -> Reading:
        share = at_ns / INTERVAL_NS
        octets = round((sent or {}).get(port, 1000) * share)
        if port.partition(":")[0] not in switches:
            return Reading(at_ns=at_ns, sent_bytes=octets, queue_bytes=0, overflowed=0)
        counts = [round(number * share) for number in (1, 2, 3)]
        return Reading(
            at_ns=at_ns, sent_bytes=octets, queue_bytes=500, overflowed=0, peak_bytes=900,
            marked=counts[0], trimmed=counts[1], dropped=counts[2],
        )  # fmt: skip

    before, after = ({port: reading(port, at) for port in ports} for at in (0, INTERVAL_NS))
    limits = {port: QueueLimits(limit_bytes=1000, kmin_bytes=100, kmax_bytes=800) for port in ports}
    drops = {
        port: {reason.name.lower(): 3 * (reason is DropReason.TAIL) for reason in DropReason}
        for port in ports
        if port.partition(":")[0] in switches
    }
    values: dict[str, Any] = {
        "record": record,
        "topology": topology,
        "at_s": 1.8e9,
        "sample": Sample(
            at_ns=INTERVAL_NS, record=record, readings=after, limits=limits, drops=drops
        ),
        "pauses": {port: PauseCounters(pauses=2, paused_ns=5_000, xoff_sent=4) for port in ports},
        "picture": LabSample(
            record=record,
            interval_us=INTERVAL_NS / 1000,
            up_us=INTERVAL_NS / 1000,
            activities=tuple(activities(directions(topology), before, after, 1)),
            limits=limits,
            tiers=tiers(topology),
        ),
        "run": watched_run(),
    }
    return Watched(**values | changes)


def watched_run(**names: str) -> RunProgress:
    """Return a run with one row, whose transport and collective may have other names."""
    transport = names.get("transport", "uet")
    name = RowName(transport=transport, switch="shallow",
                   collective=names.get("collective", "allreduce"), size_bytes=1024)  # fmt: skip
    row = {"busbw_gbps": 12.5, "algbw_gbps": 10.0, "time_us": 40.0, "ideal_us": 30.0, "wrong": 0}
    run = RunProgress(Path("/tmp/run"), scenario="allreduce", finished=1, latest={name: row})
    run.ports.update(marked=7, trimmed=8, dropped=9, dropped_tail=9, paused_ns=10_000, xoff_sent=3)
    run.take({"event": "endpoints", "transport": transport,
               "counters": {"tx_data_packets": 100, "tx_retransmitted_packets": 5,
                            "rto_expirations": 1, "rx_drop_fragment": 2}})  # fmt: skip
    run.take({"event": "messages", "flows": [
        {"from": names.get("flow", "h0g0"), "to": "h1g0", "bytes": 1024, "messages": 2,
         "time_us": 5.0, "goodput_gbps": 0.2}]})  # fmt: skip
    return run
