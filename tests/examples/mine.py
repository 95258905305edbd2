"""A congestion control of one's own: additive increase, and a cut at a mark.

uetemu run incast --plugin ./mine.py --transport uet:cc=mine,mine.gain=2 --fabric model
"""

from dataclasses import dataclass

from uet.congestion.congestion_parameters import PathParameters, parameter
from uet.congestion.control_registry import CONTROLS, CongestionControl
from uet.congestion.controls.fixed_window import FixedWindow


@dataclass(frozen=True, kw_only=True)
class MineParameters(PathParameters):
    gain: float = parameter(1.0, 0, 100, help="full packets by which a window grows in an RTT")
    cut: float = parameter(0.5, 0, 1, help="part of the window that a mark leaves")


class Mine(FixedWindow):
    def __init__(self, parameters: MineParameters) -> None:
        super().__init__(parameters.max_wnd)
        self.tuned = parameters
        self.cut_at = 0  # when the window was cut (ns)

    def on_ack(self, octets, marked, rtt, now, penalty=0, restore=False):  # type: ignore[no-untyped-def]
        super().on_ack(octets, marked, rtt, now)
        least, most = self.tuned.mtu, self.tuned.max_wnd
        if not marked:
            grown = self.window_octets + self.tuned.gain * least * octets / self.window_octets
            self.window_octets = min(int(grown), most)
        elif now - self.cut_at > self.tuned.base_rtt:  # once in an RTT
            self.window_octets = max(int(self.window_octets * self.tuned.cut), least)
            self.cut_at = now


CONTROLS.register(
    CongestionControl(
        name="mine",
        meaning="additive increase, and a cut at a mark",
        window=lambda tuning, now: Mine(tuning.of("mine", MineParameters)),
        parameters=MineParameters,
        adaptive=True,
    )
)
