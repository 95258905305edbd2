"""Rendering of ``uetemu top``: a sample as lines of text that fit the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from emulator.lab.live.rates import Activity, Group, Sort, busiest, by_rail, by_tier
from emulator.lab.live.sampler import LabSample, QueueLimits

GAP, WIDE_GAP = 2, 6  # columns between cells, and between sections side by side
BAR = 12  # columns
LINE, HALF_LINE, BEYOND, TRACK = "━", "╸", "─", "·"
PLAIN_LINE, PLAIN_BEYOND, PLAIN_TRACK = "#", "-", "."
HEADING, NAME, FAINT = "bold", "bold cyan", "bright_black"
CALM, BUSY, FULL = "green", "yellow", "red"
BUSY_AT, FULL_AT = 0.5, 0.9  # of a link, or of a queue without marking
UNBALANCED_AT = 1.5
FEWEST_ROWS = 3  # of links, however low the screen


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The space to draw on: ``height`` None is unlimited, ``rows`` limits the links."""

    width: int
    height: int | None = None
    rows: int | None = None
    bars: bool = True
    ascii_only: bool = False


@dataclass(frozen=True, slots=True)
class TopColumn:
    """``importance`` 0 is always there; of the others the highest numbers go first."""

    heading: str
    cells: Sequence[Text]
    importance: int = 0
    left: bool = False

    @property
    def width(self) -> int:
        return max([len(self.heading), *(cell.cell_len for cell in self.cells)])


def view(picture: LabSample, sort: Sort, room: Room, keys: str = "") -> list[Text]:
    """Return the whole view, line by line, with ``keys`` at the end."""
    lines = [*_header(picture, room), Text(), *_summary(picture, room), Text()]
    ordered = busiest(picture.activities, sort)
    most = len(ordered) if room.rows is None else room.rows
    if room.height is not None:
        left = room.height - len(lines) - 2  # the table's head, and the last line
        most = min(most, max(left, FEWEST_ROWS))
    shown = ordered[:most]
    lines += lay(_link_columns(shown, picture, room), room.width)
    words = [f"{len(shown)} of {len(ordered)} link directions by {sort}", keys]
    lines.append(Text(" · ".join(filter(None, words)), FAINT))
    for line in lines:
        line.truncate(room.width, overflow="ellipsis" if not room.ascii_only else "crop")
    return lines[: room.height]


def lay(columns: Sequence[TopColumn], width: int) -> list[Text]:
    """A heading and its rows, with as many columns as ``width`` allows."""
    chosen = list(columns)
    while sum(column.width + GAP for column in chosen) - GAP > width:
        least = max(chosen, key=lambda column: column.importance)
        if not least.importance:
            break
        chosen.remove(least)
    heading = [Text(column.heading, HEADING) for column in chosen]
    rows = zip(*(column.cells for column in chosen), strict=True)
    return [
        Text(" " * GAP).join(
            _padded(cell, column) for cell, column in zip(row, chosen, strict=True)
        )
        for row in (heading, *rows)
    ]


def _padded(cell: Text, column: TopColumn) -> Text:
    room = " " * (column.width - cell.cell_len)
    return cell + room if column.left else Text(room) + cell


def _header(picture: LabSample, room: Room) -> list[Text]:
    record = picture.record
    facts = [
        Text(record.lab, NAME),
        Text(record.settings.spec),
        Text(f"switch {record.switch or 'none'}"),
        Text(f"dilation {record.settings.dilation:g}"),
        Text(f"up {duration(picture.up_us)} fabric time"),
        Text(f"interval {duration(picture.interval_us)}"),
    ]
    between = Text("  " if room.ascii_only else " · ", FAINT)
    lines = [Text()]
    for fact in facts:
        longer = Text.assemble(lines[-1], between, fact) if lines[-1] else fact
        if longer.cell_len <= room.width:
            lines[-1] = longer
        else:
            lines.append(fact)
    return lines


