"""What is compared: run folders, suites, logs of nccl-tests, records of the NCCL Inspector.

Places are what was measured: a pattern, its size, and which of several alike it is.  Each place has
samples of values: of seeds, of iterations, or of a log's rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulator import scenario as scenarios
from emulator.errors import UserError
from emulator.metrics import CLUSTER, ENDPOINT, METRICS, Metric, readable
from emulator.nccl_tests import log_file
from emulator.nccl_tests.cluster_log import ClusterLog, ClusterTimes
from emulator.report.run_folder import RunRecord, labels
from emulator.report.suite.folder import ReportedTest, SuiteFolder
from emulator.report.waiting_cost import WaitingPrices, with_cost
from emulator.run_files import RESULT
from emulator.suite.suite_model import SAMPLES, Point, SuiteTable

#: A place: the pattern's name, its size in octets, and its number among those alike, from 0.
Place = tuple[str, int, int]
SEEDS, ITERATIONS, LOG_ROWS, RECORDS = "seeds", "iterations", "rows of the log", "records"


@dataclass(frozen=True)
class Samples:
    """The measurements of one value; ``of`` names what its several values are."""

    values: Sequence[float]
    of: str | None = None

    @property
    def spread(self) -> bool:
        """Whether several were taken that can lie apart.

        Iterations of one seed that are alike repeat one measurement: a virtual clock's do.
        """
        alike = len(set(self.values)) == 1
        return len(self.values) > 1 and not (self.of == ITERATIONS and alike)


@dataclass(frozen=True)
class MeasuredPlace:
    """The values of one place by their keys in ``result.json``; ``label`` names it for people."""

    label: str
    samples: Mapping[str, Samples]
    digests: tuple[str, ...] | None = None
    #: keys whose observation point is not the usual one
    points: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MeasuredSource:
    """A source of measurements.

    ``kind`` is its kind, ``asked`` are the inputs that a user chose, ``made_on`` is where it was
    made.

    ``digest`` is that of all frames of a run, None where there is none.  ``point`` is where all
    values of a cluster's log were observed; None leaves it to each value.
    """

    name: str
    kind: str
    asked: Mapping[str, str]
    places: Mapping[Place, MeasuredPlace]
    made_on: Mapping[str, str] = field(default_factory=dict)
    digest: str | None = None
    point: str | None = None
    #: those that its values may be of, by key
    metrics: Mapping[str, Metric[Any]] = field(default_factory=lambda: METRICS)
    errors: Sequence[str] = ()
    verdict: str | None = None


def pattern(name: str) -> str:
    """Return a pattern's name for matching: ``AllReduce`` and ``all_reduce`` are one."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


RUN, NCCL_TESTS, INSPECTOR = "run", "nccl-tests log", "NCCL Inspector file"
#: Inputs that ``result.json`` has by these keys.
_TOLD = ("scenario", "topology", "ranks", "transport", "switch", "seed", "seeds", "homing")
#: Options of ``uetemu run`` that ``result.json`` does not have; some never change a packet.
_OPTIONS = (
    *("--control-plane", "--convergence", "--endpoints", "--gap", "--pxn", "--nic", "--gpu-direct"),
    *("--capture", "--snaplen", "--event-log", "--workers"),
)
#: The former word for a value of an option.
_FORMER = {("--endpoints", "kept"): "reused"}
#: Ends of names of the Inspector's files.
_INSPECTOR_ENDS = (".jsonl", ".log", ".json")
#: Octets of a file that decide what it is.
_HEAD = 4096


def measured(metrics: Iterable[Metric[Any]]) -> list[str]:
    """Return the keys of those that are numbers which were measured or computed."""
    return [one.key for one in readable(metrics) if one.numeric]


def read_source(
    path: Path, collective: str | None = None, prices: WaitingPrices | None = None
) -> MeasuredSource:
    """Read ``path``; UserError if it is none of what can be compared.

    ``collective`` is that of a log which does not name its test.  With ``prices`` a run has what
    waiting GPUs cost.
    """
    prices = prices or WaitingPrices()
    if path.is_dir():
        return _run(path, prices)
    if prices.given and path.exists() and path.name != RESULT:
        raise UserError(f"{path} does not say who waits: prices are for run folders")
    if not path.exists():
        raise UserError(f"there is no {path}; name run folders, or files of a cluster's tests")
    if path.name == RESULT:
        return _run(path.parent, prices)
    if path.name.endswith(_INSPECTOR_ENDS) and _is_inspector(path):
        return _inspector(path)
    return _nccl_tests(log_file.read(path), path, collective)


