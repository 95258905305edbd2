"""Collectives in the form of the NCCL tests: a row for each size.

Each entry is a scenario, which ``uetemu run`` knows by its name here.  Measured: for each size the
time from a common start until the last GPU is done, and from it

- algbw = size / time, and busbw = algbw times the ``bus_factor``, as the NCCL tests define them, in
  GB/s;
- ideal, a lower bound from link rates, header octets, cable and NVLink delays
  (``emulator.run.measures.ideal``), and how close the run came to it;
- data packets sent and sent again.

The size is that of the buffer of a rank; of AllGather and Gather that of the whole result, of
Scatter that of the root's buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.scenario import Contents, parameter, refuse_idle
from scenarios.collectives.algorithm_registry import algorithms
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective import INPUT, OUTPUT, CollectiveBenchmark, all_peers, same
from scenarios.collectives.collective_call import STAGING
from scenarios.collectives.collective_data import CollectiveData
from scenarios.collectives.collective_parameters import (
    EXPONENT,
    SHARE,
    ChannelParameters,
    CollectiveParameters,
    ExchangeParameters,
    InPlaceParameters,
    ReductionParameters,
    RootedParameters,
)
from scenarios.collectives.exchange_matrix import (
    Matrix,
    distance_matrix,
    read_matrix,
    zipf_matrix,
)
from scenarios.collectives.library import NO_LIBRARY
from scenarios.collectives.tuning import AUTO
from topologies.parts.design_parameters import SIZE, TEXT


def _algorithm(collective: str, first: str, help: str = "how the data travel") -> Any:
    return parameter(first, choices=lambda: algorithms(collective, first=first), help=help)


def _parameters(collective: str, first: str, *groups: type) -> type[CollectiveParameters]:
    """Return the parameters of ``groups`` and ``collective``'s algorithms, of which ``first``."""
    return make_dataclass(
        "Parameters",
        [("algorithm", str, _algorithm(collective, first))],
        bases=groups,
        frozen=True,
        kw_only=True,
    )


@dataclass(frozen=True, kw_only=True)
class AllReduceParameters(ReductionParameters, InPlaceParameters, ChannelParameters):
    algorithm: str = parameter(
        "ring",
        choices=lambda: (*algorithms("allreduce", first="ring"), AUTO),
        help="how the data travel; auto: as NCCL's model chooses for each size",
    )
    tuning: str = parameter(
        "", TEXT, help="for algorithm=auto: a YAML file of constants instead of NCCL's"
    )

    def __post_init__(self) -> None:
        if self.tuning and self.algorithm != AUTO:
            raise UserError(
                f"tuning={self.tuning} decides nothing with algorithm={self.algorithm}; take "
                f"algorithm={AUTO}, or leave tuning out"
            )
        if self.library != NO_LIBRARY:
            refuse_idle(self, ("tuning",), f"beside library={self.library}")
        super().__post_init__()

    @property
    def tuning_file(self) -> str:
        """Return the file of constants by which an algorithm is chosen, or nothing."""
        return self.tuning


