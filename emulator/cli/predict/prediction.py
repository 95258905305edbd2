"""A cluster's test repeated: the run that does so, and its numbers beside the fabric's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import Any

from emulator import scenario as scenarios
from emulator.errors import UserError
from emulator.nccl_tests.cluster_log import COLLECTIVES, ClusterLog, ClusterRow, ClusterTimes
from emulator.result_rows import TableColumn
from emulator.run.report.result_table import ResultTable, wrapped
from emulator.run.results import Result, RunFolder
from emulator.run.runner import Observer, RunPlan, RunRequest, execute, prepare
from emulator.scenario import Scenario
from topologies.model import Topology
from topologies.units import UnitError, format_size, parse_size

#: Octets of all ranks' buffers and iterations together, beyond which a run takes too long to be
#: started without a word: about ten minutes on one processor.
MOST_OCTETS = 32 * 2**30
_DTYPES = {
    "half": "float16", "float": "float32", "double": "float64", "char": "int8", "int": "int32",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The user's limit on sizes (octets): larger ones are left out, or with ``cut`` cut to it."""

    octets: int | None = None
    cut: bool = False

    @classmethod
    def of(cls, largest: str | None, cut_to: str | None) -> Limit:
        """Return the limit of the options ``--largest`` and ``--cut-to``."""
        if largest is not None and cut_to is not None:
            raise UserError("--largest leaves sizes out and --cut-to cuts them; keep one of them")
        text = largest if cut_to is None else cut_to
        if text is None:
            return cls()
        try:
            octets = parse_size(text)
        except UnitError as error:
            raise UserError(f"--{'largest' if cut_to is None else 'cut-to'}: {error}") from None
        return cls(octets=octets, cut=cut_to is not None)


@dataclass(frozen=True, kw_only=True)
class TestSize:
    """A size of the log, with all its rows, and the size that is run for it (octets).

    ``cut``: a library takes times as for a size so many times as large as the run one.
    """

    size: int
    run: int
    rows: Sequence[ClusterRow]
    cut: int = 1

    def times(self, in_place: bool) -> tuple[ClusterTimes, bool]:
        """Return the mean of the rows, and whether it is of buffers in place.

        The times are those of the other placement where the log has none of ``in_place``.
        """
        for placed in (in_place, not in_place):
            found = [row.in_place if placed else row.out_of_place for row in self.rows]
            times = [one for one in found if one is not None]
            if times:
                return _mean(times), placed
        raise UserError(f"{self.rows[0].where}: the row has no time; take it out of the log")


def collective_of(log: ClusterLog, named: str | None, topology: Topology) -> str:
    """Return the log's collective; UserError if the log is not of as many ranks as there are GPUs.

    ``named`` is the user's word for a log that names no test.
    """
    gpus = len(topology.gpus)
    if log.ranks not in (None, gpus):
        hosts = len(log.hosts) or 1
        raise UserError(
            f"{log.source} is of {log.ranks} ranks on {hosts} hosts, and {topology.name} has "
            f"{gpus} GPUs; give a --topology with {log.ranks}, such as "
            f"rail_clos:hosts={hosts},gpus_per_host={(log.ranks or 1) // hosts}"
        )
    collective = log.named(named)
    log.check_factor(collective, gpus)
    log.check_sizes(collective, gpus)
    return collective


def scenario_of(log: ClusterLog, collective: str) -> Scenario:
    """Return the scenario that runs ``collective``; UserError if none does."""
    name = COLLECTIVES[collective].scenario
    if name not in (known := scenarios.names()):
        offered = [one for one, form in COLLECTIVES.items() if form.scenario in known]
        raise UserError(
            f"{log.source} is of {collective}_perf, which no scenario runs; those that can be run "
            f"are {', '.join(offered)}"
        )
    return scenarios.load(name)


def sizes_of(
    log: ClusterLog, limit: Limit, given: Mapping[str, str] = MappingProxyType({})
) -> list[TestSize]:
    """Return the sizes to run, in the log's order; rows of one size are one.

    ``given`` are the user's parameters.
    """
    by_size: dict[int, list[ClusterRow]] = {}
    for row in log.rows:
        if row.size:
            by_size.setdefault(row.size, []).append(row)
    if not by_size:
        raise UserError(f"{log.source} has rows of size 0 only; run the test with larger ones")
    return limited(by_size, limit, log.source, given)


