"""A file with the output of a test: the table or ``-J`` of nccl-tests, or ``-Z`` of rccl-tests.

With ``-x FILE -Z json|csv`` rccl-tests writes a record for each size and placement.  JSON is an
object a line, or a list of them since July 2025; CSV has the same names as its heading.  A test
without MPI has ``gpus``, one with MPI ``nodes``, ``ranks`` and ``gpusPerRank``.  Records have no
count, which follows from the size, and no root.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path, PurePath
from typing import Any

from emulator import packed_file
from emulator.errors import UserError
from emulator.nccl_tests import text_log
from emulator.nccl_tests.cluster_log import (
    COLLECTIVES,
    ELEMENT_BYTES,
    ClusterLog,
    ClusterRow,
    ClusterTimes,
    test_in,
)

#: Octets that a log has at most: with NCCL's own messages it has a few million.
LARGEST_LOG_BYTES = 64 * 2**20
#: Octets of JSON or CSV: every value takes many times as much memory.
LARGEST_JSON_BYTES = 16 * 2**20
MOST_RESULTS = 10_000
MOST_RECORDS = 20_000
#: The collectives by rccl-tests' names, such as ``allreduce`` of ``AllReduce``.
_NAMES = {name.replace("_", ""): name for name in COLLECTIVES}


def read_json(source: str, text: str) -> ClusterLog:
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
    return ClusterLog(
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
        if (test := test_in(PurePath(word).name)) is not None:
            return test
    scenarios = {form.scenario: name for name, form in COLLECTIVES.items()}
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


def _row(where: str, found: object) -> ClusterRow:
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
    return ClusterRow(
        where=where,
        size=_whole(f"{where}.size", result.get("size")),
        count=_whole(f"{where}.count", result.get("count")),
        type=result["type"][:40],
        redop=result["redop"][:40],
        root=int(root),
        **placed,
    )


_PLACES = ("out_of_place", "in_place")


def _times(where: str, found: object) -> ClusterTimes | None:
    if found is None:
        return None
    times = _object(found)
    if "cpu_time" in times:
        raise UserError(
            f"{where}: these are CPU times (-C 1), which end before the operation does; "
            "run the test without -C"
        )
    wrong = times.get("nwrong")
    return ClusterTimes(
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


def recognises(text: str) -> bool:
    return "algBw" in text[:1000]


def read_rccl(source: str, text: str) -> ClusterLog:
    """Return the log; UserError, with the record, if it is not in rccl-tests' form."""
    rows: list[ClusterRow] = []
    tests: dict[tuple[str, int, int], None] = {}
    for number, record in enumerate(_records(source, text), 1):
        where = f"{source}, record {number}"
        if number > MOST_RECORDS:
            raise UserError(f"{where}: more than {MOST_RECORDS} records; cut the file to one test")
        hosts, ranks = _ranks_of(where, record)
        name = str(record.get("name", ""))[:40].lower()
        tests[_NAMES.get(name, name), hosts, ranks] = None
        if len(tests) > 1:
            raise UserError(
                f"{where}: another test, or one over other ranks, begins; cut the file to one test"
            )
        _add(rows, where, record, _NAMES.get(name, name), ranks)
    if not rows:
        raise UserError(f"{source} has no record of rccl-tests; give what -x FILE wrote")
    ((collective, hosts, ranks),) = tests
    return ClusterLog(
        source=source,
        collective=collective,
        ranks=ranks,
        rows=rows,
        hosts={f"node {node}": ranks // hosts for node in range(hosts)} if hosts else {},
    )


def _records(source: str, text: str) -> Iterator[Mapping[str, Any]]:
    if text.lstrip()[:1] not in ("{", "["):
        lines = csv.DictReader(text.splitlines(), skipinitialspace=True)
        try:
            yield from lines
        except csv.Error as error:
            raise UserError(f"{source}, line {lines.line_num}: not CSV ({error})") from None
        return
    lines_of = [text] if text.lstrip().startswith("[") else text.splitlines()
    for number, line in enumerate(lines_of, 1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError(f"{source}, line {number}: not JSON; is the file cut off?") from None
        for record in content if isinstance(content, list) else [content]:
            if not isinstance(record, dict):
                raise UserError(f"{source}, line {number}: a record is no object of JSON")
            yield record


def _ranks_of(where: str, record: Mapping[str, Any]) -> tuple[int, int]:
    """Return the hosts, 0 where the record does not say them, and the ranks."""
    if record.get("gpus") is not None:
        return 0, _whole_of(where, record, "gpus")
    hosts = _whole_of(where, record, "nodes")
    ranks = _whole_of(where, record, "ranks") * _whole_of(where, record, "gpusPerRank")
    if not ranks or (hosts and ranks % hosts):
        raise UserError(f"{where}: {ranks} ranks on {hosts} nodes; give the file as it was written")
    return hosts, ranks


def _add(
    rows: list[ClusterRow], where: str, record: Mapping[str, Any], collective: str, ranks: int
) -> None:
    """Add a row of ``record``, or its times to the row before, of which it is the other half."""
    kind = str(record.get("type", ""))[:40]
    form = COLLECTIVES.get(collective)
    part = ELEMENT_BYTES.get(kind, 1) * (ranks if form is not None and form.parted else 1)
    size = _whole_of(where, record, "size")
    wrong = str(record.get("#wrong", "")).strip()
    times = ClusterTimes(
        *(_number_of(where, record, name) for name in ("time", "algBw", "busBw")),
        wrong=int(wrong) if wrong.isdecimal() and len(wrong) < 19 else None,
    )
    key = "in_place" if _whole_of(where, record, "inPlace") else "out_of_place"
    row = ClusterRow(
        where=where,
        size=size,
        count=size // part,
        type=kind,
        redop=str(record.get("redop", "none"))[:40] or "none",
        **{key: times},  # type: ignore[arg-type]
    )
    before = rows[-1] if rows else None
    alike = before is not None and (before.size, before.type, before.redop) == (
        row.size, row.type, row.redop,
    )  # fmt: skip
    if before is not None and alike and key == "in_place" and before.in_place is None:
        rows[-1] = replace(before, in_place=times)
    else:
        rows.append(row)


def _number_of(where: str, record: Mapping[str, Any], name: str) -> float:
    value = record.get(name)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: {name} is {str(value)[:40]!r}; it should be a number")
    return number


def _whole_of(where: str, record: Mapping[str, Any], name: str) -> int:
    number = _number_of(where, record, name)
    if number != int(number) or number < 0:
        raise UserError(f"{where}: {name} is {number}; it should be a whole number")
    return int(number)


def read(path: Path) -> ClusterLog:
    """Return the log at ``path``; UserError, one sentence, if it cannot be read."""
    octets = packed_file.content(path, most=LARGEST_LOG_BYTES)
    try:
        text = packed_file.text_of(octets)
    except UnicodeDecodeError:
        text = octets.decode("utf-8-sig", "replace")  # what a program printed in between
    if recognises(text):
        reader = read_rccl
    elif text.lstrip()[:1] == "{":
        reader = read_json
    else:
        return text_log.read(str(path), StringIO(text))
    if len(octets) > LARGEST_JSON_BYTES:
        raise UserError(
            f"{path} has more than {LARGEST_JSON_BYTES // 2**20} MiB of results; cut it to one "
            "test, or give what the test printed"
        )
    return reader(str(path), text)
