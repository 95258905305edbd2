"""The application of a fault to a running lab, by whichever process, until it is healed."""

from __future__ import annotations

from collections.abc import Callable

from emulator.dataplane.cleanup import require_root, uninterrupted
from emulator.dataplane.lab import Lab
from emulator.dataplane.lab_record import Lock, Phase, load
from emulator.errors import UserError
from emulator.run.faults import grammar
from emulator.run.faults.condition import SOUND, Condition
from emulator.run.faults.fault_injector import FaultInjector


def inject(lab: Lab, fault: str) -> Condition:
    """Apply ``fault``, or ``heal``, to ``lab`` at once; return the lab's condition after it.

    Raises UserError for a fault that cannot be, a lab of a run, or one that is gone meanwhile.
    """
    require_root("strike a lab")
    if not lab.record.settings.persistent:
        raise UserError(
            f"lab {lab.name} is that of a uetemu run, which would not know why it suffers: give "
            f"that run --fault {fault!r}, or strike a lab of uetemu up"
        )
    requested = change_of(lab, fault)
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


def change_of(lab: Lab, fault: str) -> Callable[[Condition], Condition]:
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
        if clause.element.kind in ("gpu", "scale-up"):
            raise UserError(
                f"{clause.text!r}: a lab of uetemu up runs no process on its GPUs that could die, "
                "or copy; take nic or server, or uetemu run --fault"
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
