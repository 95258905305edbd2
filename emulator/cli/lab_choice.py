"""Which lab a verb is about when none is named."""

from __future__ import annotations

from emulator.errors import UserError
from emulator.lab import labs
from emulator.lab_record import Phase


def only_lab(how: str) -> str:
    """The name of the lab, if just one is running; ``how`` says how to name one otherwise."""
    running = [record.lab for record in labs() if record.phase is Phase.UP and not record.abandoned]
    if len(running) == 1:
        return running[0]
    raise UserError(
        f"say which lab {how}; running: {', '.join(running)}"
        if running
        else "no lab is running; start one: uetemu up"
    )
