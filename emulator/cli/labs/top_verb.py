"""``uetemu top``: what a running lab is doing, live."""

from __future__ import annotations

import errno
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from emulator.cli.labs.lab_choice import choose_lab
from emulator.cli.labs.serving import check_pause_ns, listen_option, serve_page
from emulator.cli.labs.terminal import Attention
from emulator.cli.options import TABLE_OR_JSON
from emulator.dataplane.cleanup import require_root
from emulator.dataplane.lab import Lab
from emulator.errors import UserError
from emulator.lab.live.rates import Activity, Group, Sort, busiest, by_rail, by_tier
from emulator.lab.live.sampler import LabGone, LabSample, LabSampler, QueueLimits, Sample
from emulator.lab.monitoring.local_server import parse_address

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


SCHEMA = "uetemu.top/1"
FIRST_S = 0.5  # nobody likes to look at nothing
WIDEST = 1000  # columns: where lines are no screen's, no cell is cut
KEYS = "q quits, s sorts by the next"
WEB_ADDRESS = "127.0.0.1:9478"
QUIT = ("q", "Q", "\x04")  # Ctrl-D: end of input


@click.command("top")
@click.argument("lab", required=False)
@click.option(
    "--interval",
    default="500ms",
    show_default=True,
    metavar="TIME",
    help="Between two samples, in time of the wall clock (fabric time is dilated).",
)
@click.option(
    "--sort",
    type=click.Choice([sort.value for sort in Sort]),
    default=Sort.UTILISATION.value,
    show_default=True,
    help="What makes a link busy; queue: the deepest in the interval.",
)
@click.option(
    "--rows", type=click.IntRange(1), metavar="N", help="Links to show; default: what fits, or all."
)
@click.option("--once", is_flag=True, help="Show one interval and exit.")
@TABLE_OR_JSON
@click.option("--web", is_flag=True, help="Show it in a browser instead: serve a page.")
@listen_option(WEB_ADDRESS)
def command(
    lab: str | None,
    interval: str,
    sort: str,
    rows: int | None,
    once: bool,
    form: str,
    web: bool,
    listen: str,
) -> int:
    """Watch the links of LAB: rates, queues, marks, trims and drops of each direction.

    LAB may be left out when only one is running.  Rates are the fabric's own, of all octets on the
    wire; a port of a switch stands for the direction that leaves it, a GPU's for its NIC.  Queues
    are those of data, now and at their deepest in the interval (the thin end of a bar); marks,
    trims and drops are packets of the interval and in total.  NICs have no switch ASIC: there the
    kernel tells what it sent, queues and dropped.

    With --web a page shows the same in a browser, with the fabric's drawing coloured live; it ends
    with the lab, or by Ctrl-C.

    Keys: q quits, s sorts by the next.  Where standard output is no terminal, and with json, one
    interval is shown as with --once.
    """
    pause_ns = check_pause_ns(interval)
    address = parse_address(listen)
    if not web and address != parse_address(WEB_ADDRESS):
        raise UserError("--listen is where a page is served: give --web with it")
    if web and (once or form == "json" or rows is not None):
        raise UserError("--web shows all links until Ctrl-C: leave --once, --format and --rows out")
    require_root("watch a lab")
    if web:
        return serve_page(choose_lab(lab, "by its name").lab, address, pause_ns * 1e-9)
    console = Console(highlight=False)
    screen = not (once or form == "json" or console.is_dumb_terminal) and sys.stdout.isatty()
    with (
        Lab.attach(lab or choose_lab(None, "by its name").lab) as running,
        Attention(keys=screen) as attention,
    ):
        watch = TopWatch(LabSampler(running), pause_ns * 1e-9, Sort(sort), rows, attention)
        if screen:
            watch.live(console)
        elif (picture := watch.once()) is not None:
            if form == "json":
                click.echo(json.dumps(facts(picture, watch.sort, rows), indent=2))
            else:
                show(picture, watch.sort, rows)
    ended = attention.ended
    return 0 if ended in (None, signal.SIGINT) else 128 + ended


