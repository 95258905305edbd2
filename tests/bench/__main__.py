"""``python -m tests.bench first-light``: what the parts of one run cost on this machine.

Parts that are asked for more often than the rest have names of their own (``--help``).

Ratios are measured against something known in the same run, so they mean the same on any
machine; seconds and megabytes belong to the machine, which is described beside them.
"""

import io
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import click
from rich import box
from rich.console import Console
from rich.table import Table

from emulator.dataplane import cleanup
from emulator.errors import UserError
from tests.bench import (
    codec,
    endpoint,
    fabric,
    grow,
    limit,
    machine,
    nvme,
    ranks,
    switch,
    telemetry,
    transports,
    turns,
    virtual,
)

CODEC_SECONDS = 3.0


@dataclass(frozen=True)
class Figure:
    """How a measured number is told.  ``target`` is a bound: reached if not worse than it."""

    meaning: str
    unit: str
    more_is_better: bool
    target: float | None = None

    def verdict(self, value: float) -> str:
        if self.target is None:
            return ""
        reached = value >= self.target if self.more_is_better else value <= self.target
        return "reached" if reached else "missed"

    @property
    def bound(self) -> str:
        if self.target is None:
            return ""
        return f"{'>=' if self.more_is_better else '<='} {self.target:g}"


FIGURES: Mapping[str, Figure] = {
    "codec_encode_ratio": Figure("scapy's time to build a frame over ours", "x", True, 100),
    "codec_decode_ratio": Figure("scapy's time to dissect one over ours", "x", True, 100),
    "fabric_up_s": Figure("reference fabric, from nothing to carrier on every port", "s", False, 4),
    "fabric_down_s": Figure("reference fabric, until nothing of it is left", "s", False, 2),
    "mininet_builder_ratio": Figure("Mininet's own builder's time over fabric_up_s", "x", True),
    "endpoint_ready_s": Figure("uetemu fep target, from the command until it serves", "s", False),
    "endpoint_private_mb": Figure("memory that it shares with nobody", "MB", False),
    "end_to_end_ratio": Figure(
        "packet rate of an endpoint over that of a raw socket", "x", True, 0.25
    ),
    "tss_ratio": Figure("packet rate with TSS over that without", "x", True),
    "switch_us_a_hop": Figure(
        "what the switch ASIC adds to a hop, with its costliest balancing", "us", False, 1.0
    ),
    "switch_ratio": Figure("a hop with it over one of plain forwarding", "x", False),
    "rocev2_memory_ratio": Figure(
        "packet rate of RoCEv2 over that of Ultra Ethernet, in memory", "x", True, 1
    ),
    "rocev2_fabric_ratio": Figure("the same from end to end over a fabric", "x", True, 1),
    "uet_turn_us": Figure(
        "both UET stacks for a data packet with its ACK, one frame a turn", "us", False, 25
    ),
    "uet_small_write_us": Figure("the same for a write of 8 octets", "us", False, 40),
    "rocev2_turn_us": Figure(
        "both RoCEv2 stacks for a data packet with its ACK, one frame a turn", "us", False, 18
    ),
    "rocev2_small_write_us": Figure("the same for a write of 8 octets", "us", False),
    "virtual_ring_packets_s": Figure(
        "data packets a second, AllReduce of 8 MiB on the reference cluster", "1/s", True, 12_000
    ),
    "virtual_workers_ratio": Figure("packets of two workers over those of one", "x", True, 1.66),
    "virtual_ring_packet_us": Figure("processor time of one of them", "us", False),
    "virtual_permutation_packets_s": Figure(
        "the same, permutation over three switches", "1/s", True, 8_000
    ),
    "virtual_allreduce_s": Figure("uetemu run allreduce, from command to prompt", "s", False, 15),
    "virtual_capture_ratio": Figure(
        "a run that captures all ports over one that does not", "x", False, 1.3
    ),
    "virtual_512_gpus_s": Figure("AllReduce of 1 MiB over 512 GPUs", "s", False, 135),
    "virtual_512_gpus_mb": Figure("memory that it takes at most", "MB", False, 6_000),
    "virtual_packet_64_ratio": Figure("a packet among 64 GPUs over one among 8", "x", False, 1.5),
    "virtual_packet_512_ratio": Figure("among 512 GPUs over one among 8", "x", False, 1.5),
    "limit_one_switch_us": Figure(
        "bare crossings in C of a data packet with its ACKs, over one switch", "us", False
    ),
    "limit_three_switches_us": Figure("the same over three", "us", False),
    "limit_ring_ratio": Figure(
        "packets a processor second of a run over bare ones", "x", True, 0.3
    ),
    "limit_permutation_ratio": Figure("the same over three switches", "x", True, 0.35),
    "nvme_read_ratio": Figure(
        "octets a second of NVMe/TCP reads of 128 KiB, 32 at a time, over plain TCP's", "x", True
    ),
    "nvme_read_digests_ratio": Figure("the same with digests", "x", True),
    "nvme_write_ratio": Figure("the same of writes", "x", True),
    "nvme_write_digests_ratio": Figure("the same of writes with digests", "x", True),
    "nvme_turn_ratio": Figure(
        "a read of 4 KiB, one at a time, over a round trip of plain TCP", "x", False
    ),
    "telemetry_ratio": Figure(
        "packet rate while uetemu top samples all ports, over that without",
        "x",
        True,
        0.97,
    ),
}


