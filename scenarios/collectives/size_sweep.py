"""Sizes of a collective's rows, from the smallest to the largest."""

from __future__ import annotations

from dataclasses import dataclass, replace

from emulator.errors import UserError
from emulator.scenario import parameter, refuse_idle
from scenarios.collectives.data_types import ALIASES, DATA_TYPES, DataType
from topologies.parts.design_parameters import COUNT, SIZE

WARMUPS = replace(COUNT, minimum=0)
#: Parts of a buffer are whole multiples of so many octets, as in the NCCL tests.
PART_OCTETS = 16


@dataclass(frozen=True, kw_only=True)
class SizeSweep:
    """The parameters of a collective that is run with several sizes, one after the other."""

    min_size: int = parameter(
        32 * 2**10, SIZE, help="smallest size of the sweep", aliases=("minbytes",)
    )
    max_size: int = parameter(
        8 * 2**20, SIZE, help="largest size of the sweep", aliases=("maxbytes",)
    )
    factor: int = parameter(
        16, COUNT, help="each size is the previous one times this", aliases=("stepfactor",)
    )
    sizes: tuple[int, ...] = parameter((), SIZE, many=True, help="sizes instead of the sweep")
    warmups: int = parameter(
        1, WARMUPS, help="iterations before those that count", aliases=("warmup_iters",)
    )
    iterations: int = parameter(
        2, COUNT, help="iterations that count, for each size", aliases=("iters",)
    )
    datatype: str = parameter("float", choices=(*DATA_TYPES, *ALIASES), help="type of the elements")

    def __post_init__(self) -> None:
        if self.sizes:
            refuse_idle(self, ("min_size", "max_size", "factor"), "beside sizes")
        if not self.sizes and self.min_size > self.max_size:
            raise UserError(
                f"min_size is {self.min_size} and max_size {self.max_size}; "
                "give a max_size of at least min_size"
            )
        if not self.sizes and self.factor == 1 and self.min_size != self.max_size:
            raise UserError("factor=1 would never reach max_size; give a factor of at least 2")
        octets = self.element.octets
        for size in self.sweep:
            if size % octets:
                above = size - size % octets + octets
                raise UserError(
                    f"a size of {size} B is not divisible into {octets}-octet "
                    f"{self.element.numpy_name} elements; take {above} B"
                )

    @property
    def element(self) -> DataType:
        return DATA_TYPES[ALIASES.get(self.datatype, self.datatype)]

    @property
    def sweep(self) -> tuple[int, ...]:
        """Return the sizes to run, in octets."""
        if self.sizes:
            return self.sizes
        sizes = [self.min_size]
        while self.factor > 1 and sizes[-1] * self.factor <= self.max_size:
            sizes.append(sizes[-1] * self.factor)
        return tuple(sizes)

    def parts(self, ranks: int) -> tuple[int, ...]:
        """Return the size of each rank's part, for each size of the sweep, in octets.

        A part is rounded down to 16 octets, as in the NCCL tests.  Raises UserError if nothing is
        left of it.
        """
        unit = ranks * PART_OCTETS
        for size in self.sweep:
            if size < unit:
                raise UserError(
                    f"a size of {size} B has no {PART_OCTETS} octets for each of {ranks} ranks; "
                    f"take {unit} B or more"
                )
        return tuple(size // unit * PART_OCTETS for size in self.sweep)
