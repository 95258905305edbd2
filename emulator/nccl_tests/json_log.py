"""The JSON that nccl-tests writes with ``-J``, and uetemu as well, read as a log."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from emulator.errors import UserError
from emulator.nccl_tests import cluster_log

MOST_RESULTS = 10_000


def read(source: str, text: str) -> cluster_log.ClusterLog:
    """Return the log; UserError, with the member, if it is not in nccl-tests' form."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{source}, line {error.lineno}: not JSON ({error.msg}); is the file cut off?"
        ) from None
    except (ValueError, RecursionError):
        raise UserError(
            f"{source} is JSON that no test writes: too deep, or with a number too long"
        ) from None
    results = content.get("results") if isinstance(content, dict) else None
    if not isinstance(results, list) or not results:
        raise UserError(f"{source} has no list 'results' with a row in it; give a file of -J")
    if len(results) > MOST_RESULTS:
        raise UserError(f"{source} has {len(results)} results; cut it to {MOST_RESULTS}")
    experiments = {_object(one).get("experiment_name") or "" for one in results if _named(one)}
    if len(experiments) > 1:
        raise UserError(
            f"{source} has the results of {len(experiments)} experiments, such as "
            f"{min(experiments)!r} and {max(experiments)!r}; cut it to one"
        )
    config = _object(content.get("config"))
    hosts, ranks = _ranks(source, config)
    return cluster_log.ClusterLog(
        source=source,
        collective=_collective(content.get("args")),
        ranks=ranks,
        rows=[_row(f"{source}, results[{at}]", one) for at, one in enumerate(results)],
        hosts=hosts,
        iterations=_positive(config.get("iterations")),
        aggregated=_positive(config.get("aggregated_iterations")) or 1,
        failed=_object(content.get("out_of_bounds")).get("okay") == "false",
    )


def _named(result: object) -> bool:
    return isinstance(_object(result).get("experiment_name"), str)


def _collective(arguments: object) -> str | None:
    """Return the collective that the command names: a test, or a scenario of uetemu."""
    words = [one for one in _list(arguments) if isinstance(one, str)]
    for word in words:
        if (test := cluster_log.test_in(PurePath(word).name)) is not None:
            return test
    scenarios = {form.scenario: name for name, form in cluster_log.COLLECTIVES.items()}
    if "run" in words[:-1]:
        return scenarios.get(words[words.index("run") + 1])
    return None


def _ranks(source: str, config: Mapping[str, Any]) -> tuple[Mapping[str, int], int | None]:
    """Return the ranks of each host, and of all.

    nccl-tests lists the first GPU of a process; each has ``nthreads`` times ``ngpus``.
    """
    devices = _list(config.get("devices"))
    if not devices:
        return {}, None
    each = (_positive(config.get("nthreads")) or 1) * (_positive(config.get("ngpus")) or 1)
    hosts: Counter[str] = Counter()
    groups = set()
    for one in devices:
        device = _object(one)
        hosts[str(device.get("hostname"))[:80]] += each
        groups.add(str(device.get("group", 0)))
    if len(groups) > 1:
        raise UserError(
            f"{source} has {len(groups)} groups of ranks beside each other (NCCL_TESTS_SPLIT); "
            "predict takes a test of all ranks in one"
        )
    return hosts, sum(hosts.values())


def _row(where: str, found: object) -> cluster_log.ClusterRow:
    result = _object(found)
    for key in ("type", "redop"):
        if not isinstance(result.get(key), str):
            raise UserError(f"{where} has no text '{key}'; give the file as nccl-tests wrote it")
    root = str(result.get("root", "-1")).strip()
    if not root.removeprefix("-").isdecimal() or len(root) > 9:
        raise UserError(f"{where}.root is {root[:20]!r}; it is a rank or -1")
    placed = {key: _times(f"{where}.{key}", result.get(key)) for key in _PLACES}
    if not any(placed.values()):
        raise UserError(f"{where} has neither out_of_place nor in_place; take it out")
    return cluster_log.ClusterRow(
        where=where,
        size=_whole(f"{where}.size", result.get("size")),
        count=_whole(f"{where}.count", result.get("count")),
        type=result["type"][:40],
        redop=result["redop"][:40],
        root=int(root),
        **placed,
    )


_PLACES = ("out_of_place", "in_place")


def _times(where: str, found: object) -> cluster_log.ClusterTimes | None:
    if found is None:
        return None
    times = _object(found)
    if "cpu_time" in times:
        raise UserError(
            f"{where}: these are CPU times (-C 1), which end before the operation does; "
            "run the test without -C"
        )
    wrong = times.get("nwrong")
    return cluster_log.ClusterTimes(
        *(_number(f"{where}.{key}", times.get(key)) for key in ("time", "alg_bw", "bus_bw")),
        wrong=None if wrong is None else int(_number(f"{where}.nwrong", wrong)),
    )


def _number(where: str, value: object) -> float:
    usual = isinstance(value, int | float) and not isinstance(value, bool)
    if not usual or not math.isfinite(found := _float(value)):
        raise UserError(f"{where} is {str(value)[:40]!r}; it should be a number")
    return found


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _whole(where: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"{where} is {str(value)[:40]!r}; it should be a whole number")
    return value


def _positive(value: object) -> int | None:
    usual = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
    return value if usual else None  # type: ignore[return-value]


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
