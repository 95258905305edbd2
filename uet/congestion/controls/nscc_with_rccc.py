"""NSCC and RCCC together: a window for the network, and credit for the last hop (UES 3.6)."""

from __future__ import annotations

from uet.congestion.congestion_parameters import NsccParameters
from uet.congestion.control_registry import CONTROLS, CongestionControl, Tuning
from uet.congestion.controls import rccc
from uet.congestion.controls.nscc import Nscc


def _window(tuning: Tuning, now: int) -> Nscc:
    return Nscc(tuning.of("nscc", NsccParameters), now, credited=True)


CONTROLS.register(
    CongestionControl(
        name="both",
        meaning="nscc and rccc",
        window=_window,
        credit=rccc.credit,
        reads=("nscc", "rccc"),
        adaptive=True,
    )
)
