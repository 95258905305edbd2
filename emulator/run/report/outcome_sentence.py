"""One plain sentence below a table: how fast it was, how near to the ideal, and what was lost.

It states numbers of the rows and their order, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from emulator.result_rows import TableColumn
from emulator.run.report.result_table import ResultTable

Row = Mapping[str, object]

#: What packets suffer, and the word for it.
LOSSES = (
    ("dropped_packets", "dropped"),
    ("trimmed_packets", "trimmed"),
    ("retransmitted_packets", "sent again"),
)


def sentence(rows: Sequence[Row], table: ResultTable, every: Sequence[Row]) -> str:
    """Return the sentence on ``rows`` of ``table``.

    ``every`` has the rows of all seeds; what was lost is counted in them.
    """
    parts = [_times(rows, table.labels), _subject(rows, table.columns), _losses(every)]
    return "; ".join(part for part in parts if part) + "."


def _times(rows: Sequence[Row], labels: Sequence[TableColumn]) -> str:
    parting = _parting(rows, labels)
    sizes = {_number(row, "size_bytes") for row in rows}
    alone = [one.key for one in parting] == ["size_bytes"]
    size = ""
    if len(sizes) > 1 and (alone or rows[0].get("busbw_gbps") is not None):
        rows = [row for row in rows if _number(row, "size_bytes") == max(sizes)]
        parting = _parting(rows, labels)
        size = f"the largest size, {max(sizes):.0f} B, "
    times = [_number(row, "time_us") for row in rows]
    if min(times) == max(times):
        return _begun(f"{size or ('it ' if len(rows) == 1 else 'each row ')}took {_taken(rows[0])}")
    if len({(row.get("size_bytes"), row.get("total_bytes")) for row in rows}) == 1:
        ordered = sorted(rows, key=lambda row: _number(row, "time_us"))
        best, worst = "fastest", "slowest"
    else:
        ordered = sorted(rows, key=lambda row: -_number(row, "efficiency"))
        best, worst = "nearest to its ideal", "farthest"
    first, last = (f"{_label(row, parting)}{_taken(row)}" for row in (ordered[0], ordered[-1]))
    return _begun(f"{f'of {size}' if size else ''}{best} was {first}, {worst} {last}")


def _begun(words: str) -> str:
    return words[0].upper() + words[1:]


def _parting(rows: Sequence[Row], labels: Sequence[TableColumn]) -> list[TableColumn]:
    """Return the first of ``labels`` that tell as many rows apart as all of them do."""
    parting: list[TableColumn] = []
    kinds = 1
    for column in labels:
        more = len({tuple(one.cell(row) for one in (*parting, column)) for row in rows})
        if more > kinds:
            parting, kinds = [*parting, column], more
    return parting


def _label(row: Row, parting: Sequence[TableColumn]) -> str:
    words = [f"{one.heading.strip('-')}={one.cell(row).strip()}" for one in parting]
    return f"{', '.join(words)} with " if words else ""


def _taken(row: Row) -> str:
    words = [f"{_number(row, 'time_us'):.2f} us"]
    if row.get("efficiency") is not None:
        words.append(f"{100 * _number(row, 'efficiency'):.1f} % of ideal")
    if row.get("busbw_gbps") is not None:
        words.append(f"bus bandwidth {_number(row, 'busbw_gbps'):.2f} GB/s")
    return f"{words[0]} ({', '.join(words[1:])})" if words[1:] else words[0]


def _subject(rows: Sequence[Row], columns: Sequence[TableColumn]) -> str:
    """Return the words of the first column that has some, and a value."""
    for column in columns:
        found = [row for row in rows if row.get(column.key) is not None]
        if column.words and found:
            found.sort(key=lambda row: _number(row, column.key))
            least, most = (column.cell(row).strip() for row in (found[0], found[-1]))
            return column.words.format(least if least == most else f"{least} to {most}", most=most)
    return ""


def _losses(rows: Sequence[Row]) -> str:
    counted = {
        word: _summed(rows, key)
        for key, word in LOSSES
        if any(row.get(key) is not None for row in rows)
    }
    happened = [f"{number} {word}" for word, number in counted.items() if number]
    if happened:
        number, word = happened[0].split(" ", 1)
        happened[0] = f"{number} {'packet was' if number == '1' else 'packets were'} {word}"
    spared = [word for word, number in counted.items() if not number]
    if not counted:
        return ""
    if not happened:
        return f"no packet was {_joined(spared, 'or')}"
    none = f", none {_joined(spared, 'or')}" if spared else ""
    timers = _summed(rows, "timeouts")
    expired = f", {timers} retransmission timer{'s' * (timers > 1)} expired" if timers else ""
    return f"{_joined(happened, 'and')}{none}{expired}"


def _joined(words: Sequence[str], last: str) -> str:
    return f" {last} ".join([*([", ".join(words[:-1])] if words[1:] else []), words[-1]])


def _summed(rows: Iterable[Row], key: str) -> int:
    return round(sum(_number(row, key) for row in rows if row.get(key) is not None))


def _number(row: Row, key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
