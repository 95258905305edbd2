"""Sizes of messages and times of computing, divided by one number, so that their ratio stays.

A message is not made smaller than one MTU, or than it was before.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from scenarios.workloads.transformer.step_operations.synthetic_tensors import ELEMENT_OCTETS

#: Payload of a packet that fills an MTU of 4 KiB, as UET and RoCEv2 have it.
MTU_OCTETS = 4096


@dataclass
class StepScale:
    """The divisors of octets and times; ``flops_per_ns`` is the rate of a GPU.

    ``raised`` counts exchanges whose messages would be shorter than an MTU, ``exchanges`` all.
    """

    divisor: int
    flops_per_ns: float
    raised: int = 0
    exchanges: int = 0

    def octets(self, whole: int | Fraction, parts: int) -> int:
        """Return the scaled octets of an exchange in ``parts`` messages of whole elements.

        The parts are equal.
        """
        message = Fraction(whole) / parts
        floor = min(message, Fraction(MTU_OCTETS))
        scaled = message / self.divisor
        self.exchanges += 1
        if scaled < floor:
            self.raised += 1
            scaled = floor
        elements = max(1, int(scaled // ELEMENT_OCTETS))
        return elements * ELEMENT_OCTETS * parts

    def duration_ns(self, flops: Fraction) -> int:
        """Return how long a GPU computes ``flops``."""
        return round(float(flops) / (self.flops_per_ns * self.divisor))