def _is_inspector(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return b"inspector_output_format_version" in stream.read(_HEAD)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; name another file") from None


def _run(path: Path, prices: WaitingPrices) -> MeasuredSource:
    record = with_cost(RunRecord.read(path), prices)
    result, environment = record.result, record.environment
    asked = {name: str(result.get(name)) for name in _TOLD}
    switches = dict.fromkeys(str(row.get("switch")) for row in record.rows)
    asked["switch"] = "; ".join(switches) or asked["switch"]  # a transport may have its own
    clock = f"host, dilation {result.get('dilation')}" if record.by_host_clock else "virtual"
    faults = dict.fromkeys(
        str(fault.get("said")) for row in record.rows for fault in row.get("faults") or ()
    )
    asked |= {"clock": clock, "faults": "; ".join(faults) or "none"}
    asked |= _options(record.command)
    asked |= {f"plug-in {name}": f"SHA-256 {value}" for name, value in record.plugins.items()}
    asked |= {f"parameter {name}": str(value) for name, value in record.parameters.items()}
    made_on = {
        name: str(environment.get(name))
        for name in ("kernel", "python", "packages", "processor", "processors")
        if name in environment
    }
    return MeasuredSource(
        name=str(path),
        kind=RUN,
        asked=asked,
        made_on=made_on,
        places=_places(record),
        digest=result.get("digest") if isinstance(result.get("digest"), str) else None,
        errors=record.errors,
        metrics=record.metrics,
        verdict=record.verdict,
    )


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return options of ``uetemu run`` that ``result.json`` does not have, from the run's command.

    An option that was given several times has its last value, as for the run.
    """
    found = dict.fromkeys(_OPTIONS, "default")
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in found:
            value = value if equals else "".join(words[place + 1 : place + 2])
            found[name] = _FORMER.get((name, value), value)
    return found


def _places(record: RunRecord) -> dict[Place, MeasuredPlace]:
    """Return the rows of a run by place; rows of several seeds become samples of one place."""
    seen: Counter[tuple[object, str, int]] = Counter()
    gathered: dict[Place, list[int]] = {}
    for number, row in enumerate(record.rows, 1):
        name, size = pattern(str(row.get("collective"))), row.get("size_bytes")
        octets = size if isinstance(size, int) else 0
        of_seed = (row.get("seed"), name, octets)
        gathered.setdefault((name, octets, seen[of_seed]), []).append(number)
        seen[of_seed] += 1
    names = _names(record)
    return {
        place: _place(record, numbers, names[numbers[0] - 1]) for place, numbers in gathered.items()
    }


def _names(record: RunRecord) -> list[str]:
    """Names of rows without number and seed; without the transport where there is only one."""
    named = labels([{**row, "seed": 0} for row in record.rows], record.metrics)
    names = [name.partition(": ")[2] for name in named]
    if len({str(row.get("transport")) for row in record.rows}) > 1:
        return names
    return [name.partition(", ")[2] for name in names]


def _place(record: RunRecord, numbers: Sequence[int], label: str) -> MeasuredPlace:
    rows = [record.rows[number - 1] for number in numbers]
    samples: dict[str, Samples] = {}
    for key in measured(record.metrics.values()):
        values = [row.get(key) for row in rows]
        numeric = [float(one) for one in values if isinstance(one, int | float)]
        if len(numeric) == len(values):
            samples[key] = Samples(numeric, SEEDS if len(numeric) > 1 else None)
    if len(rows) == 1:
        samples |= _iterations(record.times_us(numbers[0]), rows[0], samples)
    digests = [row.get("digest") for row in rows]
    return MeasuredPlace(
        label=label,
        samples=samples,
        digests=tuple(map(str, digests)) if all(digests) else None,
        points={key: record.metrics[key].at(rows[0]).observed_at for key in samples},
    )


def _iterations(
    times: Sequence[float], row: Mapping[str, Any], samples: Mapping[str, Samples]
) -> dict[str, Samples]:
    """Values of each iteration that follow from its time."""
    mean = row.get("time_us")
    if len(times) < 2 or not isinstance(mean, int | float) or not all(times):
        return {}
    found = {"time_us": Samples(list(times), ITERATIONS)}
    for key in ("algbw_gbps", "busbw_gbps", "efficiency"):
        if key in samples:
            value = samples[key].values[0]
            found[key] = Samples([value * (mean / time_us) for time_us in times], ITERATIONS)
    return found


def _nccl_tests(log: ClusterLog, path: Path, collective: str | None) -> MeasuredSource:
    name = log.named(log.collective or collective)
    by_place: dict[Place, list[ClusterTimes]] = {}
    for row in log.rows:
        place = (pattern(name), row.size, 0)
        times = row.out_of_place or row.in_place
        if times is not None:
            by_place.setdefault(place, []).append(times)
    return MeasuredSource(
        name=str(path),
        kind=NCCL_TESTS,
        asked={"test": name, "ranks": str(log.ranks), "version": str(log.version)},
        places={
            place: MeasuredPlace(
                label=f"{name} {place[1]} B",
                samples=_cluster_samples(
                    [(one.time_us, one.algbw_gbps, one.busbw_gbps) for one in times], LOG_ROWS
                ),
            )
            for place, times in by_place.items()
        },
        point=CLUSTER,
    )


def _cluster_samples(rows: Sequence[tuple[float, float, float]], of: str) -> dict[str, Samples]:
    keys = ("time_us", "algbw_gbps", "busbw_gbps")
    return {
        key: Samples([row[index] for row in rows], of if len(rows) > 1 else None)
        for index, key in enumerate(keys)
    }


def _inspector(path: Path) -> MeasuredSource:
    """Return the records of a file, read by the scenario that replays them."""
    trace = scenarios.load("trace")
    recorded = trace.module.recorded_collectives([str(path)])
    by_place: dict[Place, list[tuple[float, float, float]]] = {}
    names: dict[Place, str] = {}
    members = set()
    for one in recorded:
        place = (pattern(one["collective"]), one["size_bytes"], 0)
        names[place] = f"{one['collective']} {one['size_bytes']} B"
        members.add(one["members"])
        by_place.setdefault(place, []).append(
            (one["time_us"], one["algbw_gbps"], one["busbw_gbps"])
        )
    if not by_place:
        raise UserError(f"{path} has no collective with a time; name another file")
    return MeasuredSource(
        name=str(path),
        kind=INSPECTOR,
        asked={"ranks": ", ".join(map(str, sorted(members)))},
        places={
            place: MeasuredPlace(names[place], _cluster_samples(rows, RECORDS))
            for place, rows in by_place.items()
        },
        point=CLUSTER,
    )


def point_of(source: MeasuredSource, place: MeasuredPlace, key: str) -> str:
    """Where a value was observed."""
    if source.point is not None:
        return source.point
    known = source.metrics.get(key)
    return place.points.get(key) or (known.observed_at if known else "") or ENDPOINT


SUITE = "suite"
_ASKED = ("document", "scale", "transports", "fabric", "seed", "seeds")
_MADE_ON = ("kernel", "python", "packages", "processor", "processors")


def read_suite(path: Path) -> MeasuredSource:
    """Read a suite folder; UserError unless it has a ``suite.json`` of this schema."""
    suite = SuiteFolder.read(path)
    machine = suite.data.get("machine")
    known = machine if isinstance(machine, dict) else {}
    return MeasuredSource(
        name=str(path),
        kind=SUITE,
        asked={
            "suite": suite.words("suite"),
            **{name: suite.words(name) for name in _ASKED},
            "tests": ", ".join(test.number for test in suite.tests),
        },
        made_on={name: str(known[name]) for name in _MADE_ON if name in known},
        places=dict(_suite_places(suite)),
        digest=_digest(suite),
        errors=[f"test {one.number}: {one.error}" for one in suite.tests if one.error],
    )


def _digest(suite: SuiteFolder) -> str | None:
    """Return one digest of all trials; None where a trial has none."""
    digests = {one.key: one.digest for test in suite.tests for one in test.trials}
    if not digests or None in digests.values():
        return None
    lines = "".join(f"{key} {digest}\n" for key, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _suite_places(suite: SuiteFolder) -> Mapping[Place, MeasuredPlace]:
    found: dict[Place, MeasuredPlace] = {}
    for test in suite.tests:
        for table in test.tables:
            seen: Counter[str] = Counter()
            for row in table.rows:
                label = _label(test, table, row)
                found[label, 0, seen[label]] = _suite_place(label, table, row)
                seen[label] += 1
    return found


def _label(test: ReportedTest, table: SuiteTable, row: Mapping[str, Any]) -> str:
    """Return a row's name: its test, its table, and what was set."""
    settings = [
        f"{one.heading} {row[one.key]}"
        for one in table.columns
        if one.point is Point.INPUT and row.get(one.key) is not None
    ]
    title = table.title if len(test.tables) > 1 else test.title
    return f"{test.number} {title}: {', '.join(settings)}"


def _suite_place(label: str, table: SuiteTable, row: Mapping[str, Any]) -> MeasuredPlace:
    samples: dict[str, Samples] = {}
    points: dict[str, str] = {}
    for column in table.columns:
        value = row.get(column.key)
        if column.point is Point.INPUT or not isinstance(value, int | float):
            continue
        several = [float(one) for one in row.get(SAMPLES, {}).get(column.key, ())]
        samples[column.key] = Samples(several or [float(value)], SEEDS if several else None)
        points[column.key] = column.point.value
    return MeasuredPlace(label=label, samples=samples, points=points)
