"""Parameters that collectives share, in groups that a scenario puts together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Self

from emulator.errors import UserError
from emulator.scenario import parameter, refuse_idle
from scenarios.collectives.communicators import ALL
from scenarios.collectives.data_types import REDUCTIONS
from scenarios.collectives.exchange_matrix import Matrix
from scenarios.collectives.library import LIBRARIES, NO_LIBRARY
from scenarios.collectives.size_sweep import SizeSweep
from scenarios.collectives.tuning import AUTO
from topologies.model import TopologyError
from topologies.parts.design_parameters import COUNT, NUMBER, SIZE, TEXT, ParameterKind


def _thousandths(text: str) -> int:
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or value != round(value, 3) or abs(value) > 10**6:
        raise TopologyError(f"{text!r} is not a number of three decimals; write for example 1.2")
    return int(value * 1000)


EXPONENT = ParameterKind("number", "thousandths", 0, 5000, _thousandths, lambda n: f"{n / 1000:g}")
SHARE = replace(EXPONENT, maximum=1000)
FLAG = replace(COUNT, minimum=0, maximum=1)
#: The word for a row out of place and one in place of each size, as the NCCL tests have them.
BOTH = "both"
SLICE_BYTES = 64 * 2**10
#: Rounds of an exchange that NCCL has under way at a time.
PEERS = 8


def library_parameter() -> Any:
    """Return the parameter ``library``."""
    return parameter(
        NO_LIBRARY,
        choices=(NO_LIBRARY, *LIBRARIES),
        help="whose launch and steps GPUs take time for; none: GPUs take no time",
    )


def protocol_parameter() -> Any:
    """Return the parameter ``protocol``, which stands beside ``library``."""
    return parameter(
        AUTO,
        choices=(AUTO, "LL", "LL128", "Simple"),
        help="for a library: its protocol; auto: as its model chooses for each size",
    )


def channels_parameter() -> Any:
    """Return the parameter ``channels``."""
    return parameter(0, NUMBER, help="rings or trees side by side; 0: one for each GPU of a host")


@dataclass(frozen=True, kw_only=True)
class CollectiveParameters(SizeSweep):
    """The parameters of every collective."""

    algorithm: str = parameter("ring", choices=("ring",), help="how the data travel")
    ranks: str = parameter(
        ALL, TEXT, help="GPUs that take part: all, host, rail or /64 (side by side), or 0-3,8"
    )
    library: str = library_parameter()
    protocol: str = protocol_parameter()
    cut: tuple[int, ...] = parameter(
        (1,), COUNT, many=True,
        help="for a library: a size stands for one so many times as large, and all that its launch "
        "and steps take is so many times as short, which leaves the bandwidth of that size; one "
        "for all sizes, or one for each",
    )  # fmt: skip
    check: int = parameter(1, FLAG, help="1: compare every element; 0: compare none")

    def __post_init__(self) -> None:
        if self.library == NO_LIBRARY:
            refuse_idle(self, ("protocol", "cut"), f"beside library={NO_LIBRARY}")
        super().__post_init__()
        if len(self.cut) not in (1, count := len(self.sweep)):
            raise UserError(
                f"cut has {len(self.cut)} numbers for {count} sizes; give one, or one for each"
            )

    @property
    def reduction(self) -> str:
        """Return the reduction operation, or none."""
        return "none"

    @property
    def exact(self) -> bool:
        """Return whether results are the same in every order of operations."""
        return True

    @property
    def root_position(self) -> int:
        """Return the position of the root in its communicator."""
        return 0

    @property
    def is_in_place(self) -> bool:
        """Return whether the result replaces the source."""
        return False

    def placed(self) -> Sequence[Self]:
        """Return the parameters of each row of a size."""
        return (self,)

    @property
    def tuning_file(self) -> str:
        """Return the file of constants by which an algorithm is chosen, or nothing."""
        return ""

    def matrix(self, members: int, size: int, seed: int) -> Matrix | None:
        """Return who sends how much to whom in an exchange of unequal parts of ``size`` octets."""
        return None

    @property
    def is_shuffled(self) -> bool:
        """Return whether the library takes GPUs for neighbours that are none."""
        return False

    @property
    def channel_count(self) -> int:
        """Return how many rings or trees work side by side; 0: as many as GPUs in a host."""
        return 0

    @property
    def slice_octets(self) -> int:
        """Return the octets of the pieces in which data move on."""
        return SLICE_BYTES

    @property
    def peers_at_once(self) -> int:
        """Return how many rounds of an exchange are under way at a time."""
        return PEERS


@dataclass(frozen=True, kw_only=True)
class ReductionParameters(CollectiveParameters):
    """The parameters of collectives that reduce."""

    op: str = parameter("sum", choices=REDUCTIONS, help="reduction operation")
    data: str = parameter(
        "whole", choices=("whole", "random"),
        help="whole: numbers with the same result in every order; random: real numbers, "
        "checked within a derived bound",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.data == "random" and self.element.precision is None:
            raise UserError(
                f"data=random is for floats, and datatype is {self.datatype}; take data=whole, "
                "whose numbers use the whole range"
            )
        super().__post_init__()

    @property
    def reduction(self) -> str:
        """Return the reduction operation, or none."""
        return self.op

    @property
    def exact(self) -> bool:
        """Return whether results are the same in every order of operations."""
        return self.data == "whole"


@dataclass(frozen=True, kw_only=True)
class InPlaceParameters(CollectiveParameters):
    """The parameters of collectives whose result may replace the source."""

    in_place: str = parameter(
        "0",
        choices=("0", "1", BOTH),
        help="1: the result replaces the source; both: each size out of place, then in place",
    )

    @property
    def is_in_place(self) -> bool:
        """Return whether the result replaces the source."""
        return self.in_place == "1"

    def placed(self) -> Sequence[Self]:
        """Return the parameters of each row of a size."""
        if self.in_place != BOTH:
            return (self,)
        return replace(self, in_place="0"), replace(self, in_place="1")


@dataclass(frozen=True, kw_only=True)
class RootedParameters(CollectiveParameters):
    """The parameters of collectives that have a root."""

    root: int = parameter(0, NUMBER, help="position of the root among the GPUs that take part")

    @property
    def root_position(self) -> int:
        """Return the position of the root in its communicator."""
        return self.root


@dataclass(frozen=True, kw_only=True)
class ChannelParameters(CollectiveParameters):
    """The parameters of collectives whose data go round rings or along trees, in slices."""

    slice_bytes: int = parameter(SLICE_BYTES, SIZE, help="pieces in which a block moves on")
    channels: int = channels_parameter()

    order: str = parameter(
        "rail", choices=("rail", "shuffled"), help="whether neighbours in a ring share a rail"
    )

    def __post_init__(self) -> None:
        octets = self.element.octets
        if self.slice_bytes % octets:
            raise UserError(
                f"slice_bytes is {self.slice_bytes}, not a whole number of {octets}-octet "
                f"elements; give a multiple of {octets}"
            )
        super().__post_init__()

    @property
    def is_shuffled(self) -> bool:
        """Return whether the library takes GPUs for neighbours that are none."""
        return self.order == "shuffled"

    @property
    def channel_count(self) -> int:
        """Return how many rings or trees work side by side; 0: as many as GPUs in a host."""
        return self.channels

    @property
    def slice_octets(self) -> int:
        """Return the octets of the pieces in which data move on."""
        return self.slice_bytes


@dataclass(frozen=True, kw_only=True)
class ExchangeParameters(CollectiveParameters):
    """The parameters of exchanges that go in rounds."""

    peers: int = parameter(PEERS, COUNT, help="rounds that are under way at a time")

    @property
    def peers_at_once(self) -> int:
        """Return how many rounds of an exchange are under way at a time."""
        return self.peers