def limited(
    by_size: Mapping[int, Sequence[ClusterRow]],
    limit: Limit,
    source: str,
    given: Mapping[str, str],
) -> list[TestSize]:
    """Return the sizes (octets) within ``limit``, with their rows; UserError if there is none."""
    most = limit.octets
    timed = limit.cut and given.get("library", "none") != "none"
    if timed and "cut" in given:
        raise UserError("--cut-to says the cut of each size; leave --param cut out")
    chosen = [
        TestSize(
            size=size,
            run=(run := size if most is None else min(size, most)),
            rows=rows,
            cut=round(size / run) if timed else 1,
        )
        for size, rows in by_size.items()
        if limit.cut or most is None or size <= most
    ]
    if not chosen:
        raise UserError(
            f"all sizes of {source} are above --largest {format_size(most or 0)}; the least is "
            f"{min(by_size)} B"
        )
    return chosen


def run_once(sizes: Sequence[TestSize]) -> list[tuple[int, int]]:
    """Return the sizes that are run (octets), each once with each cut."""
    return list(dict.fromkeys((size.run, size.cut) for size in sizes))


def sizes_run(sizes: Sequence[TestSize]) -> dict[str, str]:
    """Return the parameters that have ``sizes`` run."""
    runs, cuts = zip(*run_once(sizes), strict=True)
    found = {"sizes": ",".join(map(str, runs))}
    return found | ({"cut": ",".join(map(str, cuts))} if set(cuts) != {1} else {})


def choice_of(
    scenario: Scenario, names: Sequence[str], words: Sequence[str]
) -> dict[str, str] | None:
    """Return the parameter, one of ``names``, that takes one of ``words``; None if none does."""
    fields = {item.name: item for item in dataclasses.fields(scenario.module.Parameters)}
    for name in names:
        offered = fields[name].metadata["choices"]() if name in fields else ()
        for word in words:
            if word in offered:
                return {} if fields[name].default == word else {name: word}
    return None


def parameters_of(
    scenario: Scenario, sizes: Sequence[TestSize], given: Mapping[str, str]
) -> dict[str, str]:
    """Return the parameters of the run; UserError, with the row, for what it has no parameter for.

    ``given`` are the user's own.  The algorithm is chosen as the cluster's library does, where the
    scenario can.
    """
    first = sizes[0].rows[0]
    for row in (row for size in sizes for row in size.rows):
        if (row.type, row.redop, row.root) != (first.type, first.redop, first.root):
            raise UserError(
                f"{row.where}: type {row.type}, redop {row.redop}, root {row.root} after "
                f"{first.type}, {first.redop}, {first.root}; cut the log to one of each"
            )
    fields = {item.name for item in dataclasses.fields(scenario.module.Parameters)}
    choice = partial(choice_of, scenario)
    dtype = choice(("datatype", "dtype"), (first.type, _DTYPES.get(first.type, first.type)))
    if dtype is None and first.type != "float":
        raise UserError(
            f"{first.where}: scenario {scenario.name} has no elements of type {first.type}; run "
            "the test with -d float"
        )
    redop = choice(("op", "redop"), (first.redop,))
    if redop is None and first.redop not in ("sum", "none"):
        raise UserError(
            f"{first.where}: scenario {scenario.name} has no operation {first.redop}; run the "
            "test with -o sum"
        )
    root: dict[str, str] = {}
    if first.root > 0 or (first.root == 0 and "root" in fields):
        if "root" not in fields:
            raise UserError(
                f"{first.where}: scenario {scenario.name} has no root other than rank 0, and the "
                f"log has {first.root}; run the test with -r 0"
            )
        root = {"root": str(first.root)}
    if taken := set(given) & {"sizes", "min_size", "max_size", "factor", *(dtype or {}), *root}:
        raise UserError(
            f"--param {min(taken)} is the log's to say; leave it out, or run the scenario "
            f"{scenario.name} by itself"
        )
    chosen = choice(("algorithm",), ("auto",)) or {}
    return {**chosen, **sizes_run(sizes), **(dtype or {}), **(redop or {}), **root, **given}


