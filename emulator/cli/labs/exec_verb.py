"""``uetemu exec``: run a command inside a node of a running lab."""

from __future__ import annotations

import os

import click

from emulator.cli.labs.lab_choice import node_of
from emulator.cli.options import LAB
from emulator.dataplane import lab_record
from emulator.dataplane.cleanup import require_root
from emulator.dataplane.control_plane.daemons import shown_at
from emulator.dataplane.kernel import namespaces
from emulator.errors import UserError


@click.command(
    "exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@LAB
@click.argument("node", metavar="[LAB:]NODE")
@click.argument("argv", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(lab: str | None, node: str, argv: tuple[str, ...]) -> None:
    """Run COMMAND inside NODE; its exit status is that of this command.

    \b
    uetemu exec h0g0 -- ping -c 3 10.0.1.3
    uetemu exec demo:rail0 -- bash
    uetemu exec demo:rail0 -- vtysh -c "show bgp summary"
    """
    require_root("enter a node")
    words = argv[1:] if argv[0] == "--" else argv
    if not words:
        raise UserError("no command is given: uetemu exec NODE -- COMMAND...")
    record, name = node_of(lab, node)
    try:
        namespaces.enter(namespaces.path_of(record.lab, name))
    except FileNotFoundError:
        raise UserError(
            f"node {name} of lab {record.lab} is gone: remove the rest with "
            f"uetemu clean {record.lab}"
        ) from None
    shown = shown_at(lab_record.directory_of(record.lab), name)
    if shown:
        namespaces.pose_as(name, shown)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        raise UserError(f"cannot run {words[0]}: {error.strerror}") from None
