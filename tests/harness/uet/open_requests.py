"""Open requests without a PDC: a window whose packets count as sent, and the flow they are of."""

import random
from typing import Any

from uet.congestion.context import CongestionContext
from uet.congestion.controls.fixed_window import FixedWindow
from uet.congestion.spraying.paths import SinglePath
from uet.pds.open_requests import OpenRequests
from uet.pds.window import MASK

WINDOW = 1 << 20
SIZE = 4_096
RTO = 1_000
PEER_RANGE = 128


def opened(start: int, *, window: int = WINDOW, **changes: Any) -> OpenRequests:
    """Return the records of a source that begins at ``start``, with their rings."""
    paths = SinglePath(random.Random(1))
    context = CongestionContext(window=FixedWindow(window), credit=None, paths=paths)
    settings: dict[str, Any] = {"ordered": False, "peer_range": PEER_RANGE, "rto": RTO}
    settings |= {"constant_rto": False} | changes
    requests = OpenRequests(start, context.flow(), **settings)
    requests.make_rings()
    return requests


def sent(requests: OpenRequests, count: int, now: int = 0) -> list[int]:
    """Record ``count`` packets as sent, and return their PSNs."""
    window = requests.window
    psns: list[int] = []
    for _ in range(count):
        if window.outstanding > requests.slot_mask:
            requests.grow()
        psn = window.next
        slot = psn & requests.slot_mask
        requests.size[slot] = SIZE
        requests.index[slot] = len(psns)
        requests.copies[slot] = 1
        requests.timer.sent(psn, now)
        window.next = (psn + 1) & MASK
        requests.flow.on_send(SIZE)
        psns.append(psn)
    return psns
