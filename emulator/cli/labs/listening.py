"""Options of verbs that serve a lab over HTTP: where, and how often they look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from emulator.errors import UserError
from emulator.lab.monitoring.local_server import LocalServer
from topologies.units import format_time, parse_time_ns

SHORTEST_NS = 50_000_000


def listen_option(default: str) -> Callable[[Any], Any]:
    """Return the option ``--listen``."""
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
