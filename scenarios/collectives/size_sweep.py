"""Sizes of a collective's rows, and the columns that the NCCL tests have for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from emulator.errors import UserError
from emulator.scenario import Outcome, Trial, parameter
from topologies.parts.design_parameters import COUNT, SIZE

DTYPE = "float32"
ELEMENT_BYTES = 4
WARMUPS = replace(COUNT, minimum=0)


@dataclass(frozen=True, kw_only=True)
class SizeSweep:
    """The parameters of a collective that is run with several sizes, one after the other."""

    min_size: int = parameter(32 * 2**10, SIZE, help="smallest size of the sweep")
    max_size: int = parameter(8 * 2**20, SIZE, help="largest size of the sweep")
    factor: int = parameter(16, COUNT, help="each size is the previous one times this")
    sizes: tuple[int, ...] = parameter((), SIZE, many=True, help="sizes instead of the sweep")
    warmups: int = parameter(1, WARMUPS, help="iterations before those that count")
    iterations: int = parameter(2, COUNT, help="iterations that count, for each size")

    def __post_init__(self) -> None:
        if not self.sizes and self.min_size > self.max_size:
            raise UserError(
                f"min_size is {self.min_size} and max_size {self.max_size}; "
                "give a max_size of at least min_size"
            )
        if not self.sizes and self.factor == 1 and self.min_size != self.max_size:
            raise UserError("factor=1 would never reach max_size; give a factor of at least 2")
        for size in self.sweep:
            if size % ELEMENT_BYTES:
                above = size - size % ELEMENT_BYTES + ELEMENT_BYTES
                raise UserError(
                    f"a size of {size} B is not divisible into {ELEMENT_BYTES}-octet {DTYPE} "
                    f"elements; take {above} B"
                )

    @property
    def sweep(self) -> tuple[int, ...]:
        """The sizes to run, in octets."""
        if self.sizes:
            return self.sizes
        sizes = [self.min_size]
        while self.factor > 1 and sizes[-1] * self.factor <= self.max_size:
            sizes.append(sizes[-1] * self.factor)
        return tuple(sizes)

    def parts(self, ranks: int) -> tuple[int, ...]:
        """Return the size of each rank's part, for each size of the sweep, in octets.

        A size that is no multiple of an element for each rank is rounded down, as in the NCCL
        tests.  UserError if nothing is left of it.
        """
        unit = ranks * ELEMENT_BYTES
        for size in self.sweep:
            if size < unit:
                raise UserError(
                    f"a size of {size} B has no {ELEMENT_BYTES}-octet element for each of {ranks} "
                    f"ranks; take {unit} B or more"
                )
        return tuple(size // unit * ELEMENT_BYTES for size in self.sweep)


def nccl_columns(
    trial: Trial, outcome: Outcome, *, redop: str, bus_factor: float, parts: int = 1
) -> Mapping[str, object]:
    """Return the values of a row as the NCCL tests define them.

    algbw is the size over the time, and busbw is ``bus_factor`` times that, in GB/s.  ``count``
    is that of the call: where each rank owns one of ``parts`` parts, the elements of one.
    """
    algbw = trial.size_bytes / outcome.mean_ns  # octets per ns are GB/s
    return {
        "count": trial.size_bytes // parts // ELEMENT_BYTES,
        "type": "float",
        "redop": redop,
        "root": -1,
        "algbw_gbps": algbw,
        "busbw_gbps": algbw * bus_factor,
    }
