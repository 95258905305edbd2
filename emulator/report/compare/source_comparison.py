"""Differences of two sources: of their inputs, and of each value, judged by its spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from emulator.report.compare.measured_source import MeasuredSource, Place, Samples
from emulator.report.compare.source_reading import MEASURED, point_of
from emulator.report.observation_points import MODEL

#: What a difference is: none at all, within the spread, more than it, or not to be judged.
SAME, WITHIN, BEYOND = "same", "within spread", "more than spread"
#: The value of an input that a source does not have.
ABSENT = "not told"
UNJUDGED, COMPUTED = "measured once, no spread", "computed"


@dataclass(frozen=True)
class InputDifference:
    """An input that differs: ``asked`` if a user chose it, else it is the machine's."""

    name: str
    base: str
    other: str
    asked: bool

    @property
    def of_one(self) -> bool:
        """Whether only one of the sources has this input at all."""
        return ABSENT in (self.base, self.other)


@dataclass(frozen=True)
class ValueDifference:
    """A value of a place in both sources: medians, ranges, change and judgement.

    ``change`` is the other's median less the base's, ``relative`` the same over the base's; None
    where that is 0.
    """

    place: Place
    label: str
    key: str
    base: Samples
    other: Samples
    base_point: str
    other_point: str

    @property
    def medians(self) -> tuple[float, float]:
        return median(self.base.values), median(self.other.values)

    @property
    def change(self) -> float:
        base, other = self.medians
        return other - base

    @property
    def relative(self) -> float | None:
        base, other = self.medians
        if base == other:
            return 0.0
        return (other - base) / abs(base) if base else None

    @property
    def judgement(self) -> str:
        """One of the words above: by whether the ranges of both sides overlap."""
        if not self.change:
            return SAME
        if {self.base_point, self.other_point} == {MODEL}:
            return COMPUTED
        if not (self.base.spread and self.other.spread):
            return UNJUDGED
        base, other = self.base.values, self.other.values
        overlap = min(base) <= max(other) and min(other) <= max(base)
        return WITHIN if overlap else BEYOND


@dataclass(frozen=True)
class SourceComparison:
    """Comparison of ``other`` with ``base``.

    ``notes`` are sentences that a reader needs first.
    """

    base: MeasuredSource
    other: MeasuredSource
    inputs: Sequence[InputDifference]
    values: Sequence[ValueDifference]
    only_base: Sequence[str]
    only_other: Sequence[str]
    same_packets: bool
    notes: Sequence[str]

    @property
    def shown_inputs(self) -> Sequence[InputDifference]:
        """The inputs that a reader sees: of sources of two kinds only those that both have."""
        if self.base.kind == self.other.kind:
            return self.inputs
        return [one for one in self.inputs if not one.of_one]


def compare(base: MeasuredSource, other: MeasuredSource) -> SourceComparison:
    """Compare two sources, place by place."""
    shared = [place for place in base.places if place in other.places]
    values = [difference for place in shared for difference in _values(base, other, place)]
    inputs = [
        *_inputs(base.asked, other.asked, asked=True),
        *_inputs(base.made_on, other.made_on, asked=False),
    ]
    same = base.digest is not None and base.digest == other.digest
    return SourceComparison(
        base=base,
        other=other,
        inputs=inputs,
        values=values,
        only_base=[one.label for place, one in base.places.items() if place not in other.places],
        only_other=[one.label for place, one in other.places.items() if place not in base.places],
        same_packets=same,
        notes=[*_notes(base, other, inputs, shared, same), *_spread(values)],
    )


def _spread(values: Sequence[ValueDifference]) -> list[str]:
    if not any(value.judgement == UNJUDGED for value in values):
        return []
    return [
        "A value that was measured once with one seed has no spread, and nothing says whether a "
        "difference is more than chance: run both with --seeds 5."
    ]


def _values(base: MeasuredSource, other: MeasuredSource, place: Place) -> list[ValueDifference]:
    first, second = base.places[place], other.places[place]
    label = first.label if first.label == second.label else f"{first.label} | {second.label}"
    return [
        ValueDifference(
            place=place,
            label=label,
            key=key,
            base=first.samples[key],
            other=second.samples[key],
            base_point=point_of(base, first, key),
            other_point=point_of(other, second, key),
        )
        for key in dict.fromkeys((*MEASURED, *first.samples))
        if key in first.samples and key in second.samples
    ]


def _inputs(
    base: Mapping[str, str], other: Mapping[str, str], *, asked: bool
) -> list[InputDifference]:
    return [
        InputDifference(name, base.get(name, ABSENT), other.get(name, ABSENT), asked)
        for name in dict.fromkeys((*base, *other))
        if base.get(name, ABSENT) != other.get(name, ABSENT)
    ]


def _more(count: int) -> str:
    return f"; and {count} more" if count > 0 else ""


def _notes(
    base: MeasuredSource,
    other: MeasuredSource,
    inputs: Sequence[InputDifference],
    shared: Sequence[Place],
    same: bool,
) -> list[str]:
    notes = []
    changed = [one.name for one in inputs if one.asked]
    if same:
        what = ", ".join(changed) or "nothing that was asked for"
        notes.append(
            f"Both runs have the digest {base.digest}: {what} changed no packet and no time."
            if changed
            else f"Both runs have the digest {base.digest}: they are the same, packet by packet."
        )
    elif base.digest and other.digest:
        alike = [
            base.places[place].label
            for place in shared
            if base.places[place].digests is not None
            and base.places[place].digests == other.places[place].digests
        ]
        if alike:
            notes.append(f"No packet differs at {'; '.join(alike[:8])}{_more(len(alike) - 8)}.")
        if not changed:
            notes.append(
                "Nothing that was asked for differs, and the digests do: another version made "
                "other packets, or a run failed."
            )
    for source in (base, other):
        if source.errors:
            notes.append(f"{source.name} failed: {source.errors[0]}")
        if source.verdict == "host-limited":
            notes.append(f"{source.name} is host-limited: its times tell of the machine, too.")
    if base.point != other.point:
        notes.append(
            "The times were observed at different points: a cluster's include the launch of "
            "kernels and its hosts, the emulated fabric's do not."
        )
    if not shared:
        notes.append("They measured nothing in common: no pattern and size is in both.")
    return list(dict.fromkeys(notes))
