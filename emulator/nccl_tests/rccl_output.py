"""What rccl-tests writes with ``-x FILE -Z json|csv``: a record for each size and placement.

JSON is an object a line, or a list of them since July 2025; CSV has the same names as its heading.
A test without MPI has ``gpus``, one with MPI ``nodes``, ``ranks`` and ``gpusPerRank``.  Records
have no count, which follows from the size, and no root.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from emulator.errors import UserError
from emulator.nccl_tests.cluster_log import (
    COLLECTIVES,
    ELEMENT_BYTES,
    ClusterLog,
    ClusterRow,
    ClusterTimes,
)

MOST_RECORDS = 20_000
#: The collectives by rccl-tests' names, such as ``allreduce`` of ``AllReduce``.
_NAMES = {name.replace("_", ""): name for name in COLLECTIVES}


def recognises(text: str) -> bool:
    return "algBw" in text[:1000]


def read(source: str, text: str) -> ClusterLog:
    """Return the log; UserError, with the record, if it is not in rccl-tests' form."""
    rows: list[ClusterRow] = []
    tests: dict[tuple[str, int, int], None] = {}
    for number, record in enumerate(_records(source, text), 1):
        where = f"{source}, record {number}"
        if number > MOST_RECORDS:
            raise UserError(f"{where}: more than {MOST_RECORDS} records; cut the file to one test")
        hosts, ranks = _ranks(where, record)
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


def _ranks(where: str, record: Mapping[str, Any]) -> tuple[int, int]:
    """Return the hosts, 0 where the record does not say them, and the ranks."""
    if record.get("gpus") is not None:
        return 0, _whole(where, record, "gpus")
    hosts = _whole(where, record, "nodes")
    ranks = _whole(where, record, "ranks") * _whole(where, record, "gpusPerRank")
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
    size = _whole(where, record, "size")
    wrong = str(record.get("#wrong", "")).strip()
    times = ClusterTimes(
        *(_number(where, record, name) for name in ("time", "algBw", "busBw")),
        wrong=int(wrong) if wrong.isdecimal() and len(wrong) < 19 else None,
    )
    key = "in_place" if _whole(where, record, "inPlace") else "out_of_place"
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


def _number(where: str, record: Mapping[str, Any], name: str) -> float:
    value = record.get(name)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: {name} is {str(value)[:40]!r}; it should be a number")
    return number


def _whole(where: str, record: Mapping[str, Any], name: str) -> int:
    number = _number(where, record, name)
    if number != int(number) or number < 0:
        raise UserError(f"{where}: {name} is {number}; it should be a whole number")
    return int(number)
