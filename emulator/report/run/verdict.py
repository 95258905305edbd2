"""The verdict of a run: what a reader needs before the first number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.report.run_folder import RunRecord, labels
from emulator.result_rows import summary

GOOD, LIMITED, BAD = "good", "limited", "bad"
#: Characters of one fact of an unfinished trial.
MOST_SHOWN = 300


@dataclass(frozen=True)
class Verdict:
    """The verdict of a run.

    ``kind`` is one of GOOD, LIMITED, BAD; ``word`` and ``sentence`` express it.
    """

    kind: str
    word: str
    sentence: str
    lines: Sequence[str] = ()


def verdict_of(record: RunRecord) -> Verdict:
    """Judge the run by its errors, its wrong elements and its fidelity, in this order."""
    rows, errors = record.rows, record.errors
    wrong = sum(row["wrong"] for row in rows if isinstance(row.get("wrong"), int))
    lines = _headlines(record)
    unfinished = record.result.get("unfinished")
    if isinstance(unfinished, Mapping):
        lines.append(
            "The trial that failed: "
            + "; ".join(f"{name} {_short(value)}" for name, value in unfinished.items())
        )
    if errors:
        lines += errors[1:]
        word = "Failed" if rows else "Failed before the first row"
        return Verdict(BAD, word, errors[0], lines)
    if not rows:
        return Verdict(BAD, "Nothing measured", "The run ended without a row and without an error.")
    if wrong:
        sentence = f"{wrong} elements are not what numpy computes; see the column #wrong."
        return Verdict(BAD, "Wrong data", sentence, lines)
    told = record.fidelity.get("reasons")
    reasons = "; ".join(map(str, told)) if isinstance(told, list) else ""
    word = record.verdict
    if word == "exact":
        account = record.account
        modelled = record.result.get("fabric") == "model"
        nodes = "the nodes of a model, which no kernel ran" if modelled else "namespaces"
        sentence = (
            "Every element is right, and every frame is accounted for: "
            f"{account.get('injected', 'n/a')} went into {nodes}, "
            f"{account.get('delivered', 'n/a')} came out, "
            f"{_dropped(account.get('dropped'))} were dropped. Times are computed and repeat."
        )
        return Verdict(GOOD, "Exact", sentence, lines)
    if word == "ok":
        sentence = "Every element is right, and this machine kept up with the fabric."
        return Verdict(GOOD, "OK", sentence, lines)
    sentence = f"Every element is right, but do not trust the times: {reasons or 'unknown'}."
    return Verdict(LIMITED, word, sentence, lines)


def _dropped(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return sum(one for one in value.values() if isinstance(one, int))


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        value = " ".join(f"{name} {_short(one)}" for name, one in value.items())
    if isinstance(value, list):
        value = ", ".join(map(_short, value)) or "none"
    words = str(value)
    return words if len(words) <= MOST_SHOWN else f"{words[:MOST_SHOWN]}..."


def _headlines(record: RunRecord) -> list[str]:
    """Return sentences on the best and worst row, losses, and transports side by side."""
    rows = record.rows
    lines: list[str] = []
    judged = [
        (row["efficiency"], name)
        for row, name in zip(rows, labels(rows), strict=True)
        if isinstance(row.get("efficiency"), int | float)
    ]
    if judged:
        (least, worst), (most, best) = min(judged), max(judged)
        lines.append(
            f"Closest to its ideal was row {best} ({100 * most:.1f} %)"
            + (f", farthest row {worst} ({100 * least:.1f} %)." if len(judged) > 1 else ".")
        )
    busbw = [row["busbw_gbps"] for row in rows if isinstance(row.get("busbw_gbps"), int | float)]
    if busbw:
        lines.append(f"Bus bandwidth: {max(busbw):.2f} GB/s at most.")
    lines += _counts(rows)
    if len({str(row.get("transport")) for row in rows}) > 1:
        timed = [row for row in rows if isinstance(row.get("time_us"), int | float)]
        if len(timed) == len(rows):
            lines = [*summary(rows), *lines]
    return lines


def _counts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = {
        "dropped_packets": "dropped by switches",
        "trimmed_packets": "trimmed by switches",
        "marked_packets": "marked by switches",
        "retransmitted_packets": "sent again by endpoints",
    }
    told = []
    for key, words in names.items():
        counts = [row[key] for row in rows if isinstance(row.get(key), int)]
        if counts:
            told.append(f"{sum(counts)} {words}")
    return [f"Packets over all rows: {', '.join(told)}."] if told else []