def first_light() -> dict[str, float]:
    """Run every part; each builds its own labs and removes them."""
    measured: dict[str, float] = {}
    parts: tuple[tuple[str, Callable[[], dict[str, float]]], ...] = (
        ("the codec against scapy", lambda: codec.measure(CODEC_SECONDS)),
        ("the fabric against Mininet's builder", fabric.measure),
        ("the endpoint against a raw socket", endpoint.measure),
        ("the switch ASIC against plain forwarding", switch.measure),
        ("sampling of ports against none", telemetry.measure),
    )
    for what, work in parts:
        click.echo(f"measuring {what}", err=True)
        measured |= work()
    return measured


BENCHMARKS: Mapping[str, Callable[[], dict[str, float]]] = {
    "first-light": first_light,
    "grow": grow.measure,
    "limit": limit.measure,
    "nvme": nvme.measure,
    "ranks": ranks.measure,
    "switch": switch.measure,
    "telemetry": telemetry.measure,
    "transports": transports.measure,
    "turns": turns.measure,
    "virtual": virtual.measure,
    "virtual-sizes": virtual.measure_sizes,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("benchmark", type=click.Choice(list(BENCHMARKS)))
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
def main(benchmark: str, form: str) -> None:
    """Run BENCHMARK and print its figures beside the machine's.  Needs root."""
    try:
        cleanup.require_root("build fabrics")
        host = machine.describe()
        measured = BENCHMARKS[benchmark]()
    except UserError as error:
        click.echo(f"tests.bench: {error}", err=True)
        sys.exit(1)
    if form == "json":
        targets = {
            key: {"bound": figure.bound, "verdict": figure.verdict(measured[key])}
            for key, figure in FIGURES.items()
            if figure.target is not None and key in measured
        }
        report = {"benchmark": benchmark, **measured, "machine": host, "targets": targets}
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo(_drawn(measured, host))


def _drawn(measured: Mapping[str, float], host: Mapping[str, object]) -> str:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("")
    table.add_column("target", justify="right")
    table.add_column("")
    table.add_column("what it is")
    for key, figure in FIGURES.items():
        if key not in measured:
            continue
        value = measured[key]
        row = (key, f"{value:.3g}", figure.unit, figure.bound, figure.verdict(value))
        table.add_row(*row, figure.meaning)
    table.add_section()
    for key in sorted(measured.keys() - FIGURES.keys()):
        table.add_row(key, f"{measured[key]:.6g}", "", "", "", "")
    text = io.StringIO()
    console = Console(file=text, width=160)
    console.print(table)
    for key, fact in host.items():
        shown = f"{fact:.3g}" if isinstance(fact, float) else str(fact)
        console.print(f"  {key:<18} {shown}", highlight=False, markup=False)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


if __name__ == "__main__":
    main()
