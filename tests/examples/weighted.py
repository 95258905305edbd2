"""A way of spraying of one's own: two random EVs, and the one that had fewer marks.

uetemu run permutation --plugin ./weighted.py --transport uet:spray=two,two.forget=32
"""

from dataclasses import dataclass

from uet.congestion.congestion_parameters import Parameters, parameter
from uet.congestion.spraying.paths import CLEAN, draw_evs
from uet.congestion.spraying.policies import SPRAYING, SprayedPeer, Spraying


@dataclass(frozen=True, kw_only=True)
class TwoParameters(Parameters):
    forget: int = parameter(64, 1, 10_000, whole=True, help="answers after which marks count half")


class TwoChoices:
    def __init__(self, peer: SprayedPeer) -> None:
        self.rng, self.forget = peer.rng, peer.tuned.forget
        self.evs = draw_evs(peer.rng, peer.evs)
        self.marks = dict.fromkeys(self.evs, 0)
        self.answers = 0

    def pick(self) -> int:
        return min(self.rng.choice(self.evs), self.rng.choice(self.evs), key=self.marks.__getitem__)

    def on_feedback(self, ev: int, how: int, now: int, packets: int = 1) -> None:
        self.answers += packets
        if self.answers >= self.forget:
            self.answers = 0
            self.marks = {ev: marks // 2 for ev, marks in self.marks.items()}
        if how != CLEAN and ev in self.marks:
            self.marks[ev] += 1

    def timed_out(self) -> None:
        pass


SPRAYING.register(
    Spraying(
        name="two",
        meaning="of two random EVs the one with fewer marks",
        open=TwoChoices,
        parameters=TwoParameters,
    )
)
