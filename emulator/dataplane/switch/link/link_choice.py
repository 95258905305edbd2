"""Link layer retry (UES 5.1) and credit-based flow control (UES 5.2), as a switch's parameters.

Both are off unless a user says ``llr=on`` or ``cbfc=on``.  They hold at both ends of every cable
that a switch is at.  Defaults are those of a conformance test's model of UES 1.0.3 where there are
any; the buffers follow from cable and rate (:mod:`emulator.dataplane.switch.link.link_fitting`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from emulator.errors import Misfit, UserError
from topologies.units import UnitError, parse_size, parse_time_ns

#: Frames that may be outstanding: by default, and at most.
OUTSTANDING_FRAMES, MOST_OUTSTANDING = 2047, 524_288
REPLAY_TIMER_NS = 65_535
#: A count of replays that stands for any number, and its name here.
UNLIMITED_REPLAYS, UNLIMITED = 255, "unlimited"
CELL_OCTETS, SMALLEST_CELL, LARGEST_CELL = 64, 32, 2048
#: Octets that a frame counts beside its own, FCS included.
FRAME_OVERHEAD, LEAST_OVERHEAD, MOST_OVERHEAD = -4, -16, 127
CREDIT_TIMER_NS = 10_000
LLR, CBFC = "llr", "cbfc"
OF_LLR = ("llr_buffer", "llr_frames", "llr_timer", "llr_replays")
OF_CBFC = ("cbfc_buffer", "cbfc_cell", "cbfc_overhead", "cbfc_timer")
LINK_PARAMETERS = (LLR, *OF_LLR, CBFC, *OF_CBFC)


@dataclass(frozen=True, kw_only=True)
class LlrChoice:
    """Link layer retry.

    ``buffer_bytes`` of a replay buffer: None for what the cable needs.  ``replays`` is how often in
    a row a frame is replayed before the link gives up, None without a limit.
    """

    buffer_bytes: int | None = None
    frames: int = OUTSTANDING_FRAMES
    timer_ns: int = REPLAY_TIMER_NS
    replays: int | None = None

    def written(self) -> dict[str, str]:
        """Return the parameters in the form that :func:`link_choices` reads."""
        parts = {LLR: "on"}
        if self.buffer_bytes is not None:
            parts["llr_buffer"] = str(self.buffer_bytes)
        if self.frames != OUTSTANDING_FRAMES:
            parts["llr_frames"] = str(self.frames)
        if self.timer_ns != REPLAY_TIMER_NS:
            parts["llr_timer"] = f"{self.timer_ns}ns"
        if self.replays is not None:
            parts["llr_replays"] = str(self.replays)
        return parts


@dataclass(frozen=True, kw_only=True)
class CbfcChoice:
    """Credit-based flow control of the data class.

    ``buffer_bytes`` of a port's receive buffer: None for what the cable needs.  ``cell_bytes`` is
    what a credit stands for, ``overhead_bytes`` what each frame counts beside its octets.
    """

    buffer_bytes: int | None = None
    cell_bytes: int = CELL_OCTETS
    overhead_bytes: int = FRAME_OVERHEAD
    timer_ns: int = CREDIT_TIMER_NS

    def written(self) -> dict[str, str]:
        """Return the parameters in the form that :func:`link_choices` reads."""
        parts = {CBFC: "on"}
        if self.buffer_bytes is not None:
            parts["cbfc_buffer"] = str(self.buffer_bytes)
        if self.cell_bytes != CELL_OCTETS:
            parts["cbfc_cell"] = str(self.cell_bytes)
        if self.overhead_bytes != FRAME_OVERHEAD:
            parts["cbfc_overhead"] = str(self.overhead_bytes)
        if self.timer_ns != CREDIT_TIMER_NS:
            parts["cbfc_timer"] = f"{self.timer_ns}ns"
        return parts


def link_choices(written: dict[str, str]) -> tuple[LlrChoice | None, CbfcChoice | None]:
    """Take what is about the link layer out of ``written``, and return the two choices.

    None: it is off.  Raises UserError for a value that no link has.
    """
    given = {key: written.pop(key) for key in LINK_PARAMETERS if key in written}
    llr, cbfc = (_is_on(name, given.pop(name, "off")) for name in (LLR, CBFC))
    for name, on, parameters in ((LLR, llr, OF_LLR), (CBFC, cbfc, OF_CBFC)):
        for key in parameters:
            if key in given and not on:
                raise UserError(f"{key} says nothing without {name}=on: add that, or leave it out")
    return (_llr(given) if llr else None), (_cbfc(given) if cbfc else None)


def _llr(given: Mapping[str, str]) -> LlrChoice:
    frames = _whole(given, "llr_frames", 1, MOST_OUTSTANDING, OUTSTANDING_FRAMES)
    replays = None
    if given.get("llr_replays", UNLIMITED) != UNLIMITED:
        replays = _whole(given, "llr_replays", 1, UNLIMITED_REPLAYS, UNLIMITED_REPLAYS)
    return LlrChoice(
        buffer_bytes=_read(given, "llr_buffer", parse_size),
        frames=frames,
        timer_ns=_timer(given, "llr_timer", REPLAY_TIMER_NS),
        replays=None if replays == UNLIMITED_REPLAYS else replays,
    )


def _cbfc(given: Mapping[str, str]) -> CbfcChoice:
    return CbfcChoice(
        buffer_bytes=_read(given, "cbfc_buffer", parse_size),
        cell_bytes=_whole(given, "cbfc_cell", SMALLEST_CELL, LARGEST_CELL, CELL_OCTETS),
        overhead_bytes=_whole(
            given, "cbfc_overhead", LEAST_OVERHEAD, MOST_OVERHEAD, FRAME_OVERHEAD
        ),
        timer_ns=_timer(given, "cbfc_timer", CREDIT_TIMER_NS),
    )


def _is_on(key: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise UserError(f"{key} is {value!r}: a switch takes {key}=on or {key}=off")
    return value == "on"


def _read(given: Mapping[str, str], key: str, reader: Callable[[str], int]) -> int | None:
    if key not in given:
        return None
    try:
        return reader(given[key])
    except UnitError as error:
        raise Misfit(f"{key} of the switch: {error}", key) from None


def _timer(given: Mapping[str, str], key: str, usual_ns: int) -> int:
    timer_ns = _read(given, key, parse_time_ns)
    if timer_ns is None:
        return usual_ns
    if timer_ns <= 0:
        raise Misfit(f"{key} of the switch is {given[key]}: a timer runs for longer than 0", key)
    return timer_ns


def _whole(given: Mapping[str, str], key: str, least: int, most: int, usual: int) -> int:
    text = given.get(key, str(usual))
    number = text.removeprefix("-")
    if not (number.isascii() and number.isdecimal() and least <= int(text) <= most):
        hint = f", or {UNLIMITED}" if key == "llr_replays" else ""
        raise Misfit(f"{key} is {text!r}: give a number of {least} to {most}{hint}", key)
    return int(text)


DESCRIBED_LINKS: Mapping[str, tuple[str, str]] = {
    LLR: ("on|off", "cables replay frames that bit errors took (UES 5.1); virtual clock only"),
    "llr_buffer": ("SIZE", "of a port's replay buffer; default what rate and cable ask for"),
    "llr_frames": (f"1..{MOST_OUTSTANDING}", f"outstanding; default {OUTSTANDING_FRAMES}"),
    "llr_timer": ("TIME", f"without an ACK, before a replay; default {REPLAY_TIMER_NS}ns"),
    "llr_replays": ("N|unlimited", "in a row before a port sends without retry; default unlimited"),
    CBFC: ("on|off", "lossless: credits in place of pauses (UES 5.2); virtual clock only"),
    "cbfc_buffer": ("SIZE", "that a port receives data into; default what rate and cable ask for"),
    "cbfc_cell": (f"{SMALLEST_CELL}..{LARGEST_CELL}", f"octets of a credit; default {CELL_OCTETS}"),
    "cbfc_overhead": (
        f"{LEAST_OVERHEAD}..{MOST_OVERHEAD}",
        f"octets that a frame counts beside its own; default {FRAME_OVERHEAD}",
    ),
    "cbfc_timer": ("TIME", f"between repairs of lost credits; default {CREDIT_TIMER_NS // 1000}us"),
}
