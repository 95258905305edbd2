"""A packet's story as data for other programs, and as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from emulator.report.follow.packet_story import PacketStory
from emulator.report.follow.packet_view import RUDI, UET, UUD
from emulator.report.follow.trail_steps import Journey, TrailStep

SCHEMA = "uetemu.follow/1"
#: Columns of the table.
COLUMNS = ("t (us)", "packet", "port", "", "octets", "wait (us)", "event")


def heading(story: PacketStory) -> str:
    """Return one line: which packet this is, and when its times begin."""
    flow = story.flow
    numbers = str(story.psns[0])
    number = {RUDI: "packet ID", UUD: "message ID"}.get(flow.context, "PSN")
    if len(story.psns) > 1:
        numbers += f" and {len(story.psns) - 1} more"
    message = f", message {story.message}" if story.message is not None else ""
    since = f"since {story.iteration} began" if story.iteration.row else "since the first sighting"
    return (
        f"{flow.protocol} {number} {numbers} from {story.source} to {story.destination}, "
        f"{flow.words}{message}; times {since}"
    )


def story_rows(story: PacketStory) -> Iterator[Sequence[str]]:
    """Yield the rows of the table under COLUMNS, in order of time."""
    several = len(story.psns) > 1
    steps = [
        (step.t_us, order, number, journey, step)
        for order, journey in enumerate(story.journeys)
        for number, step in enumerate(journey.steps)
    ]
    for _, _, number, journey, step in sorted(steps, key=lambda one: one[:3]):
        label = f"{journey.label} ({journey.psn})" if several else journey.label
        yield (
            f"{step.t_us:.3f}",
            label,
            str(step.end),
            "out" if step.leaves else "in",
            str(step.octets),
            "" if step.wait_us is None else f"{step.wait_us:.3f}",
            event_words(journey, number, step),
        )


def event_words(journey: Journey, number: int, step: TrailStep) -> str:
    """Return what happens at the ``number``-th step of a journey."""
    words = []
    if number == 0:
        words += [journey.words, *([journey.cause] if journey.cause else [])]
    if step.wire_us is not None:
        words.append(f"{step.wire_us:.3f} us on the wire")
    words += step.changes
    if number == len(journey.steps) - 1:
        words.append(journey.ending)
    return "; ".join(words)


def as_data(story: PacketStory) -> Mapping[str, Any]:
    """Return the story as an object of the schema ``uetemu.follow/1``."""
    return {
        "schema": SCHEMA,
        "protocol": story.flow.protocol,
        "source": story.source,
        "destination": story.destination,
        "pdc" if story.flow.protocol == UET else "qp": story.flow.context
        if story.flow.context >= 0
        else None,
        "psns": list(story.psns),
        "message_id": story.message,
        "row": story.iteration.row or None,
        "iteration": story.iteration.number or None,
        "journeys": [_journey(one) for one in story.journeys],
        "notes": list(story.notes),
        "display_filter": story.display_filter,
    }


def _journey(one: Journey) -> Mapping[str, Any]:
    return {
        "psn": one.psn,
        "kind": one.kind.value,
        "label": one.label,
        "packet": one.words,
        "retransmission": one.retransmission,
        "cause": one.cause or None,
        "fate": one.fate,
        "ending": one.ending,
        "steps": [
            {
                "t_us": round(step.t_us, 6),
                "port": str(step.end),
                "way": "out" if step.leaves else "in",
                "octets": step.octets,
                "wait_us": None if step.wait_us is None else round(step.wait_us, 6),
                "wire_us": None if step.wire_us is None else round(step.wire_us, 6),
                "changes": list(step.changes),
            }
            for step in one.steps
        ],
    }