def check_work(source: str, sizes: Sequence[TestSize], ranks: int, repeats: int) -> None:
    """Raise UserError if the run would take more than :data:`MOST_OCTETS`.

    ``repeats`` are warm-ups and iterations of each size; ``source`` is where the sizes stand.
    """
    octets = sum(size for size, _ in run_once(sizes)) * ranks * repeats
    if octets > MOST_OCTETS:
        largest = max(sizes, key=lambda size: size.run)
        where = largest.rows[0].where if largest.rows else source
        raise UserError(
            f"{where}: with sizes up to {format_size(largest.run)} the emulator "
            f"would move {octets // 2**30} GiB, packet by packet; give --largest 64MiB to leave "
            "out what is larger, or --cut-to 64MiB to run it with that size and compare bandwidths"
        )


@dataclass(frozen=True, kw_only=True)
class SizesRun:
    """A run of sizes; ``rows`` are its own, by the size (octets) and cut that were asked for."""

    plan: RunPlan
    result: Result
    folder: RunFolder
    rows: Mapping[tuple[int, int], Mapping[str, object]]

    @property
    def wrong(self) -> str:
        """A sentence if elements are wrong, else nothing."""
        if self.result.succeeded:
            return ""
        return f"elements are wrong, see {self.folder.path}/result.json; please report it"


def run_of(
    scenario: Scenario,
    given: Mapping[str, str],
    sizes: Sequence[TestSize],
    observer: Observer,
    **run: Any,
) -> SizesRun:
    """Run ``sizes`` of ``scenario`` with the parameters ``given``; UserError where that fails.

    ``run`` are more fields of a :class:`~emulator.run.plan.run_plan.RunRequest`.
    """
    parameters = scenario.parameters(given)
    if getattr(parameters, "in_place", None) == "both":
        raise UserError("predict takes one placement: give --param in_place=0 or in_place=1")
    plan = prepare(RunRequest(scenario=scenario, parameters=parameters, capture="none", **run))
    if plan.compares:
        raise UserError("predict takes one --transport; call it once for each")
    result, folder = execute(plan, observer)
    if result.errors:
        raise UserError(result.errors[0])
    rows = dict(zip(run_once(sizes), result.rows, strict=True))
    return SizesRun(plan=plan, result=result, folder=folder, rows=rows)


def _mean(times: Sequence[ClusterTimes]) -> ClusterTimes:
    number = len(times)
    return ClusterTimes(
        sum(one.time_us for one in times) / number,
        sum(one.algbw_gbps for one in times) / number,
        sum(one.busbw_gbps for one in times) / number,
        wrong=max((one.wrong for one in times if one.wrong is not None), default=None),
    )


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
        "library": measured.get("library"),
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
        "fabric": result["fabric"],
        "transport": result["transport"],
        "switch": result["switch"],
        "seed": result["seed"],
        "digest": result["digest"],
        "rows": rows,
    }


def table_of(
    rows: Sequence[Mapping[str, object]], columns: Sequence[TableColumn] = COLUMNS
) -> ResultTable:
    """Return the table for ``rows``; the size that was run has a column if it is another."""
    cut = any(row["run_bytes"] != row["size_bytes"] for row in rows)
    columns = [one for one in columns if cut or one.key != "run_bytes"]
    facts = ("size_bytes", "type", "redop", "algorithm")
    known = [{key: row[key] for key in facts if key in row} for row in rows]
    return ResultTable(columns, known)


def cluster_lines(
    log: ClusterLog, collective: str, topology: Topology, rows: Sequence[Mapping[str, object]]
) -> Iterator[str]:
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
    missing = "launches of kernels, and the time that GPUs take to sum: small sizes are faster here"
    if any(row.get("library") for row in rows):
        missing = "what GPUs take beyond the tables of the library, such as to sum"
    else:
        missing += "; --nic and --param library=nccl (or rccl) take time for them"
    yield from wrapped("Not emulated", missing)


def _hosts(counts: Sequence[int]) -> str:
    if len(set(counts)) == 1:
        return f"{len(counts)} of {counts[0]} GPUs"
    return f"{len(counts)} of {counts[0]} to {counts[-1]} GPUs"
