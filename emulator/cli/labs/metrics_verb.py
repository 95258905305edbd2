"""``uetemu metrics``: a running lab, and the run in it, for Prometheus."""

from __future__ import annotations

import signal
import time
from fnmatch import fnmatchcase

import click

from emulator.cli.labs.lab_choice import choose_lab, up
from emulator.cli.labs.serving import check_pause_ns, listen_option, reach_warning
from emulator.cli.labs.terminal import Attention
from emulator.dataplane.cleanup import require_root
from emulator.errors import UserError
from emulator.lab.live.sampler import LabGone
from emulator.lab.monitoring.lab_watch import LabWatch, Watched
from emulator.lab.monitoring.local_server import HttpAnswer, LocalServer, parse_address
from emulator.lab.monitoring.metric_page import PATH, MetricPage
from topologies.units import parse_time_ns

#: How often ``--follow`` looks for a lab, and the first interval of one.
LOOK_S, FIRST_S = 0.1, 0.2


@click.command("metrics")
@click.argument("lab", required=False)
@listen_option("127.0.0.1:9477")
@click.option(
    "--interval",
    default="1s",
    show_default=True,
    metavar="TIME",
    help="Between two samples, in time of the wall clock.",
)
@click.option(
    "--keep",
    default="60s",
    show_default=True,
    metavar="TIME",
    help="How long the last values stay once the lab has gone, in time of the wall clock.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Wait for a lab, and for the next one when it has gone, until Ctrl-C; LAB is a pattern "
    "then (incast-*), or left out for any.",
)
def command(lab: str | None, listen: str, interval: str, keep: str, follow: bool) -> int:
    """Serve metrics of LAB, or of the run in it, to Prometheus, as OpenMetrics over HTTP.

    LAB may be left out when only one is running.  Rates are per second of fabric time, and gauges:
    a rate() over a counter is per second of the wall clock, and has no meaning with a virtual
    clock.  Ports of switches stand one by one up to 256 of them; beyond, and for GPUs and NICs,
    their tiers stand for them.

    The last values stay for --keep when the lab goes, with uetemu_lab_running 0.  Ctrl-C ends it.
    """
    address, pause_ns = parse_address(listen), check_pause_ns(interval)
    keep_ns = parse_time_ns(keep)
    require_root("watch a lab")
    name = None if follow else lab or choose_lab(None, "by its name").lab
    page = MetricPage()
    routes = {PATH: page.answer, "/": _index}
    with Attention(keys=False) as attention, LocalServer(address, routes) as server:
        exporter = _Exporter(page, attention, pause_ns * 1e-9, keep_ns * 1e-9)
        watch = None if name is None else exporter.start(name)
        what = f"lab {name}" if name else f"every lab {lab or '*'} that comes up"
        click.echo(f"metrics of {what}: {server.url}{PATH[1:]} (Ctrl-C ends)")
        reach_warning(server)
        if watch is not None:
            exporter.until_gone(watch)
        else:
            exporter.follow(lab or "*")
    return 0 if attention.ended in (None, signal.SIGINT) else 128 + attention.ended


def _index(_: object) -> HttpAnswer:
    return HttpAnswer(kind="text/plain; charset=utf-8", body=f"uetemu: see {PATH}\n".encode())


class _Exporter:
    """Keeps ``page`` as new as ``pause_s`` says, for one lab or for all that come."""

    def __init__(
        self, page: MetricPage, attention: Attention, pause_s: float, keep_s: float
    ) -> None:
        self._page = page
        self._attention = attention
        self._pause_s, self._keep_s = pause_s, keep_s

    def start(self, name: str) -> LabWatch:
        """Attach to a lab.  Raises UserError if it cannot be read."""
        watch = LabWatch(name)
        try:
            self._look(watch)
        except UserError:
            self._let_go(watch)
            raise
        return watch

    def until_gone(self, watch: LabWatch) -> None:
        """Export the lab until it goes and its last values have been kept; say so."""
        gone = self._until_ended(watch)
        if self._attention.ended is None:
            click.echo(f"uetemu: {gone}; its last values stay for {self._keep_s:g} s", err=True)
            self._keep(watch, time.monotonic() + self._keep_s)

    def follow(self, pattern: str) -> None:
        """Export one lab of ``pattern`` after the other, the youngest first."""
        known: set[str] = set()
        until = 0.0
        watch: LabWatch | None = None
        while self._attention.ended is None:
            labs = [
                one for one in up().values() if not one.abandoned and fnmatchcase(one.lab, pattern)
            ]
            fresh = [one for one in labs if one.identity not in known]
            if not fresh:
                if watch is not None:
                    self._look(watch)
                    if time.monotonic() > until:
                        self._let_go(watch)
                        watch = None
                self._attention.wait(LOOK_S)
                continue
            youngest = max(fresh, key=lambda one: one.created)
            known = {one.identity for one in labs}
            if watch is not None:
                self._let_go(watch)
                watch = None
            try:
                watch = self.start(youngest.lab)
            except UserError as error:  # it went before it could be read, or it is broken
                if not isinstance(error, LabGone):
                    click.echo(f"uetemu: left out: {error}", err=True)
                continue
            self._until_ended(watch)
            until = time.monotonic() + self._keep_s

    def _until_ended(self, watch: LabWatch) -> str | None:
        """Export the lab until it goes; return why it has, None if this is to end before."""
        pause_s, ended = min(FIRST_S, self._pause_s), None
        while self._attention.ended is None and ended is None:
            self._attention.wait(pause_s)
            pause_s = self._pause_s
            ended = self._look(watch).ended
        return ended

    def _keep(self, watch: LabWatch, until: float) -> None:
        while self._attention.ended is None and time.monotonic() < until:
            self._attention.wait(min(self._pause_s, until - time.monotonic()))
            self._look(watch)  # its run still writes its end

    def _look(self, watch: LabWatch) -> Watched:
        watched = watch.look()
        self._page.show(watched)
        return watched

    def _let_go(self, watch: LabWatch) -> None:
        watch.close()
        self._page.show(None)
