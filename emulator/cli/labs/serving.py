"""A lab served over HTTP: options of the verbs, and the page of ``uetemu top --web``."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import click

from emulator.cli.labs.terminal import Attention
from emulator.errors import UserError
from emulator.lab.monitoring.lab_watch import LabWatch, Watched
from emulator.lab.monitoring.local_server import LocalServer
from emulator.lab.monitoring.web.top_page import TopPage
from topologies.units import format_time, parse_time_ns

SHORTEST_NS = 50_000_000


def listen_option(default: str) -> Callable[[Any], Any]:
    return click.option(
        "--listen",
        default=default,
        show_default=True,
        metavar="ADDRESS:PORT",
        help="Where to serve; port 0 takes any that is free.",
    )


def check_pause_ns(interval: str) -> int:
    """Return an interval in ns of the wall clock.  UserError if it is too short."""
    pause_ns = parse_time_ns(interval)
    if pause_ns < SHORTEST_NS:
        raise UserError(
            f"the interval is {format_time(pause_ns)}: take at least {format_time(SHORTEST_NS)} of "
            "the wall clock, or watching would disturb the fabric"
        )
    return pause_ns


def reach_warning(server: LocalServer) -> None:
    """Warn on standard error where others than this machine can read what is served."""
    if not server.is_loopback:
        click.echo(
            f"uetemu: whoever reaches {server.url} can read this lab, without a password", err=True
        )


#: The first interval; the longest wait for a run to write its end, and for readers to get it (s).
FIRST_S, END_S, PARTING_S = 0.2, 3.0, 0.5


def serve_page(lab: str, address: tuple[str, int], pause_s: float) -> int:
    """Serve the page of ``lab`` until Ctrl-C, or until the lab goes; return the exit status."""
    with Attention(keys=False) as attention, LabWatch(lab) as watch:
        watched = watch.look()
        page = TopPage(lab, watched.topology)
        with LocalServer(address, page.routes) as server:
            click.echo(f"lab {lab} in a browser: {server.url} (Ctrl-C ends)")
            reach_warning(server)
            page.show(watched)
            watched = _until_gone(watch, page, attention, pause_s)
            page.show(watched, last=True)
            if watched.ended is not None:
                click.echo(f"uetemu: {watched.ended}", err=True)
            attention.wait(PARTING_S)
    return 0 if attention.ended in (None, signal.SIGINT) else 128 + attention.ended


def _until_gone(watch: LabWatch, page: TopPage, attention: Attention, pause_s: float) -> Watched:
    """Show every look; return the last, which has the end of the lab's run as well."""
    wait_s = min(FIRST_S, pause_s)
    while attention.ended is None:
        attention.wait(wait_s)
        wait_s = pause_s
        watched = watch.look()
        if watched.ended is not None:
            break
        page.show(watched)
    until = time.monotonic() + END_S
    while attention.ended is None and time.monotonic() < until:
        watched = watch.look()
        if watched.run is None or watched.run.errors is not None:
            break
        attention.wait(FIRST_S)
    return watch.look()
