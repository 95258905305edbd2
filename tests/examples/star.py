"""An algorithm of AllReduce of one's own, and a collective of its own.

uetemu run allreduce --plugin ./star.py --param algorithm=star --fabric model
uetemu run exchange --plugin ./star.py --fabric model
"""

from dataclasses import dataclass

from emulator.scenario import SCENARIOS, ScenarioEntry, parameter
from scenarios.collectives.algorithm_registry import WITHOUT_RINGS, algorithm, algorithms
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective import INPUT, OUTPUT, CollectiveBenchmark
from scenarios.collectives.collective_call import STAGING, CollectiveCall
from scenarios.collectives.collective_parameters import CollectiveParameters


@algorithm("allreduce", "star", idle=WITHOUT_RINGS)
def star(call: CollectiveCall) -> None:
    """Send all to the first member, which sums and sends the sums back."""
    all_of_it = Block(0, call.size)
    total = call.own(0, all_of_it, all_of_it)
    for member in range(1, call.members):
        sent = call.send(member, 0, call.pieces(call.source, all_of_it), None, STAGING)
        total = call.combine(0, sent, total)
    total = call.complete(0, total)
    call.copy(0, total, all_of_it, call.result)
    for member in range(1, call.members):
        call.send(0, member, total, all_of_it, call.result)


@algorithm("exchange", "pairs", idle=WITHOUT_RINGS)
def pairs(call: CollectiveCall) -> None:
    """Send the buffer to the member whose number differs in the last bit."""
    whole = Block(0, call.size)
    for member in range(call.members):
        call.send(member, member ^ 1, call.pieces(call.source, whole), whole, call.result)


@dataclass(frozen=True, kw_only=True)
class Parameters(CollectiveParameters):
    algorithm: str = parameter(
        "pairs", choices=lambda: algorithms("exchange", first="pairs"), help="how the data travel"
    )


SCENARIOS.register(
    ScenarioEntry(
        name="exchange",
        form=CollectiveBenchmark(
            sheet="Exchange: each GPU sends its buffer to its neighbour, and gets that of it.",
            name="Exchange",
            title="exchange",
            key="exchange",
            Parameters=Parameters,
            bus_factor=lambda members: 1.0,
            buffers=lambda data, root, position: {INPUT: data.size, OUTPUT: data.size},
            inputs=lambda data, root, position: {INPUT: data.whole(position)},
            expected=lambda data, root, position: {OUTPUT: data.whole(position ^ 1)},
        ),
    )
)
