"""A cluster's numbers beside the fabric's: rows, table, and the lines below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from emulator.cli.predict.cluster_test import TestSize
from emulator.nccl_tests.cluster_log import ClusterLog
from emulator.run.report.result_table import ResultTable, TableColumn, wrapped
from topologies.model import Topology
from topologies.units import format_size

SCHEMA = "uetemu.prediction/1"

COLUMNS = (
    TableColumn("size_bytes", "size", "(B)", 11),
    TableColumn("run_bytes", "run with", "(B)", 11),
    TableColumn("type", "type", "", 7, rank=6),
    TableColumn("redop", "redop", "", 6, rank=5),
    TableColumn("cluster_time_us", "time", "log (us)", 10),
    TableColumn("cluster_busbw_gbps", "busbw", "log (GB/s)", 10),
    TableColumn("time_us", "time", "here (us)", 10),
    TableColumn("busbw_gbps", "busbw", "here (GB/s)", 11),
    TableColumn("ratio", "ratio", "log/here", 8),
    TableColumn("ideal_us", "ideal", "(us)", 9, rank=4),
    TableColumn("cluster_efficiency", "of ideal", "log (%)", 8, 1, percent=True),
    TableColumn("efficiency", "of ideal", "here (%)", 8, 1, percent=True),
    TableColumn("wrong", "#wrong", "here", 7, rank=3),
    TableColumn("model_us", "model", "(us)", 9, rank=2),
    TableColumn("algorithm", "algorithm", "here", 18, rank=1),
)


def row_of(size: TestSize, measured: Mapping[str, object]) -> dict[str, object]:
    """Return the row of ``size``, from ``measured``, the run's own row.

    ``ratio`` is the log's time over that of the run.  Of a size that was cut it is the run's bus
    bandwidth over the log's, and the log's share of the ideal is None: the lower bound is that of
    the size that was run.  ``model_us`` is the least time of the library's own model, if the run
    chose by it.
    """
    cluster, in_place = size.times(bool(measured.get("in_place")))
    time_us, ideal_us = float(str(measured["time_us"])), float(str(measured["ideal_us"]))
    busbw = float(str(measured["busbw_gbps"]))
    run_bytes = int(str(measured["size_bytes"]))
    model = measured.get("model_us")
    if run_bytes == size.size:
        ratio: float | None = cluster.time_us / time_us
        efficiency: float | None = ideal_us / cluster.time_us
    else:
        ratio = busbw / cluster.busbw_gbps if cluster.busbw_gbps else None
        efficiency = None
    return {
        "where": size.rows[0].where,
        "size_bytes": size.size,
        "run_bytes": run_bytes,
        "type": size.rows[0].type,
        "redop": size.rows[0].redop,
        "root": size.rows[0].root,
        "cluster_rows": len(size.rows),
        "cluster_placement": "in place" if in_place else "out of place",
        "cluster_time_us": cluster.time_us,
        "cluster_algbw_gbps": cluster.algbw_gbps,
        "cluster_busbw_gbps": cluster.busbw_gbps,
        "cluster_wrong": cluster.wrong,
        "time_us": time_us,
        "algbw_gbps": measured["algbw_gbps"],
        "busbw_gbps": busbw,
        "wrong": measured["wrong"],
        "ideal_us": ideal_us,
        "ratio": ratio,
        "cluster_efficiency": efficiency,
        "efficiency": measured["efficiency"],
        "algorithm": measured.get("algorithm"),
        "model_us": min(model.values()) if isinstance(model, Mapping) and model else None,
    }


def content(
    log: ClusterLog, collective: str, result: Mapping[str, object], rows: Sequence[object]
) -> dict[str, object]:
    """Return what ``prediction.json`` holds."""
    return {
        "schema": SCHEMA,
        "log": log.source,
        "nccl_tests_version": log.version,
        "collective": collective,
        "ranks": result["ranks"],
        "cluster_hosts": dict(log.hosts),
        "cluster_iterations": log.iterations,
        "cluster_aggregated_iterations": log.aggregated,
        "topology": result["topology"],
        "transport": result["transport"],
        "switch": result["switch"],
        "seed": result["seed"],
        "digest": result["digest"],
        "rows": rows,
    }


def table_of(rows: Sequence[Mapping[str, object]]) -> ResultTable:
    """Return the table for ``rows``; the size that was run has a column if it is another."""
    cut = any(row["run_bytes"] != row["size_bytes"] for row in rows)
    columns = [one for one in COLUMNS if cut or one.key != "run_bytes"]
    known = [
        {key: row[key] for key in ("size_bytes", "type", "redop", "algorithm")} for row in rows
    ]
    return ResultTable(columns, known)


def cluster_lines(
    log: ClusterLog, collective: str, topology: Topology, rows: Sequence[Mapping[str, object]]
) -> Iterator[str]:
    """Yield the heading's lines on the log."""
    ranks = len(topology.gpus)
    words = [f"{log.source}: {collective}_perf over {log.ranks or ranks} ranks"]
    if log.hosts:
        words.append(f"on {len(log.hosts)} {'host' if len(log.hosts) == 1 else 'hosts'}")
    if log.version:
        words.append(f"by nccl-tests {log.version}")
    placed = sorted({str(row["cluster_placement"]) for row in rows})
    words.append(f"({', '.join(placed)}")
    words[-1] += f", {log.iterations} iterations)" if log.iterations else ")"
    yield from wrapped("Log", " ".join(words))
    if log.ranks is None:
        yield from wrapped(
            "Ranks", f"the log does not list them; the fabric has {ranks}, as busbw / algbw says"
        )
    here = sorted(len(server.gpus) for server in topology.servers)
    if log.hosts and sorted(log.hosts.values()) != here:
        yield from wrapped(
            "Hosts",
            f"the log has {_hosts(sorted(log.hosts.values()))}, and this fabric "
            f"{_hosts(here)}: other shares of the traffic stay inside a host",
        )
    if log.aggregated > 1:
        yield from wrapped(
            "Aggregated", f"a time of the log is that of one of {log.aggregated} operations at once"
        )