allreduce = CollectiveBenchmark(
    sheet="""\
AllReduce over every GPU of the cluster: the gradient exchange of data-parallel training.

::

      host 0         host 1                    host 5
    +-----------+  +-----------+             +-----------+
    | 0 1 2 3   |  | 0 1 2 3   |    . . .    | 0 1 2 3   |     GPUs, NVLink inside a host
    +-|-|-|-|---+  +-|-|-|-|---+             +-|-|-|-|---+
      | | | |        | | | |                   | | | |
      | | | +--------|-|-|-+-------- rail3 ----|-|-|-+
      | | +----------|-|-+---------- rail2 ----|-|-+
      | +------------|-+------------ rail1 ----|-+
      +--------------+-------------- rail0 ----+
                                       |
                               spines (two here)

Traffic: ring AllReduce as NCCL does it, a reduce-scatter followed by an all-gather over flat rings
of all n GPUs, one ring (channel) per local rank.  Inside a host the ring walks over
NVLink; between hosts it leaves and enters through NICs of the same rail (drawing in
``scenarios.collectives.ring``).  Each GPU sums real numbers, and the result of every GPU is
compared with numpy's sum, element by element.

What should be seen: small sizes are bound by latency, 2(n-1) hops one after the other, so time
hardly grows with size.  Large sizes are bound by the NICs.  Each hop of a ring sends 2(n-1)/n of
its channel's share, and each NIC serves one hop of one channel. So with g GPUs per host the busbw
of a cluster may reach g times a NIC's rate, less headers: 4 x 50 GB/s for 400G NICs.  The spines
stay idle, because rings stay on their rails.

``algorithm`` chooses another way.  Trees and recursive doubling need fewer steps for small sizes;
``hierarchical`` sums inside hosts over NVLink first.  ``tree`` and ``double-tree`` lead over hosts,
with the GPUs of a host in a chain (``scenarios.collectives.algorithms``).  ``nvls`` sums in the
switches of scale-up networks, which halves what each GPU's port carries.

``algorithm=auto`` takes ring or double-tree for each size, by NCCL's model of time
(``scenarios.collectives.tuning``); the table names the choice, and ``result.json`` the times.

``order=shuffled`` places the ranks on the GPUs at random.  Most hops of a ring then cross the
fabric, and many of them change rail and climb to the spines. Each NIC serves several hops, and
busbw falls by the same factor.  With an odd number of hosts the hop that closes each ring has to
change rail even in rail order; ``cross_rail_hops`` counts such hops.
""",
    name="all_reduce",
    title="AllReduce",
    key="allreduce",
    Parameters=AllReduceParameters,
    bus_factor=lambda members: 2 * all_peers(members),
    buffers=lambda data, root, position: {INPUT: data.size, OUTPUT: data.size},
    inputs=lambda data, root, position: {INPUT: data.operand(position)},
    expected=lambda data, root, position: {OUTPUT: data.total_value},
    result=lambda data, root, position: Block(0, data.size),
)


def _own_part(data: CollectiveData, root: int, position: int) -> Block:
    return Block(position * data.part, data.part)


