"""The floor of a fabric: the bus bandwidth that collectives of a healthy cluster should reach.

A fabric is emulated.  Its bus bandwidths times the shares of them that measured clusters reach, by
size, are a band; its lower end is the floor.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator import scenario as scenarios
from emulator.cli.predict.prediction import (
    Limit,
    TestSize,
    check_work,
    choice_of,
    collective_of,
    limited,
    parameters_of,
    run_of,
    scenario_of,
    sizes_of,
    sizes_run,
)
from emulator.dataplane.fabric_choice import choose
from emulator.errors import UserError
from emulator.nccl_tests import log_file
from emulator.nccl_tests.cluster_log import COLLECTIVES, ClusterLog
from emulator.result_rows import TableColumn
from emulator.run.report.result_table import wrapped
from emulator.run.runner import Observer, RunPlan
from emulator.scenario import Scenario
from emulator.sim.endpoint.nic import nic_profile
from topologies.units import format_size

SCHEMA = "uetemu.floor/1"
#: What has ``by_size()``, the shares of measured clusters.
REACHED = "scenarios.hardware.reached"
COLUMNS = (
    TableColumn("size_bytes", "size", "(B)", 11),
    TableColumn("run_bytes", "run with", "(B)", 11),
    TableColumn("time_us", "time", "here (us)", 10),
    TableColumn("busbw_gbps", "busbw", "here (GB/s)", 11),
    TableColumn("floor_share", "floor", "(% of here)", 11, 1, percent=True),
    TableColumn("floor_busbw_gbps", "floor", "(GB/s)", 10),
    TableColumn("best_busbw_gbps", "best", "(GB/s)", 10),
    TableColumn("cluster_busbw_gbps", "busbw", "log (GB/s)", 10),
    TableColumn("against_floor", "against floor", "log", 13),
)
BELOW, REACHES = "below", "reached"


class Unseen:
    """An observer that shows nothing."""

    def began(self, plan: RunPlan, result: object) -> None:
        """Show nothing."""

    def progress(self, what: str, share: float | None) -> None:
        """Show nothing."""

    def row(self, row: Mapping[str, object]) -> None:
        """Show nothing: rows are made of it at the end."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What :func:`floor` found; ``rows`` has one for each size, by the keys of ``COLUMNS``.

    ``bands`` are the shares of measured clusters: least and most, and by the number of their point
    in ``scenarios/hardware/README.md``, for each band of sizes that a row is in, by its least size
    (octets).
    """

    collective: str
    plan: RunPlan
    result: Mapping[str, Any]
    folder: Path
    rows: Sequence[Mapping[str, Any]]
    bands: Mapping[int, Mapping[str, float]]
    log: ClusterLog | None = None

    @property
    def below(self) -> list[int]:
        """The sizes (octets) in which the log lies below the floor."""
        return [row["size_bytes"] for row in self.rows if row.get("against_floor") == BELOW]

    def as_dict(self) -> dict[str, Any]:
        """Return what ``floor.json`` holds."""
        run = ("ranks", "topology", "fabric", "transport", "switch", "seed", "digest")
        return {
            "schema": SCHEMA,
            "collective": self.collective,
            "log": None if self.log is None else self.log.source,
            **{key: self.result[key] for key in run},
            "nic": self.plan.request.nic,
            "library": getattr(self.plan.request.parameters, "library", None),
            "below": self.below,
            "rows": list(self.rows),
            "bands": [
                {
                    "from_bytes": least,
                    "least": min(shares.values()),
                    "most": max(shares.values()),
                    "points": dict(shares),
                }
                for least, shares in self.bands.items()
            ],
        }


def floor(
    topology: str,
    collective: str | None = None,
    *,
    log: Path | None = None,
    parameters: Mapping[str, str] | None = None,
    limit: Limit | None = None,
    observer: Observer | None = None,
    **run: Any,
) -> Floor:
    """Return the floor of ``collective`` on ``topology``, and how a cluster's ``log`` stands to it.

    ``collective`` is one of nccl-tests, such as ``all_reduce``; a log mostly names it.  Sizes are
    the log's, or else those of the scenario with its ``parameters``.  ``run`` are more fields of
    :class:`~emulator.run.plan.run_plan.RunRequest`, such as ``transport="rocev2:nccl"`` or
    ``fabric="model"``.  The run leaves its folder, with ``floor.json``.  Raises UserError.
    """
    limit = limit or Limit()
    fabric = choose(topology).topology
    ranks = len(fabric.gpus)
    read = None if log is None else log_file.read(log)
    if read is not None:
        which = collective_of(read, collective, fabric)
        scenario = scenario_of(read, which)
        sizes = sizes_of(read, limit, parameters or {})
        given = parameters_of(scenario, sizes, parameters or {})
    else:
        which = _known(collective)
        scenario = scenarios.load(COLLECTIVES[which].scenario)
        sizes, given = _swept(scenario, limit, parameters or {})
    values = scenario.parameters(given)
    if limit.octets is None:
        source = "the floor's run" if read is None else read.source
        check_work(source, sizes, ranks, values.warmups + values.iterations)
    done = run_of(scenario, given, sizes, observer or Unseen(), topology=topology, **run)
    if done.wrong:
        raise UserError(done.wrong)
    timed = done.plan.request.nic != nic_profile.NONE and given.get("library", "none") != "none"
    reached = importlib.import_module(REACHED).by_size(timed)
    factor = COLLECTIVES[which].factor(ranks)
    rows = [row_of(size, done.rows[size.run, size.cut], factor, reached) for size in sizes]
    found = Floor(
        collective=which,
        plan=done.plan,
        result=done.result.as_dict() | {"rows": done.result.rows},
        folder=done.folder.path,
        rows=rows,
        bands={least: reached[least] for least in sorted({row["band_bytes"] for row in rows})},
        log=read,
    )
    done.folder.write("floor.json", found.as_dict())
    return found


def _known(collective: str | None) -> str:
    if collective is None or collective not in COLLECTIVES:
        problem = "no collective is given" if collective is None else f"{collective!r} is none"
        raise UserError(f"{problem}: name one with --collective, of {', '.join(COLLECTIVES)}")
    return collective


def _swept(
    scenario: Scenario, limit: Limit, given: Mapping[str, str]
) -> tuple[list[TestSize], dict[str, str]]:
    """Return the sizes of the scenario with the parameters ``given``, and those to run it with."""
    chosen = {**(choice_of(scenario, ("algorithm",), ("auto",)) or {}), **given}
    sweep = scenario.parameters(chosen).sweep
    sizes = limited(dict.fromkeys(sweep, ()), limit, "the sweep", chosen)
    ranges = ("min_size", "max_size", "factor")
    others = {key: text for key, text in chosen.items() if key not in ranges}
    return sizes, {**others, **sizes_run(sizes)}


def row_of(
    size: TestSize,
    measured: Mapping[str, Any],
    factor: float,
    reached: Mapping[int, Mapping[str, float]],
) -> dict[str, Any]:
    """Return the row of ``size``, from ``measured``, the run's own row.

    ``factor`` is busbw over algbw, ``reached`` what ``by_size()`` of :data:`REACHED` returns.  The
    log's bus bandwidth follows from its time, which has more digits where it is small.
    """
    octets = size.size if size.size != size.run else measured["size_bytes"]
    band = max(least for least in reached if least <= octets)
    shares = reached[band].values()
    busbw = measured["busbw_gbps"]
    row = {
        "size_bytes": octets,
        "run_bytes": measured["size_bytes"],
        "band_bytes": band,
        "time_us": measured["time_us"],
        "busbw_gbps": busbw,
        "floor_share": min(shares),
        "floor_busbw_gbps": busbw * min(shares),
        "best_busbw_gbps": busbw * max(shares),
    }
    if size.rows:
        times, in_place = size.times(bool(measured.get("in_place")))
        own = octets / times.time_us / 1000 * factor
        row |= {
            "where": size.rows[0].where,
            "cluster_placement": "in place" if in_place else "out of place",
            "cluster_time_us": times.time_us,
            "cluster_busbw_gbps": own,
            "against_floor": BELOW if own < row["floor_busbw_gbps"] else REACHES,
        }
    return row


def closing_lines(found: Floor) -> Iterator[str]:
    """Yield the lines below the table: where the floor comes from, and what lies below it."""
    for least, shares in found.bands.items():
        low, high = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
        share = f"{100 * shares[low]:.0f} % (point {low})"
        if low != high:
            share += f" to {100 * shares[high]:.0f} % ({high}), by points {', '.join(shares)},"
        yield from wrapped(
            f"From {format_size(least)}", f"clusters had {share} of what is emulated"
        )
    yield from wrapped("Points", "of AllReduce, in scenarios/hardware/README.md")
    if found.collective != "all_reduce":
        yield from wrapped("Note", f"no published point is of {found.collective}")
    if any(row["run_bytes"] != row["size_bytes"] for row in found.rows):
        yield from wrapped("Cut", "a larger size has the bus bandwidth of the one that was run")
    if found.log is not None:
        below = ", ".join(f"{size} B" for size in found.below)
        sentence = f"{len(found.below)} of {len(found.rows)} sizes: {below}" if below else "no size"
        yield from wrapped("Below the floor", sentence)