def closing_lines(
    log: ClusterLog, sizes: Sequence[TestSize], rows: Sequence[Mapping[str, object]]
) -> Iterator[str]:
    """Yield the lines below the table: how the numbers stand to each other."""
    ratios = {int(str(row["size_bytes"])): row["ratio"] for row in rows}
    known = {size: float(str(ratio)) for size, ratio in ratios.items() if ratio is not None}
    if known:
        least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
        yield from wrapped(
            "Ratio log/here",
            f"median {median(known.values()):.2f}, least {known[least]:.2f} at {least} B, most "
            f"{known[most]:.2f} at {most} B",
        )
    if wrong := log.wrong_sizes:
        size = min(wrong)
        yield from wrapped(
            "Wrong in the log",
            f"the cluster's own results were wrong in {len(wrong)} of its sizes, such as "
            f"{wrong[size]} elements of {size} B: its times prove little",
        )
    elif log.failed:
        yield from wrapped(
            "Wrong in the log",
            "the cluster's own results were out of bounds, as its last lines say: its times prove "
            "little",
        )
    shares = ((row, row["cluster_efficiency"]) for row in rows)
    beaten = [row for row, share in shares if isinstance(share, float) and share > 1]
    if beaten:
        yield from wrapped(
            "Faster than ideal",
            f"{len(beaten)} of {len(rows)} sizes, such as {beaten[-1]['size_bytes']} B: no "
            "schedule of this algorithm is as fast on this fabric, so the cluster has faster "
            "links, or its library another algorithm",
        )
    if any(row["run_bytes"] != row["size_bytes"] for row in rows):
        yield from wrapped(
            "Cut",
            "a size that was run with a smaller one is compared by its bus bandwidth, in which a "
            "smaller size has a larger share of delays",
        )
    left_out = len({row.size for row in log.rows}) - len(sizes)
    if left_out:
        empty = any(row.size == 0 for row in log.rows)
        what = "of 0 B, which send nothing," if empty else ""
        if left_out > empty:
            above = f"above {format_size(max(size.size for size in sizes))}"
            what = f"{what} and {above}" if what else above
        yield from wrapped("Left out", f"{left_out} of the log's sizes: those {what}")
    if any(len(size.rows) > 1 for size in sizes):
        yield from wrapped("Repeated", "a size with several rows in the log has their mean")
    yield from wrapped(
        "Not emulated",
        "launches of kernels, and the time that GPUs take to sum: small sizes are faster here",
    )


def _hosts(counts: Sequence[int]) -> str:
    if len(set(counts)) == 1:
        return f"{len(counts)} of {counts[0]} GPUs"
    return f"{len(counts)} of {counts[0]} to {counts[-1]} GPUs"