def _own_total(data: CollectiveData, root: int, position: int) -> Contents:
    octets = data.datatype.octets
    own = _own_part(data, root, position)
    begin = own.offset // octets
    return {OUTPUT: data.total_value[begin : begin + own.length // octets]}


reducescatter = CollectiveBenchmark(
    sheet="""\
ReduceScatter over every GPU of the cluster: each GPU gets the sum of its part of the gradients.

::

    before                          after
    rank 0   [a0 b0 c0 d0]          rank 0   [A . . .]     A = a0 + a1 + a2 + a3
    rank 1   [a1 b1 c1 d1]          rank 1   [. B . .]
    rank 2   [a2 b2 c2 d2]  ----->  rank 2   [. . C .]
    rank 3   [a3 b3 c3 d3]          rank 3   [. . . D]

Traffic: ring ReduceScatter as NCCL does it, over flat rings of all n GPUs; float32, sum. There is
one ring (channel) per local rank, and rings stay on their rails between hosts (drawing in
``scenarios.collectives.ring``).  Each GPU sums real numbers, and its part is compared with numpy's
sum, element by element.

What should be seen: half of an AllReduce of that size.  Small sizes are bound by the latency of
n-1 hops, large ones by the NICs.
""",
    name="reduce_scatter",
    title="ReduceScatter",
    key="reducescatter",
    Parameters=_parameters(
        "reducescatter", "ring", ReductionParameters, InPlaceParameters, ChannelParameters
    ),
    bus_factor=all_peers,
    buffers=lambda data, root, position: {INPUT: data.size, OUTPUT: data.size},
    inputs=lambda data, root, position: {
        INPUT: (own := data.operand(position)),
        OUTPUT: np.zeros_like(own),
    },
    expected=_own_total,
    result=_own_part,
    by_parts=True,
)


allgather = CollectiveBenchmark(
    sheet="""\
AllGather over every GPU of the cluster: sharded weights are made whole before a layer.

::

    before                          after
    rank 0   [A . . .]              rank 0   [A B C D]
    rank 1   [. B . .]              rank 1   [A B C D]
    rank 2   [. . C .]    ------>   rank 2   [A B C D]
    rank 3   [. . . D]              rank 3   [A B C D]

Traffic: ring AllGather as NCCL does it, over flat rings of all n GPUs. There is one ring (channel)
per local rank, and rings stay on their rails between hosts (drawing in
``scenarios.collectives.ring``). It is in place: the part of each rank lies in its result from the
start.  Every element of every result is compared.

What should be seen: half of an AllReduce of that size.  Small sizes are bound by the latency of
n-1 hops, large ones by the NICs.
""",
    name="all_gather",
    title="AllGather",
    key="allgather",
    Parameters=_parameters("allgather", "ring", InPlaceParameters, ChannelParameters),
    bus_factor=all_peers,
    buffers=lambda data, root, position: {INPUT: data.part, OUTPUT: data.size},
    inputs=lambda data, root, position: {INPUT: data.piece(position, position)},
    expected=lambda data, root, position: {OUTPUT: data.gathered},
    by_parts=True,
)


broadcast = CollectiveBenchmark(
    sheet="""\
Broadcast from one GPU to all others: initial weights leave the master rank.

::

    before                     after
    rank 0   [a b c d]         rank 0   [a b c d]
    rank 1   [. . . .]         rank 1   [a b c d]
    rank 2   [. . . .]  -----> rank 2   [a b c d]
    rank 3   [. . . .]         rank 3   [a b c d]

Traffic: the root's data go once round each rail ring in slices, one ring (channel) per local rank
(drawing in ``scenarios.collectives.ring``), as NCCL's Broadcast does.  With ``algorithm=binomial``
each step doubles the number of GPUs that have the data.  Every element of every result is compared.

What should be seen: with c slices a ring takes c + n-2 steps.  Small slices fill the pipeline soon,
and large sizes come near the rate of all NICs of a host together.  A binomial tree needs log2(n)
steps, but its root sends the whole of the data log2(n) times.
""",
    name="broadcast",
    title="Broadcast",
    key="broadcast",
    Parameters=_parameters(
        "broadcast", "ring", InPlaceParameters, RootedParameters, ChannelParameters
    ),
    bus_factor=same,
    buffers=lambda data, root, position: {
        INPUT: data.size if position == root else 0,
        OUTPUT: data.size,
    },
    inputs=lambda data, root, position: {INPUT: data.whole(root)} if position == root else {},
    expected=lambda data, root, position: {OUTPUT: data.whole(root)},
    rooted=True,
)


reduce = CollectiveBenchmark(
    sheet="""\
Reduce over all GPUs to one: the sum of all buffers ends at the root.

::

    before                     after
    rank 0   [a0 b0 c0 d0]     rank 0   [A B C D]     A = a0 + a1 + a2 + a3
    rank 1   [a1 b1 c1 d1]     rank 1   [. . . .]
    rank 2   [a2 b2 c2 d2] --> rank 2   [. . . .]
    rank 3   [a3 b3 c3 d3]     rank 3   [. . . .]

Traffic: partial sums go along each rail ring towards the root in slices, one ring (channel) per
local rank (drawing in ``scenarios.collectives.ring``), as NCCL's Reduce does.
``algorithm=binomial`` halves the number of GPUs that hold a part of the sum in each step.  Every
element of the root's result is compared.

What should be seen: the picture of Broadcast, the other way round.  In a binomial tree the root
receives the whole of the data log2(n) times, at times from several GPUs at once.
""",
    name="reduce",
    title="Reduce",
    key="reduce",
    Parameters=_parameters(
        "reduce",
        "ring",
        ReductionParameters,
        InPlaceParameters,
        RootedParameters,
        ChannelParameters,
    ),
    bus_factor=same,
    buffers=lambda data, root, position: {
        INPUT: data.size,
        OUTPUT: data.size if position == root else 0,
    },
    inputs=lambda data, root, position: {INPUT: data.operand(position)},
    expected=lambda data, root, position: {OUTPUT: data.total_value} if position == root else {},
    result=lambda data, root, position: Block(0, data.size if position == root else 0),
    rooted=True,
)


scatter = CollectiveBenchmark(
    sheet="""\
Scatter from one GPU to all: every GPU gets a part of its own from the root.

::

    before                     after
    rank 0   [a b c d]         rank 0   [a]
    rank 1   [. . . .]         rank 1   [b]
    rank 2   [. . . .]  -----> rank 2   [c]
    rank 3   [. . . .]         rank 3   [d]

Traffic: the root sends to its peers one after the other, ``peers`` of them at a time, those of its
own host over NVLink.  Every element of every result is compared.

What should be seen: the NIC of the root is the bound, and no queue builds up behind it.
""",
    name="scatter",
    title="Scatter",
    key="scatter",
    Parameters=_parameters("scatter", "direct", RootedParameters, ExchangeParameters),
    bus_factor=all_peers,
    buffers=lambda data, root, position: {
        INPUT: data.size if position == root else 0,
        OUTPUT: data.part,
    },
    inputs=lambda data, root, position: {INPUT: data.gathered} if position == root else {},
    expected=lambda data, root, position: {OUTPUT: data.piece(position, position)},
    by_parts=True,
    rooted=True,
)


gather = CollectiveBenchmark(
    sheet="""\
Gather from all GPUs to one: the root gets a part of every other GPU at once.

::

    before               after
    rank 0   [a]         rank 0   [a b c d]
    rank 1   [b]         rank 1   [b]
    rank 2   [c]  -----> rank 2   [c]
    rank 3   [d]         rank 3   [d]

Traffic: every GPU sends its part straight to the root, all at the same time: an incast of n-1 GPUs,
less those of the root's host, which use NVLink.  Every element of the root's result is compared.

What should be seen: the NIC of the root is the bound, so that busbw stays below one NIC's rate; the
queue in front of it shows what congestion control and trimming do (see ``incast``).
""",
    name="gather",
    title="Gather",
    key="gather",
    Parameters=_parameters("gather", "direct", RootedParameters),
    bus_factor=all_peers,
    buffers=lambda data, root, position: {
        INPUT: data.part,
        OUTPUT: data.size if position == root else 0,
    },
    inputs=lambda data, root, position: {INPUT: data.piece(position, position)},
    expected=lambda data, root, position: {OUTPUT: data.gathered} if position == root else {},
    by_parts=True,
    rooted=True,
)


def _pieces_sent(data: CollectiveData, root: int, position: int) -> Contents:
    if data.matrix is not None and not sum(data.matrix[position]):
        return {}
    return {INPUT: np.concatenate([data.piece(position, to) for to in range(data.members)])}


def _pieces_received(data: CollectiveData, root: int, position: int) -> Contents:
    if data.matrix is not None and not sum(row[position] for row in data.matrix):
        return {}
    return {OUTPUT: np.concatenate([data.piece(one, position) for one in range(data.members)])}


alltoall = CollectiveBenchmark(
    sheet="""\
AlltoAll over every GPU of the cluster: tokens go to their experts, and come back.

::

    before                          after
    rank 0   [00 01 02 03]          rank 0   [00 10 20 30]
    rank 1   [10 11 12 13]          rank 1   [01 11 21 31]
    rank 2   [20 21 22 23]  ----->  rank 2   [02 12 22 32]
    rank 3   [30 31 32 33]          rank 3   [03 13 23 33]

Traffic: every GPU sends a part of its buffer to every other one.  In round k, from 1 to n-1, rank
r sends to rank r+k and receives from rank r-k (mod n); ``peers`` rounds are under way at a time,
as NCCL has eight.  Between GPUs of a host the parts go over NVLink.  What a rank sends to itself
does not leave its memory: that part lies in its result from the start.  Every element of every
result is compared.

What should be seen: with g GPUs in each host, (n-g)/n of each buffer crosses the NIC of its GPU.
What goes to another rail climbs to the spines, unless ``--pxn`` relays it over NVLink.  Rounds keep
receivers from an incast: each receives from ``peers`` senders at most.
""",
    name="alltoall",
    title="AlltoAll",
    key="alltoall",
    Parameters=_parameters("alltoall", "shift", ExchangeParameters),
    bus_factor=all_peers,
    buffers=lambda data, root, position: {INPUT: data.size, OUTPUT: data.size},
    inputs=_pieces_sent,
    expected=_pieces_received,
    by_parts=True,
)


@dataclass(frozen=True, kw_only=True)
class AlltoAllvParameters(ExchangeParameters):
    algorithm: str = _algorithm("alltoallv", "shift")
    pattern: str = parameter(
        "zipf", choices=("zipf", "distance", "file"), help="who sends how much to whom"
    )
    skew: int = parameter(1000, EXPONENT, help="exponent of Zipf's law; 0: balanced")
    spread: int = parameter(1000, SHARE, help="of pattern=distance: 0 uniform, 1 by distance")
    matrix_file: str = parameter(
        "", TEXT, help="of pattern=file: octets, a sender in each line", aliases=("matrix",)
    )

    def __post_init__(self) -> None:
        if (self.pattern == "file") != bool(self.matrix_file):
            raise UserError("pattern=file and matrix=FILE go together; give both or neither")
        for name, pattern in (("skew", "zipf"), ("spread", "distance")):
            if self.pattern != pattern:
                refuse_idle(self, (name,), f"beside pattern={self.pattern}")
        super().__post_init__()

    @property
    def sweep(self) -> tuple[int, ...]:
        """Return the sizes to run; a matrix has one."""
        return (super().sweep[-1],) if self.pattern == "file" else super().sweep

    def matrix(self, members: int, size: int, seed: int) -> Matrix:
        """Return who sends how much to whom in an exchange of ``size`` octets."""
        if self.pattern == "file":
            made = read_matrix(Path(self.matrix_file), members)
        elif self.pattern == "distance":
            made = distance_matrix(members, size, self.spread / 1000)
        else:
            made = zipf_matrix(members, size, self.skew / 1000, seed)
        if not any(sent for p, row in enumerate(made) for q, sent in enumerate(row) if p != q):
            raise UserError(
                f"a size of {size} B leaves no 16 octets for another one of {members} GPUs; take a "
                "larger size"
            )
        return made


def _unequal_buffers(data: CollectiveData, root: int, position: int) -> dict[str, int]:
    members = range(data.members)
    return {
        INPUT: sum(data.octets(position, to) for to in members),
        OUTPUT: sum(data.octets(one, position) for one in members),
    }


alltoallv = CollectiveBenchmark(
    sheet="""\
AlltoAllv over every GPU of the cluster: some experts are more popular than others.

::

    before                             after
    rank 0   [0 | 01   | 02 | 03]      rank 0   [0  | 10 | 20 | 30]
    rank 1   [10 | 1   | 12 | 13]      rank 1   [01   | 1   | 21   | 31]
    rank 2   [20 | 21  | 2  | 23] ---> rank 2   [02 | 12 | 2  | 32]
    rank 3   [30 | 31  | 32 | 3]       rank 3   [03 | 13 | 23 | 3]

Traffic: every GPU sends ``sizes`` octets, a part to each GPU, itself included, in rounds as
``alltoall`` has them.  The parts follow ``pattern``:

- ``zipf``: the r-th most popular GPU gets a share of 1 / r^``skew`` from everybody; the seed draws
  which GPU that is.  ``skew=0`` is balanced.
- ``distance``: the generated pattern of the NCCL tests: more for ranks whose number is further;
  everybody sends and receives equally much.
- ``file``: a matrix of octets in ``matrix``, as the NCCL tests read it.

Every element of every result is compared.

Measured: the size of a row is what the busiest GPU sends or receives; imbalance is what the most
popular GPU receives over the mean of all.

What should be seen: the NIC of the most popular GPU decides, and everybody else waits for it.  With
``peers`` rounds under way, the incast at that GPU grows with the differences between the parts:
who has little to send to others comes to it early.
""",
    name="alltoallv",
    title="AlltoAllv",
    key="alltoallv",
    Parameters=AlltoAllvParameters,
    bus_factor=all_peers,
    buffers=_unequal_buffers,
    inputs=_pieces_sent,
    expected=_pieces_received,
    by_parts=True,
    more_columns=(TableColumn("imbalance", "max/mean", "", 8),),
)


sendrecv = CollectiveBenchmark(
    sheet="""\
SendRecv: every GPU sends its buffer to the next one, as pipeline stages do.

::

    rank 0 ---> rank 1 ---> rank 2 ---> rank 3
      ^                                   |
      +-----------------------------------+

Traffic: each GPU sends the whole buffer to the GPU of the next rank, and receives that of the one
before.  Hops inside a host use NVLink.  Every element is compared.

What should be seen: the hops between hosts decide.  They go from the last GPU of a host to the
first one of the next.  With several GPUs in each host they change rail and climb to the spines.
""",
    name="sendrecv",
    title="SendRecv",
    key="sendrecv",
    Parameters=_parameters("sendrecv", "shift", CollectiveParameters),
    bus_factor=same,
    buffers=lambda data, root, position: {INPUT: data.size, OUTPUT: data.size},
    inputs=lambda data, root, position: {INPUT: data.whole(position)},
    expected=lambda data, root, position: {OUTPUT: data.whole((position - 1) % data.members)},
)


@dataclass(frozen=True, kw_only=True)
class BarrierParameters(CollectiveParameters):
    min_size: int = parameter(4, SIZE, help="smallest size of a notice", aliases=("minbytes",))
    max_size: int = parameter(4, SIZE, help="largest size of a notice", aliases=("maxbytes",))
    algorithm: str = _algorithm("barrier", "dissemination", "how the notices travel")


def _notices(data: CollectiveData, root: int, position: int) -> Contents:
    steps = (data.members - 1).bit_length()
    senders = [(position - (1 << step)) % data.members for step in range(steps)]
    return {STAGING: np.concatenate([data.whole(sender) for sender in senders])}


barrier = CollectiveBenchmark(
    sheet="""\
Barrier over every GPU of the cluster: how long it takes until all know that all have come.

::

    step 0: rank r notifies r+1      step 1: rank r notifies r+2      step 2: rank r notifies r+4

    0 -> 1 -> 2 -> 3 -> ...          0 ------> 2 ------> ...          0 ----------------> 4 ...

Traffic: a dissemination barrier.  In step k each GPU sends a notice to the GPU 2^k ahead, once it
has had the notice of the step before.  After ceil(log2 n) steps every GPU has evidence that all
others have come (Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, 1988).  A
notice has 4 octets by default, and its value is compared.

Measured: the time from a common start until the last GPU is done; ideal, a lower bound from link
rates, header octets, cable and NVLink delays (``emulator.run.measures.ideal``); data packets.

What should be seen: nothing but latency: ceil(log2 n) hops one after the other, of which only those
inside a host are short.  Ring AllReduce of one element, which also is a barrier, needs 2(n-1) hops
(``uetemu run allreduce --param minbytes=4 --param maxbytes=4``).
""",
    name="barrier",
    title="Barrier",
    key="barrier",
    Parameters=BarrierParameters,
    bus_factor=same,
    buffers=lambda data, root, position: {INPUT: data.size},
    inputs=lambda data, root, position: {INPUT: data.whole(position)},
    expected=_notices,
)
