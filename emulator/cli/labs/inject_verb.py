"""``uetemu inject``: apply and heal faults of a running lab's cables."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from emulator.cleanup import require_root, uninterrupted
from emulator.errors import UserError
from emulator.faults import grammar
from emulator.faults.condition import SOUND, Condition
from emulator.faults.fault_injector import FaultInjector, recorded
from emulator.lab import Lab
from emulator.lab_record import Lock, Phase, load


@click.command("inject", epilog=f"\b\n{grammar.describe()}")
@click.argument("lab")
@click.argument("fault", required=False)
@click.option("--list", "listing", is_flag=True, help="Only say what is struck now.")
@click.option("--format", "-f", "form", type=click.Choice(["table", "json"]), default="table")
def command(lab: str, fault: str | None, listing: bool, form: str) -> None:
    """Let FAULT happen to LAB at once, such as "link rail0:up1 down"; "heal" mends everything.

    What is struck stays so until it is healed, by whichever process, or the lab is taken down.
    """
    if listing == (fault is not None) or (fault is not None and not fault.strip()):
        raise UserError(
            'say what is to happen, such as uetemu inject LAB "link rail0:up1 down", or ask with '
            "uetemu inject LAB --list what has"
        )
    with Lab.attach(lab) as running:
        if fault is None:
            condition = recorded(running.name, running.topology)
        else:
            condition = _inject(running, fault)
    if form == "json":
        click.echo(json.dumps({"lab": lab, "struck": condition.words(), **condition.as_data()}))
    elif condition.sound:
        click.echo(f"lab {lab}: nothing is struck")
    else:
        click.echo("\n".join(f"lab {lab}: {words}" for words in condition.words()))


def _inject(lab: Lab, fault: str) -> Condition:
    require_root("strike a lab")
    if not lab.record.persistent:
        raise UserError(
            f"lab {lab.name} is that of a uetemu run, which would not know why it suffers: give "
            f"that run --fault {fault!r}, or strike a lab of uetemu up"
        )
    requested = _reader(lab, fault)
    gone = f"lab {lab.name} was taken down meanwhile"
    try:
        lock = Lock(lab.directory)
    except FileNotFoundError:
        raise UserError(gone) from None
    try:
        record = load(lab.name)
        if record is None or record.identity != lab.record.identity or record.phase is not Phase.UP:
            raise UserError(gone)
        injector = FaultInjector(lab)
        condition = requested(injector.condition)
        with uninterrupted():
            injector.apply(condition)
    finally:
        lock.release()
    return condition


def _reader(lab: Lab, fault: str) -> Callable[[Condition], Condition]:
    """Return what ``fault`` makes of the lab's condition; it is read before anything is locked."""
    if fault.strip() == "heal":
        return lambda _: SOUND
    clauses = grammar.parse(fault, lab.topology)
    for clause in clauses:
        if clause.at_ns is not None:
            raise UserError(
                f"{clause.text!r}: inject strikes at once; take t= away, or give the time to "
                "uetemu run --fault"
            )
        if clause.element.kind == "gpu":
            raise UserError(
                f"{clause.text!r}: a lab of uetemu up runs no process on its GPUs that could die; "
                "take nic or server, or uetemu run --fault"
            )
        if clause.verb == "flap":
            raise UserError(
                f"{clause.text!r}: inject does not wait between one state and the next; take down "
                "and up in turn, or uetemu run --fault"
            )

    def change(condition: Condition) -> Condition:
        for clause in clauses:
            condition = grammar.after(condition, clause)
        return condition

    return change