class TopWatch:
    """Watches a lab every ``pause_s`` of the wall clock until it is to end."""

    def __init__(
        self,
        sampler: LabSampler,
        pause_s: float,
        sort: Sort,
        rows: int | None,
        attention: Attention,
    ) -> None:
        self.sort = sort
        self._sampler = sampler
        self._pause_s = pause_s
        self._rows = rows
        self._attention = attention

    def once(self) -> LabSample | None:
        """Return what one interval brought; None if it was cut short."""
        before = self._sampler.sample()
        self._attention.wait(self._pause_s)
        if self._attention.ended is not None:
            return None
        return self._sampler.between(before, self._sampler.sample())

    def live(self, console: Console) -> None:
        """Draw until a key or a signal ends it, or the lab goes; return a sentence on the end."""
        try:
            before = self._sampler.sample()
            with _screen(console) as draw:
                self._until_notified(console, draw, before)
        except LabGone as gone:
            click.echo(f"uetemu: {gone}", err=True)
        except OSError as error:
            if error.errno != errno.EIO:  # else the terminal is gone, and nobody needs a notice
                raise
            self._attention.ended = self._attention.ended or signal.SIGHUP

    def _until_notified(
        self, console: Console, draw: Callable[[list[Text]], None], before: Sample
    ) -> None:
        picture: LabSample | None = None
        due = time.monotonic() + min(FIRST_S, self._pause_s)
        while self._attention.ended is None:
            key = self._attention.wait(due - time.monotonic())
            if key in QUIT:
                return
            if key == "s":
                sorts = list(Sort)
                self.sort = sorts[(sorts.index(self.sort) + 1) % len(sorts)]
            if time.monotonic() >= due:
                after = self._sampler.sample()
                picture, before = self._sampler.between(before, after), after
                due = time.monotonic() + self._pause_s
            if picture is not None and self._attention.ended is None:
                draw(view(picture, self.sort, _room(console, self._rows), keys=KEYS))


def show(picture: LabSample, sort: Sort, rows: int | None) -> None:
    """Print: to a terminal as wide as it is, in colour; else plain, with all columns."""
    console = Console(highlight=False)
    if sys.stdout.isatty():
        room = Room(width=console.width, rows=rows, ascii_only=console.options.ascii_only)
        for line in view(picture, sort, room):
            console.print(line)
    else:
        for line in view(picture, sort, Room(width=WIDEST, rows=rows, bars=False, ascii_only=True)):
            click.echo(line.plain.rstrip())


def facts(picture: LabSample, sort: Sort, rows: int | None) -> dict[str, object]:
    """The picture for a program: exact numbers, the busiest links first."""
    record = picture.record
    tiers = by_tier(picture.activities)
    return {
        "schema": SCHEMA,
        "lab": record.lab,
        "topology": record.settings.spec,
        "switch": record.switch,
        "dilation": record.settings.dilation,
        "up_us": round(picture.up_us, 3),
        "interval_us": round(picture.interval_us, 3),
        "tiers": [{"tier": name} | _group(tiers[name]) for name in picture.tiers if name in tiers],
        "rails": [
            {"rail": rail, "tiers": {name: _group(group) for name, group in groups.items()}}
            for rail, groups in by_rail(picture.activities).items()
        ],
        "links": [_link(each, picture) for each in busiest(picture.activities, sort)[:rows]],
    }


def _group(group: Group) -> dict[str, object]:
    return {
        "links": group.links,
        "mean_utilisation_percent": round(group.mean * 100, 3),
        "max_utilisation_percent": round(group.max * 100, 3),
        "max_mean_ratio": None if group.max_mean is None else round(group.max_mean, 4),
        "deepest_queue_bytes": group.deepest_bytes,
        "marked": group.marked,
        "trimmed": group.trimmed,
        "dropped": group.dropped,
    }


def _link(activity: Activity, picture: LabSample) -> dict[str, object]:
    direction, limits = activity.direction, picture.limits[activity.direction.port]
    return {
        "port": direction.port,
        "to": direction.to,
        "tier": direction.tier,
        "rails": direction.rails,
        "link_gbps": direction.rate_bps / 1e9,
        "rate_gbps": round(activity.rate_bps / 1e9, 3),
        "utilisation_percent": round(activity.utilisation * 100, 3),
        "queue_bytes": activity.queue_bytes,
        "peak_queue_bytes": activity.peak_bytes,
        "queue_limit_bytes": limits.limit_bytes,
        "control_queue_bytes": activity.control_queue_bytes,
        "marked": activity.marked,
        "trimmed": activity.trimmed,
        "dropped": activity.dropped,
        "total_marked": activity.total_marked,
        "total_trimmed": activity.total_trimmed,
        "total_dropped": activity.total_dropped,
    }


def _room(console: Console, rows: int | None) -> Room:
    """The screen as it is now: it may have been made larger or smaller."""
    width, height = console.size
    return Room(width=width, height=height, rows=rows, ascii_only=console.options.ascii_only)


@contextmanager
def _screen(console: Console) -> Iterator[Callable[[list[Text]], None]]:
    """The terminal's other screen, drawn on by what is given; afterwards all is as before."""
    live = Live(console=console, screen=True, auto_refresh=False)
    try:
        live.start()
        yield lambda lines: live.update(Text("\n").join(lines), refresh=True)
    finally:
        live.stop()
