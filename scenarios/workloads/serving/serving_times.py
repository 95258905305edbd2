"""When requests of a serving job got their tokens, from the messages of an iteration.

TTFT is the time from arrival to the first token, which decode makes.  It is the sum of the wait
until prefill begins, T_prefill, T_transfer and T_decode_init
(draft-calabria-bmwg-ai-fabric-inference-bench, 6.1). T_transfer lasts from the end of prefill until
all keys and values are at the decode GPUs.  ITL is the time between two tokens.  GPUs compute
exactly as long as in the schedule, so that the moments between messages follow from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.run.measures.message_times import Iteration
from scenarios.workloads.exchange_times import ExchangeParts
from scenarios.workloads.serving.serving_job import ServingJob
from scenarios.workloads.serving.serving_program import Served


@dataclass(frozen=True, kw_only=True)
class RequestTimes:
    """The moments of a request in ns after the common start, and its transfer of keys and values.

    ``transfer_gbps`` are the octets of keys and values over the time in which any of them was
    under way.
    """

    arrival_ns: int
    prefill_start_ns: int
    prefill_end_ns: int
    cached_ns: int
    tokens_ns: tuple[int, ...]
    transfer_gbps: float

    @property
    def wait_ns(self) -> int:
        """Return how long the request waits for its prefill."""
        return self.prefill_start_ns - self.arrival_ns

    @property
    def transfer_ns(self) -> int:
        """Return T_transfer: what of the transfer prefill does not hide."""
        return self.cached_ns - self.prefill_end_ns

    @property
    def decode_init_ns(self) -> int:
        """Return T_decode_init: a place in the batch, and the first step."""
        return self.tokens_ns[0] - self.cached_ns

    @property
    def ttft_ns(self) -> int:
        """Return the time to the first token."""
        return self.tokens_ns[0] - self.arrival_ns

    @property
    def itl_ns(self) -> list[int]:
        """Return the times between tokens."""
        return [int(gap) for gap in np.diff(self.tokens_ns)]

    @property
    def fabric_share(self) -> float:
        """Return which part of the time to the first token is transfer."""
        return self.transfer_ns / self.ttft_ns


def request_times(
    job: ServingJob, requests: Sequence[Served], parts: ExchangeParts, iteration: Iteration
) -> list[RequestTimes]:
    """Return the times of all requests in ``iteration``."""
    found: list[RequestTimes] = []
    for one in requests:
        which = parts.messages[one.cache_name]
        starts, ends = iteration.start_ns[which], iteration.end_ns[which]
        # what leaves last does so when the last layer is computed
        prefilled, cached = int(starts.max()), int(ends.max())
        begin = cached
        if one.decode_after is not None:
            begin = max(begin, found[one.decode_after].tokens_ns[-1])
        tokens = []
        for token in range(job.output):
            messages = parts.messages.get(one.token_name(token))
            begin = (
                begin + job.step_ns if messages is None else int(iteration.end_ns[messages].max())
            )
            tokens.append(begin)
        octets = int(iteration.length[which].sum())
        found.append(
            RequestTimes(
                arrival_ns=one.arrival_ns,
                prefill_start_ns=prefilled - job.prefill_ns,
                prefill_end_ns=prefilled,
                cached_ns=cached,
                tokens_ns=tuple(tokens),
                transfer_gbps=octets / _under_way_ns(starts, ends),
            )
        )
    return found


def _under_way_ns(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> int:
    """Return for how long any of the intervals was under way."""
    order = np.argsort(starts, kind="stable")
    begins, reach = starts[order], np.maximum.accumulate(ends[order])
    # an interval adds what lies beyond the reach of those before it
    before = np.concatenate([begins[:1], reach[:-1]])
    return int((reach - np.maximum(begins, before)).sum())
