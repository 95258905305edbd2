"""``uetemu top``: what a running lab is doing, live."""

from __future__ import annotations

import errno
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from emulator.cli.labs.lab_choice import choose_lab
from emulator.cli.labs.serving import check_pause_ns, listen_option, serve_page
from emulator.cli.labs.terminal import Attention
from emulator.cli.labs.top_view import Room, view
from emulator.cli.options import TABLE_OR_JSON
from emulator.dataplane.cleanup import require_root
from emulator.dataplane.lab import Lab
from emulator.errors import UserError
from emulator.lab.live.rates import Activity, Group, Sort, busiest, by_rail, by_tier
from emulator.lab.live.sampler import LabGone, LabSample, LabSampler, Sample
from emulator.lab.monitoring.local_server import parse_address

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
