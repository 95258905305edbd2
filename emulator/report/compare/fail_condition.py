"""Conditions of ``--fail-if``: a change of a value that a pipeline must not let pass."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from emulator.errors import UserError
from emulator.report.compare.comparison_report import change_of, heading, judged
from emulator.report.compare.source_comparison import SourceComparison, ValueDifference
from emulator.report.compare.source_reading import MEASURED

#: Signs between a value and its limit.
COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_TEXT = re.compile(
    r"\s*([A-Za-z][A-Za-z0-9_.]*)\s*(<=|>=|==|!=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*(%?)\s*"
)
#: Short names of values.
SHORT: Mapping[str, str] = {
    "time": "time_us",
    "ideal": "ideal_us",
    "busbw": "busbw_gbps",
    "algbw": "algbw_gbps",
    "goodput": "goodput_gbps",
    "p50": "message_p50_us",
    "p99": "message_p99_us",
    "p99.9": "message_p999_us",
    "marks": "marked_packets",
    "trims": "trimmed_packets",
    "drops": "dropped_packets",
    "resent": "retransmitted_packets",
    "queue": "max_queue_bytes",
}


@dataclass(frozen=True)
class FailCondition:
    """``key`` changed by less or more than ``limit``: per cent, or in the value's own unit."""

    text: str
    key: str
    sign: str
    limit: float
    percent: bool

    def holds(self, difference: ValueDifference) -> bool:
        """Whether the change of the medians meets the condition."""
        if not self.percent:
            change = difference.change
        elif difference.relative is None:  # from nothing to something
            change = float("inf") if difference.change > 0 else float("-inf")
        else:
            change = 100 * difference.relative
        return COMPARED[self.sign](change, self.limit)

    def met(self, comparisons: Sequence[SourceComparison]) -> list[ValueDifference]:
        """Return the differences that meet it; UserError where a comparison lacks the value.

        A condition on what nobody measured would let everything pass.
        """
        found = []
        for comparison in comparisons:
            values = [one for one in comparison.values if one.key == self.key]
            if not comparison.values:
                raise UserError(
                    f"--fail-if {self.text!r}: {comparison.base.name} and {comparison.other.name} "
                    "measured nothing in common: no pattern and size is in both"
                )
            if not values:
                raise UserError(
                    f"--fail-if {self.text!r}: {comparison.base.name} and {comparison.other.name} "
                    f"have no {self.key} in common; name another value"
                )
            found += [one for one in values if self.holds(one)]
        return found


@dataclass(frozen=True)
class Statement:
    """A value's name, a sign and a limit, as a user writes them."""

    key: str
    sign: str
    limit: float
    percent: bool


def parse_statement(text: str, whose: str, examples: str) -> Statement:
    """Return what ``text`` states; UserError, begun by ``whose``, if it states nothing."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise UserError(f"{whose} is no condition; write for example {examples}")
    name, sign, limit, percent = match.groups()
    key = SHORT.get(name, name)
    if key not in MEASURED:
        known = ", ".join((*SHORT, *MEASURED))
        raise UserError(f"{whose}: {name} is no value of a row; known are {known}")
    return Statement(key, sign, float(limit), bool(percent))


def parse_condition(text: str) -> FailCondition:
    """Return the condition that ``text`` states, such as ``busbw<-5%``; UserError if it is none."""
    stated = parse_statement(text, f"--fail-if {text!r}", "busbw<-5%, time>10% or drops>0")
    return FailCondition(text.strip(), stated.key, stated.sign, stated.limit, stated.percent)


def failures(condition: FailCondition, comparisons: Sequence[SourceComparison]) -> list[str]:
    """Return a sentence for each difference that meets the condition."""
    return [
        f"--fail-if {condition.text}: {heading(one.key)} changed by {change_of(one)} "
        f"at {one.label}, {judged(one)}"
        for one in condition.met(comparisons)
    ]
