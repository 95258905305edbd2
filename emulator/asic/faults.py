"""What goes wrong on the cable of a port.

Faults strike frames that leave through the port and have found room in its queue: the model has
charged the link for them.  Lost ones do not reach the kernel's queue below, which is that much
ahead of the model.  A duplicate is charged like any frame.  A black hole swallows everything, ARP
and routing protocols included, before it is queued.

Reordering is not among them: a classifier has no place to keep a frame, and none of the kernel's
queues below would give one back later by choice.  netem does that where the kernel has it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from emulator.asic.layout import FAULT_SETTINGS, WHOLE
from emulator.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities per frame, each from 0 to 1, drawn from streams that the port's seed fixes.

    ``burst_begin`` and ``burst_end`` are the Gilbert-Elliott model's chances to enter and to leave
    its bad state; bursts last 1 / ``burst_end`` frames on average, in which ``burst_loss`` of the
    frames are lost.  ``corruption`` inverts one bit of the IP payload (the frame check sequence of
    a real cable would have caught it: this is a fault inside a switch).
    """

    loss: float = 0.0
    burst_begin: float = 0.0
    burst_end: float = 1.0
    burst_loss: float = 1.0
    corruption: float = 0.0
    duplication: float = 0.0
    black_hole: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise UserError(f"the fault {field.name} is {value!r}: a probability is 0 to 1")
        if self.burst_begin and not self.burst_end:
            raise UserError(
                "bursts of loss begin but never end: set burst_end above 0, or use loss instead"
            )

    def packed(self) -> bytes:
        """As the program wants it."""
        chances = (
            self.loss,
            self.burst_begin,
            self.burst_end,
            self.burst_loss,
            self.corruption,
            self.duplication,
        )
        striking = self.loss or self.burst_begin or self.corruption or self.duplication
        return FAULT_SETTINGS.pack(
            *(round(chance * WHOLE) for chance in chances), self.black_hole, bool(striking)
        )


NONE = Faults()
