"""Load balancing: the ways in which a switch chooses among equal next hops, by name.

All but ``flow`` and, if its gap exceeds the difference between paths, ``flowlet`` reorder whatever
passes: ROD PDCs and TCP included.  The choice is among routed next hops; a bridge has none.

The switch program has the methods of :class:`Balancing`, in C and in Python.  A method that a user
registers has a function in Python, which the model calls; the kernel refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from emulator.errors import UserError
from topologies.registry import Registry
from uet.wire.codes import NATIVE_PROTOCOL


class Balancing(IntEnum):
    """The methods of the switch program, as it numbers them."""

    KERNEL = 0  # not at all: the kernel hashes
    FLOW = 1
    FLOWLET = 2
    PACKET = 3
    ROUND_ROBIN = 4
    LEAST_LOADED = 5


class Arrival(NamedTuple):
    """An IP packet that has come to a port of a switch.

    ``flow`` has 64 bits that follow from the packet's addresses, protocol, and ports or entropy,
    and from the switch's seed.  ``number`` is how many came to the port before it.  ``seed``, 64
    bits, differs by port and by the run's seed.  ``now_ns`` is fabric time.
    """

    flow: int
    number: int
    seed: int
    now_ns: int


@dataclass(frozen=True, kw_only=True)
class BalancingMethod:
    """A way to choose the next hop of each packet.

    ``choose`` returns a number of 32 bits: of N equal next hops the packet takes number
    ``choice * N >> 32``, in the order of the route.  It is called once for each IP packet that
    comes to a port, routed or not, and nothing else may depend on it.  None: the switch program has
    the method under its ``number``.
    """

    name: str
    meaning: str
    choose: Callable[[Arrival], int] | None = None
    number: Balancing | None = None


METHODS: Registry[BalancingMethod] = Registry("load balancing")
for _number, _meaning in {
    Balancing.KERNEL: "the kernel's own hash",
    Balancing.FLOW: "one hop for each flow, hashed with the switch's seed",
    Balancing.FLOWLET: "a new hop when a flow has paused for longer than a gap",
    Balancing.PACKET: "a random hop for each packet",
    Balancing.ROUND_ROBIN: "the next hop for each packet to a destination",
    Balancing.LEAST_LOADED: "the hop whose egress queues hold the fewest octets, ties in turn",
}.items():
    _name = _number.name.lower().replace("_", "-")
    METHODS.register(BalancingMethod(name=_name, meaning=_meaning, number=_number))

#: Methods whose candidates are loaded before anything is sent
#: (:func:`emulator.dataplane.switch.bpf.port_program.set_route`).
PRELOADED_METHODS = frozenset({Balancing.ROUND_ROBIN, Balancing.LEAST_LOADED})
#: The first number of methods that only the model has; they follow in the order of the registry.
FIRST_IN_PYTHON = 1 << 16


def number_of(name: str) -> int:
    """Return the number by which the settings of a port name the method."""
    number = METHODS[name].number
    return FIRST_IN_PYTHON + list(METHODS).index(name) if number is None else number


@cache
def _method(number: int) -> BalancingMethod:
    return list(METHODS.values())[number - FIRST_IN_PYTHON]


def chosen_in_python(number: int, arrival: Arrival) -> int:
    """Return what the method ``number`` of a user chooses for ``arrival``: 32 bits.

    Raises UserError for any other result.
    """
    method = _method(number)
    choice = method.choose(arrival) if method.choose is not None else None
    if not isinstance(choice, int) or not 0 <= choice < 1 << 32:
        raise UserError(
            f"{METHODS.place(method.name)}: balance={method.name} has chosen {choice!r}; a choice "
            "is a whole number of 32 bits"
        )
    return choice


def check_kernel(name: str) -> None:
    """Raise UserError for a method that the program in the kernel does not have."""
    if METHODS[name].number is None:
        raise UserError(
            f"balance={name} is in Python, which the switch program in the kernel cannot call: "
            "take --fabric model of uetemu run, or another balance, such as packet"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancing:
    """One switch's way.  ``switch`` numbers the switches of a lab from 0.

    ``seed`` should differ between switches, or all tiers choose alike and paths stay unused.
    ``flowlet_gap_ns`` is fabric time.
    """

    method: int
    switch: int = 0
    seed: int = 0
    flowlet_gap_ns: int = 0
    native_protocol: int = NATIVE_PROTOCOL

    def __post_init__(self) -> None:
        if self.method == Balancing.FLOWLET and self.flowlet_gap_ns <= 0:
            raise UserError("flowlets need a gap: set flowlet_gap_ns, some base RTTs, above 0")


KERNEL = LoadBalancing(method=Balancing.KERNEL)
