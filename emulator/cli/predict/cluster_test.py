"""The run that repeats a cluster's test: its scenario, its parameters, and its sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulator import scenario as scenarios
from emulator.errors import UserError
from emulator.nccl_tests.cluster_log import COLLECTIVES, ClusterLog, ClusterRow, ClusterTimes
from emulator.scenario import Scenario
from topologies.model import Topology
from topologies.units import format_size

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


@dataclass(frozen=True, kw_only=True)
class TestSize:
    """A size of the log, with all its rows, and the size that is run for it (octets)."""

    size: int
    run: int
    rows: Sequence[ClusterRow]

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


def sizes_of(log: ClusterLog, limit: Limit) -> list[TestSize]:
    """Return the sizes to run, in the log's order; rows of one size are one."""
    by_size: dict[int, list[ClusterRow]] = {}
    for row in log.rows:
        if row.size:
            by_size.setdefault(row.size, []).append(row)
    if not by_size:
        raise UserError(f"{log.source} has rows of size 0 only; run the test with larger ones")
    most = limit.octets
    chosen = [
        TestSize(size=size, run=size if most is None else min(size, most), rows=rows)
        for size, rows in by_size.items()
        if limit.cut or most is None or size <= most
    ]
    if not chosen:
        least = min(by_size)
        raise UserError(
            f"all sizes of {log.source} are above --largest {format_size(most or 0)}; the least is "
            f"{least} B"
        )
    return chosen


def run_once(sizes: Sequence[TestSize]) -> list[int]:
    """Return the sizes that are run (octets), each once."""
    return list(dict.fromkeys(size.run for size in sizes))


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
    fields = {item.name: item for item in dataclasses.fields(scenario.module.Parameters)}

    def choice(names: Sequence[str], words: Sequence[str]) -> dict[str, str] | None:
        """Return the parameter that takes one of ``words``; None if the scenario has none."""
        for name in names:
            offered = fields[name].metadata["choices"]() if name in fields else ()
            for word in words:
                if word in offered:
                    return {} if fields[name].default == word else {name: word}
        return None

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
    of_log = {"sizes": ",".join(str(size) for size in run_once(sizes))}
    chosen = choice(("algorithm",), ("auto",)) or {}
    return {**chosen, **of_log, **(dtype or {}), **(redop or {}), **root, **given}


def check_work(log: ClusterLog, sizes: Sequence[TestSize], ranks: int, repeats: int) -> None:
    """Raise UserError if the run would take more than :data:`MOST_OCTETS`.

    ``repeats`` are warm-ups and iterations of each size.
    """
    octets = sum(run_once(sizes)) * ranks * repeats
    if octets > MOST_OCTETS:
        largest = max(sizes, key=lambda size: size.run)
        raise UserError(
            f"{largest.rows[0].where}: with sizes up to {format_size(largest.run)} the emulator "
            f"would move {octets // 2**30} GiB, packet by packet; give --largest 64MiB to leave "
            "out what is larger, or --cut-to 64MiB to run it with that size and compare bandwidths"
        )


def _mean(times: Sequence[ClusterTimes]) -> ClusterTimes:
    number = len(times)
    return ClusterTimes(
        sum(one.time_us for one in times) / number,
        sum(one.algbw_gbps for one in times) / number,
        sum(one.busbw_gbps for one in times) / number,
        wrong=max((one.wrong for one in times if one.wrong is not None), default=None),
    )
