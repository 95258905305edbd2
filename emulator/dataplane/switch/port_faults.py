"""Faults of a port and of its cable: loss, corruption, delay, rate and carrier.

Faults strike frames that leave through the port and have found room in its queue: the model has
charged the link for them.  Lost ones do not reach the kernel's queue below, which is that much
ahead of the model.  A duplicate is charged like any frame.  A black hole swallows everything, ARP
and routing protocols included, before it is queued.  So does a port whose cable is pulled, as long
as anything is still sent there; its losses have a reason of their own.

Reordering lets a frame go ahead, as netem's ``reorder`` does, and not others wait: a classifier has
no place to keep a frame, but the kernel's queue below has a class that is served first.  So a frame
overtakes those that wait in its port's queue, and nothing if none does: on an idle port there is no
reordering.  Those that overtake keep their own order.

A reduced rate strikes the port itself: the model here
(:func:`~emulator.dataplane.switch.switch_profile.port_settings`), and the kernel's queue by
:func:`emulator.dataplane.kernel.shaping.rate_requests`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from emulator.dataplane.switch.bpf.layout import (
    FAULT_SETTINGS,
    FAULTS_ARRIVALS,
    FAULTS_DEPARTURES,
    WHOLE,
    WITHOUT_CARRIER,
)
from emulator.errors import UserError

#: The chance of an octet to be lost to bit errors is of ``WHOLE << BIT_ERROR_SHIFT`` (asic.h); a
#: larger one times the longest frame would not fit 64 bits.
BIT_ERROR_SHIFT = 24
MOST_BIT_ERRORS = 1 << 47
#: The directions of a black hole, seen from a port.
WAYS = ("out", "in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities per frame, each from 0 to 1, drawn from streams that the port's seed fixes.

    ``burst_begin`` and ``burst_end`` are the Gilbert-Elliott model's chances to enter and to leave
    its bad state; bursts last 1 / ``burst_end`` frames on average, in which ``burst_loss`` of the
    frames are lost.  By the virtual clock loss takes PAUSE frames like all others.
    ``corruption`` inverts one bit of the IP payload (the frame check sequence of
    a real cable would have caught it: this is a fault inside a switch).  ``reordering`` is the
    chance of a data frame to overtake those that wait, and has no effect on control.

    ``bit_errors`` is the cable's bit error ratio.  A frame with an error is lost, as its check
    sequence shows it: the chance of that is the ratio times the bits of the frame, at most 1.

    ``pause_storm``: the NIC at the other end of the cable requests pauses without a reason, all the
    time, and goes on sending and receiving itself.

    ``arriving``: the cable's other direction is struck as well, at this end: frames that arrive are
    lost as they come in.  For the cable of a NIC, whose own port no ASIC stands at; ``rate`` then
    is the NIC's, too.  There is no duplication or reordering of what arrives.

    ``unplugged``: the cable has no carrier, and what would leave is lost to that, whether it is a
    black hole besides or not.

    ``rate`` is no probability but the share of the link's rate that is left, above 0 and at most 1.
    ``scaled``: the thresholds of the port's queues are that share of theirs, too, as a slower port
    would have them.

    ``one_way``: a black hole that is ``"out"`` swallows only what leaves through the port, ``"in"``
    only what arrives there, whatever ``arriving`` is.  Of the faults of a cable this is seen from
    its end ``a``.
    """

    loss: float = 0.0
    burst_begin: float = 0.0
    burst_end: float = 1.0
    burst_loss: float = 1.0
    corruption: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    bit_errors: float = 0.0
    rate: float = 1.0
    black_hole: bool = False
    unplugged: bool = False
    pause_storm: bool = False
    arriving: bool = False
    scaled: bool = False
    one_way: str = ""

    def __post_init__(self) -> None:
        for name in ("black_hole", "unplugged", "pause_storm", "arriving", "scaled"):
            if not isinstance(value := getattr(self, name), bool):
                raise UserError(f"the fault {name} is {value!r}: it is True or False")
        if self.one_way not in ("", *WAYS) or (self.one_way and not self.black_hole):
            raise UserError(
                f"the fault one_way is {self.one_way!r}: a black hole has one of {', '.join(WAYS)}"
            )
        for field in fields(self):
            if field.name == "one_way":
                continue
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                what = "a share of the link's rate" if field.name == "rate" else "a probability"
                raise UserError(f"the fault {field.name} is {value!r}: {what} is 0 to 1")
        if not self.rate:
            raise UserError(
                "the fault rate leaves nothing of the link: set black_hole, which swallows "
                "everything, or a rate above 0"
            )
        if self.arriving and (self.duplication or self.reordering):
            raise UserError(
                "what arrives cannot be duplicated or reordered: strike the port at the other end "
                "of the cable, or leave arriving out"
            )
        if self.burst_begin and not self.burst_end:
            raise UserError(
                "bursts of loss begin but never end: set burst_end above 0, or use loss instead"
            )

    @property
    def mean_loss(self) -> float:
        """The share of frames that loss takes, over good and bad states."""
        changes = self.burst_begin + self.burst_end
        bad = self.burst_begin / changes if changes else 0.0
        return 1 - (1 - self.loss) * (1 - bad * self.burst_loss)

    def loss_of(self, octets: int) -> float:
        """Return the share of frames of ``octets``, FCS included, that loss and bit errors take."""
        return 1 - (1 - self.mean_loss) * (1 - min(1.0, 8 * octets * self.bit_errors))

    @property
    def swallows(self) -> bool:
        """Return whether nothing leaves over the cable."""
        return self.unplugged or (self.black_hole and self.one_way != "in")

    @property
    def swallows_arrivals(self) -> bool:
        """Return whether nothing that comes over the cable arrives."""
        if self.black_hole and self.one_way == "in":
            return True
        return self.arriving and (self.unplugged or (self.black_hole and not self.one_way))

    def seen_from_b(self) -> Faults:
        """Return the faults of a cable as the port at its end ``b`` sees them."""
        return replace(self, one_way={"": "", "out": "in", "in": "out"}[self.one_way])

    def beside_link(self) -> Faults:
        """Return the faults that are left to the switch where the engine loses frames on cables.

        That is where a cable has a link layer, which sees frames leave and arrive.
        """
        return replace(self, loss=0.0, burst_begin=0.0, bit_errors=0.0)

    def packed(self) -> bytes:
        """Return the settings in the layout that the switch program reads."""
        chances = (
            self.loss,
            self.burst_begin,
            self.burst_end,
            self.burst_loss,
            self.corruption,
            self.duplication,
            self.reordering,
        )
        striking = any(
            (
                *(self.loss, self.burst_begin, self.corruption, self.duplication),
                *(self.reordering, self.bit_errors),
            )
        )
        faulted = FAULTS_DEPARTURES | (FAULTS_ARRIVALS if self.arriving else 0)
        return FAULT_SETTINGS.pack(
            *(round(chance * WHOLE) for chance in chances),
            min(MOST_BIT_ERRORS, round(8 * self.bit_errors * WHOLE * (1 << BIT_ERROR_SHIFT))),
            FAULTS_DEPARTURES * self.swallows
            | FAULTS_ARRIVALS * self.swallows_arrivals
            | WITHOUT_CARRIER * self.unplugged,
            faulted * striking,
        )


NONE = Faults()
