"""A way of spraying of one's own: of some random EVs the one that had the fewest marks.

uetemu run permutation --plugin ./best.py --transport uet:spray=best,best.tried=3
"""

from dataclasses import dataclass

from uet.congestion.congestion_parameters import Parameters, parameter
from uet.congestion.spraying.paths import CLEAN, draw_evs
from uet.congestion.spraying.policies import SPRAYING, SprayedPeer, Spraying


@dataclass(frozen=True, kw_only=True)
class BestParameters(Parameters):
    tried: int = parameter(2, 1, 64, help="random EVs of which a packet takes the best")


class Best:
    def __init__(self, peer: SprayedPeer) -> None:
        self.rng, self.tried = peer.rng, peer.tuned.tried
        self.evs = draw_evs(peer.rng, peer.evs)
        self.marks = dict.fromkeys(self.evs, 0)

    def pick(self) -> int:
        return min(self.rng.choices(self.evs, k=self.tried), key=self.marks.__getitem__)

    def on_feedback(self, ev: int, how: int, now: int, packets: int = 1) -> None:
        if ev in self.marks:  # each clean answer forgives one mark
            self.marks[ev] = max(0, self.marks[ev] + (-1 if how == CLEAN else 1))

    def timed_out(self) -> None:
        pass


SPRAYING.register(
    Spraying(
        name="best",
        meaning="of some random EVs that with the fewest marks",
        open=Best,
        parameters=BestParameters,
    )
)