def _summary(picture: LabSample, room: Room) -> list[Text]:
    """Tiers and rails, side by side where there is room."""
    tiers = lay(_tier_columns(picture, room), room.width)
    rails = lay(_rail_columns(picture), room.width)
    if room.height is not None and len(rails) > (most := max(5, room.height // 3)):
        rails = [*rails[: most - 1], Text(f"and {len(rails) - most + 1} more rails", FAINT)]
    left, right = (max(line.cell_len for line in part) for part in (tiers, rails))
    if not room.bars or left + WIDE_GAP + right > room.width:
        return [*tiers, Text(), *rails]
    height = max(len(tiers), len(rails))
    tiers += [Text()] * (height - len(tiers))
    rails += [Text()] * (height - len(rails))
    return [
        ours + " " * (left + WIDE_GAP - ours.cell_len) + theirs
        for ours, theirs in zip(tiers, rails, strict=True)
    ]


def _tier_columns(picture: LabSample, room: Room) -> list[TopColumn]:
    groups = by_tier(picture.activities)
    names = [name for name in picture.tiers if name in groups]
    rows = [groups[name] for name in names]
    columns = [
        TopColumn("tier", [Text(name) for name in names], left=True),
        TopColumn("links", [Text(str(row.links)) for row in rows], 3),
        TopColumn("mean %", [_percent(row.mean) for row in rows]),
        TopColumn("max %", [_percent(row.max) for row in rows]),
    ]
    if room.bars:
        bars = [_bar(row.mean, row.max, _of_link(row.max), room) for row in rows]
        columns.append(TopColumn("mean to max", bars, 2, left=True))
    columns += [
        TopColumn("max/mean", [_ratio(row) for row in rows]),
        TopColumn("deepest KB", [_kilobytes(row.deepest_bytes) for row in rows], 1),
    ]
    return columns + _counts(rows, picture, 1)


def _rail_columns(picture: LabSample) -> list[TopColumn]:
    rails = by_rail(picture.activities)
    names = [Text(f"rail {rail}") for rail in rails]
    columns = [TopColumn("mean / max %", names, left=True)]
    for tier in picture.tiers:
        if not any(tier in groups for groups in rails.values()):
            continue
        cells = []
        for groups in rails.values():
            group = groups.get(tier)
            cells.append(
                Text("-", FAINT)
                if group is None
                else Text.assemble(_percent(group.mean, 0), (" /", FAINT), _percent(group.max, 0))
            )
        # what the rail's own switch sends is what one looks for first
        columns.append(TopColumn(tier, cells, 0 if tier.startswith("rail") else 1))
    return columns


def _link_columns(shown: Sequence[Activity], picture: LabSample, room: Room) -> list[TopColumn]:
    columns = [
        TopColumn(
            "link", [_faint_if(_idle(each), each.direction.port) for each in shown], left=True
        ),
        TopColumn(
            "to", [_faint_if(_idle(each), each.direction.to) for each in shown], 6, left=True
        ),
        TopColumn("Gb/s", [_number(each.rate_bps / 1e9) for each in shown]),
        TopColumn("%", [_percent(each.utilisation) for each in shown]),
    ]
    if room.bars:
        bars = [_bar(each.utilisation, 0, _of_link(each.utilisation), room) for each in shown]
        columns.append(TopColumn("utilisation", bars, 3, left=True))
    columns += _queue_columns(shown, picture, room)
    return columns + _counts(shown, picture, 2, totals=7)


def _queue_columns(shown: Sequence[Activity], picture: LabSample, room: Room) -> list[TopColumn]:
    now, bars, peaks, most = [], [], [], []
    for each in shown:
        of = picture.limits[each.direction.port]
        style = _of_queue(each.deepest_bytes, of)
        now.append(_kilobytes(each.queue_bytes, _of_queue(each.queue_bytes, of)))
        bars.append(
            _bar(
                each.queue_bytes / of.limit_bytes, each.deepest_bytes / of.limit_bytes, style, room
            )
        )
        peaks.append(_kilobytes(each.peak_bytes, style))
        most.append(_kilobytes(of.limit_bytes))
    columns = [TopColumn("queue KB", now)]
    if room.bars:
        columns.append(TopColumn("of limit", bars, 4, left=True))
    if _has_asic(picture):
        columns.append(TopColumn("peak KB", peaks, 5))
    if not room.bars:
        columns.append(TopColumn("limit KB", most))
    return columns


def _counts(
    rows: Sequence[Activity] | Sequence[Group], picture: LabSample, importance: int, totals: int = 0
) -> list[TopColumn]:
    """Marks, trims and drops of the interval and, for links, since counting began."""
    kinds = [("drops", "dropped", FULL)]
    if _has_asic(picture):
        kinds = [("marks", "marked", BUSY), ("trims", "trimmed", BUSY), *kinds]
    columns = []
    for place, (heading, name, style) in enumerate(kinds):
        cells = [_count(getattr(row, name), style) for row in rows]
        columns.append(TopColumn(heading, cells, importance))
        if totals:
            sums = [_count(getattr(row, f"total_{name}")) for row in rows]
            columns.append(TopColumn("total", sums, totals + place))
    return columns


def _has_asic(picture: LabSample) -> bool:
    return picture.record.switch is not None


# --- cells -------------------------------------------------------------------------------------


def _bar(share: float, beyond: float, style: str, room: Room) -> Text:
    """``share`` of the whole thick, from there to ``beyond`` thin."""
    halves = round(min(1.0, max(0.0, share)) * BAR * 2)
    reach = round(min(1.0, max(0.0, beyond)) * BAR)
    if room.ascii_only:
        thick, thin, track = PLAIN_LINE * round(halves / 2), PLAIN_BEYOND, PLAIN_TRACK
    else:
        thick, thin, track = LINE * (halves // 2) + HALF_LINE * (halves % 2), BEYOND, TRACK
    middle = thin * (reach - len(thick))
    rest = track * (BAR - len(thick) - len(middle))
    return Text.assemble((thick + middle, style), (rest, FAINT))


def _percent(share: float, digits: int = 1) -> Text:
    return Text(f"{share * 100:4.{digits}f}", _of_link(share) if share else FAINT)


def _ratio(group: Group) -> Text:
    if group.max_mean is None:
        return Text("-", FAINT)
    return Text(f"{group.max_mean:.2f}", BUSY if group.max_mean >= UNBALANCED_AT else "")


def _number(value: float) -> Text:
    return Text(f"{value:.1f}", "" if value else FAINT)


def _kilobytes(octets: int | None, style: str = "") -> Text:
    if octets is None:
        return Text("-", FAINT)
    return Text(f"{octets / 1000:.1f}", style if octets else FAINT)


def _count(number: int | None, style: str = "") -> Text:
    if number is None:
        return Text("-", FAINT)
    return Text(_short(number), style if number else FAINT)


def _short(number: int) -> str:
    """Return ``number`` in at most six digits, or shortened with a unit."""
    for unit, factor in (("G", 10**9), ("M", 10**6)):
        if number >= factor:
            return f"{number / factor:.2f}{unit}"
    return str(number)


def _faint_if(faint: bool, text: str) -> Text:
    return Text(text, FAINT if faint else "")


def _idle(activity: Activity) -> bool:
    return not (activity.rate_bps or activity.deepest_bytes or activity.dropped)


def _of_link(share: float) -> str:
    return FULL if share >= FULL_AT else BUSY if share >= BUSY_AT else CALM


def _of_queue(octets: int, limits: QueueLimits) -> str:
    """Calm until packets are marked, full from where all are."""
    busy = limits.limit_bytes * BUSY_AT if limits.kmin_bytes is None else limits.kmin_bytes
    full = limits.limit_bytes * FULL_AT if limits.kmax_bytes is None else limits.kmax_bytes
    return FULL if octets >= full else BUSY if octets >= busy else CALM


def duration(microseconds: float) -> str:
    """Three digits and a unit."""
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= factor:
            return f"{microseconds / factor:.3g} {unit}"
    return f"{microseconds:.3g} us"
