"""The rows of a run in the JSON that nccl-tests writes with ``-J``, form 3.

The source of the form is ``src/util.cu`` of nccl-tests 2.19.  A key of that form that an emulated
fabric has no value for is not written: ``env``, ``nccl_version``, and in ``config`` ``nthreads``,
``ngpus``, ``graph``, ``blocking_collectives`` and ``parallel_init``, in ``devices`` ``pid`` and
``device_hex``.  Truths are the texts ``true`` and ``false`` there, and ``root`` is a text six
characters wide. Bandwidths are GB/s, and times are microseconds (here of fabric time).  A result
without times out of place has a null there; one without times in place has no such key, since
nccl-tests never writes a null for these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from topologies.model import Topology

#: The number of nccl-tests' form of the file.
FORM = 3
#: The file in the run folder.
REPORT_FILE = "nccl-tests.json"

_TIME = "%Y-%m-%d %H:%M:%S"
_COLUMNS = ("count", "type", "redop", "root", "algbw_gbps", "busbw_gbps")


class NcclReport:
    """The file while a run goes on: a result for each row of a collective.

    ``arguments`` are those of the command, and ``warmups`` the iterations before those that count.
    """

    def __init__(self, topology: Topology, arguments: Sequence[str], warmups: int | None) -> None:
        self._topology, self._arguments, self._warmups = topology, list(arguments), warmups
        self._began = datetime.now()
        self._results: list[dict[str, object]] = []
        self._by_all = True

    def add(self, row: Mapping[str, object], times_ns: Sequence[int], name: str = "") -> None:
        """Add a row of ``result.json`` and the times of its iterations.

        A row without the columns of nccl-tests is left out.  A row in place joins the one out of
        place before it, if that is the same test.  ``name`` describes what it ran with.
        """
        if not self.takes(row):
            return
        self._by_all &= row.get("members", len(self._topology.gpus)) == len(self._topology.gpus)
        result: dict[str, object] = {
            "size": row["size_bytes"],
            "count": row["count"],
            "type": row["type"],
            "redop": row["redop"],
            "root": f"{row['root']:6}",
            "out_of_place": None,
            "actual_iterations": len(times_ns),
            "experiment_name": name,
        }
        placed = "in_place" if row.get("in_place") else "out_of_place"
        if self._results and _waits_for_place(self._results[-1], result, placed):
            result = self._results[-1]
        else:
            self._results.append(result)
        result[placed] = {
            "time": row["time_us"],
            "alg_bw": row["algbw_gbps"],
            "bus_bw": row["busbw_gbps"],
            "nwrong": None if row["wrong"] is None else float(str(row["wrong"])),
        }
        result[f"{placed}_per_iter"] = spread_of([one / 1000 for one in times_ns])

    @staticmethod
    def takes(row: Mapping[str, object]) -> bool:
        return all(row.get(column) is not None for column in _COLUMNS)

    def content(self, errors: Sequence[str]) -> dict[str, object] | None:
        """Return the whole file, or None if no row is in the form of nccl-tests."""
        if not self._results:
            return None
        measured = self._measured()
        failed = sum(bool(one["nwrong"]) for one in measured)
        rates = [float(str(one["bus_bw"])) for one in measured]
        return {
            "version": FORM,
            "start_time": self._began.strftime(_TIME),
            "args": self._arguments,
            "config": self._config(),
            "results": self._results,
            "out_of_bounds": {"count": failed, "okay": _text(not failed)},
            "average_bus_bandwidth": {"bandwidth": sum(rates) / len(rates), "okay": "unchecked"},
            "errors": list(errors),
            "end_time": datetime.now().strftime(_TIME),
        }

    def _measured(self) -> list[Mapping[str, object]]:
        """Return the times of all results, out of place and in place."""
        found = [one.get(place) for one in self._results for place in ("out_of_place", "in_place")]
        return [one for one in found if isinstance(one, Mapping)]

    def _config(self) -> dict[str, object]:
        sizes = list(dict.fromkeys(int(str(result["size"])) for result in self._results))
        counts = [int(str(result["actual_iterations"])) for result in self._results]
        return {
            "minimum_bytes": min(sizes),
            "maximum_bytes": max(sizes),
            **_step(sizes),
            **({} if self._warmups is None else {"warmup_iters": self._warmups}),
            "iterations": max(counts),
            "aggregated_iterations": 1,
            "validation": int(all(one["nwrong"] is not None for one in self._measured())),
            "per_iter_timing": _text(True),
            "per_iter_skip": 0,
            **({"devices": self._devices()} if self._by_all else {}),
        }

    def _devices(self) -> list[dict[str, object]]:
        places = {
            gpu: (server.name, number)
            for server in self._topology.servers
            for number, gpu in enumerate(server.gpus)
        }
        devices: list[dict[str, object]] = []
        for rank, gpu in enumerate(self._topology.gpus):
            host, number = places[gpu.name]
            devices.append(
                {
                    "rank": rank,
                    "group": 0,
                    "hostname": host,
                    "device": number,
                    "device_info": gpu.name,
                }
            )
        return devices


def spread_of(times_us: Sequence[float]) -> dict[str, object]:
    """Return nccl-tests' statistics of the iterations of one size.

    A percentile is the value at its rank, rounded up, and the deviation that of all iterations.
    """
    ordered = sorted(times_us)
    number = len(ordered)
    mean = sum(ordered) / number
    deviation = math.sqrt(sum((one - mean) ** 2 for one in ordered) / number)

    def percentile(share: int) -> float:
        return ordered[min(number - 1, (number * share + 99) // 100 - 1)]

    return {
        "skipped_iterations": 0,
        "min_us": ordered[0],
        "max_us": ordered[-1],
        "avg_us": mean,
        "p50_us": ordered[number // 2],
        "p95_us": percentile(95),
        "p99_us": percentile(99),
        "stdev_us": deviation,
        "cv_pct": 100 * deviation / mean if mean else 0.0,
        "times_us": list(times_us),
    }


def _step(sizes: Sequence[int]) -> dict[str, object]:
    """Return the factor or the difference between sizes, if it is one and the same."""
    factors = {after / before for before, after in pairwise(sizes)}
    steps = {after - before for before, after in pairwise(sizes)}
    if len(factors) == 1 and (factor := factors.pop()) > 1 and factor.is_integer():
        return {"step_factor": int(factor)}
    if len(steps) == 1 and (step := steps.pop()) > 0:
        return {"step_bytes": step}
    return {}


def _waits_for_place(last: Mapping[str, object], result: Mapping[str, object], placed: str) -> bool:
    same = ("size", "count", "type", "redop", "root", "actual_iterations", "experiment_name")
    return last.get(placed) is None and all(last[key] == result[key] for key in same)


def _text(truth: bool) -> str:
    return "true" if truth else "false"
