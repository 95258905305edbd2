"""A metric of one's own: which part of the data packets were sent again.

uetemu run incast --plugin ./resent.py
"""

from emulator.metrics import ENDPOINT, METRICS, Metric
from emulator.scenario import MeasuredTrial


def resent_share(measured: MeasuredTrial) -> float | None:
    counters = measured.outcome.counters
    again = counters.get("tx_retransmitted_packets", 0)
    sent = counters.get("tx_data_packets", 0) + again
    return again / sent if sent else None


METRICS.register(
    Metric(
        key="resent_share",
        meaning="data packets that were sent again, over all that were sent",
        compute=resent_share,
        heading="again",
        unit="%",
        scale=100,
        decimals=1,
        better=-1,
        observed_at=ENDPOINT,
    )
)
