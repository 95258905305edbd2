"""NVLS: the scale-up switch sums what GPUs have, and copies the sum to all of them.

As NCCL's NVLS inside a scale-up network, and its NVLSTree between several.  The data have a part
for each GPU of a network, its head::

    g0   g1   g2   g3                          g0   g1   g2   g3
      \\    \\  /    /    part 2 of each GPU       ^    ^   ^    ^
      +-------------+                          +-------------+
      |   switch    |    sums, in this order:  |   switch    |   one copy from the head's
      +-------------+    g2, g3, g0, g1        +-------------+   port makes all others
             |                                        ^
             v   one sum at the head's port           |   the sum of all
            g2  ==== double tree of the heads =====>  g2

Each port carries the data once each way, where a ring's carries 2 (n - 1) / n times.  (With a
head's own part through the switch, too, it would be (n + 1) / n; here the head adds that.)  The
switch is a part of the scale-up network, which is a model; what it sums and copies are operations
of the GPUs, with real data, that take no time.  (Klenk et al.: An in-network architecture for
accelerating shared-memory multiprocessor collectives, ISCA 2020.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emulator.errors import UserError
from scenarios.collectives.algorithm_registry import WITHOUT_RINGS, algorithm
from scenarios.collectives.algorithms.trees import Parents, first_tree, second_tree
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective_call import STAGING, CollectiveCall, Pieces
from topologies.model import SWITCH


def _networks(call: CollectiveCall) -> list[list[int]]:
    """Return the positions in each scale-up network."""
    topology, ranks = call.communicator.topology, call.communicator.ranks
    domains: dict[str, list[int]] = {}
    for position, rank in enumerate(ranks):
        domains.setdefault(topology.scale_up_domains[topology.gpus[rank].name], []).append(position)
    networks = list(domains.values())
    lacking = {server.scale_up.shape for server in topology.servers} - {SWITCH}
    if lacking:
        raise UserError(
            f"algorithm=nvls sums in a scale-up switch, and the GPUs of {topology.name} are joined "
            f"in a {min(lacking)}; take algorithm=ring, or a topology with switches"
        )
    if not all(server.scale_up.sums for server in topology.servers):
        raise UserError(
            f"algorithm=nvls sums in a scale-up switch, and those of {topology.name} sum nothing; "
            "take algorithm=ring, or scale_up=nvswitch3"
        )
    sizes = sorted({len(network) for network in networks})
    if len(sizes) > 1:
        raise UserError(
            f"algorithm=nvls needs equally many GPUs of each scale-up network, and there are "
            f"{', '.join(map(str, sizes))}; take algorithm=ring, or name other ranks"
        )
    return networks


@algorithm("allreduce", "nvls", idle=WITHOUT_RINGS)
def nvls(call: CollectiveCall) -> None:
    """Sum and copy in scale-up switches, with a double tree between several."""
    networks = _networks(call)
    trees = [first_tree(len(networks)), second_tree(len(networks))]
    if len(networks) == 1:
        del trees[1:]
    for number, part in enumerate(call.blocks(len(networks[0]))):
        for parents, block in zip(trees, call.blocks(len(trees), within=part), strict=True):
            walk = _Walk(call, [(one[number], _behind(one, number)) for one in networks], parents)
            over: list[Mapping[int, int]] = []
            for place, piece in enumerate(call.pieces(call.source, block)):
                first = place * call.slice_bytes - call.under_way // len(trees)
                earlier = over[first // call.slice_bytes] if first >= 0 else {}
                region = piece.region
                over.append(walk.slice(Block(region.offset, region.length), earlier))


def _behind(members: list[int], number: int) -> list[int]:
    """Return the members behind member ``number``, in turn."""
    return [*members[number + 1 :], *members[:number]]


class _Walk:
    """The way of slices through ``networks``, each a head and its other members."""

    def __init__(
        self, call: CollectiveCall, networks: Sequence[tuple[int, list[int]]], parents: Parents
    ) -> None:
        self._call, self._networks = call, networks
        self._children: list[list[int]] = [[] for _ in parents]
        for network, above in enumerate(parents):
            if above is not None:
                self._children[above].append(network)
        #: networks, each behind its parent
        self._order = [list(parents).index(None)]
        for network in self._order:
            self._order.extend(self._children[network])

    def slice(self, block: Block, earlier: Mapping[int, int]) -> Mapping[int, int]:
        """Write the operations of ``block``; members begin after those in ``earlier``.

        Returns the operation of each member but heads with which it has the sum.
        """
        call, held = self._call, dict[int, Pieces]()
        root = self._order[0]
        for network in reversed(self._order):
            head, children = self._networks[network][0], self._children[network]
            alone = network == root and not children
            held[network] = self._summed(network, block, earlier, final=alone)
            for child in children:
                final = network == root and child == children[-1]
                into, buffer = (block, call.result) if final else (None, STAGING)
                there = self._networks[child][0]
                arrived = call.send(there, head, held.pop(child), into, buffer)
                held[network] = call.combine(head, arrived, held[network])
        held[root] = call.complete(self._networks[root][0], held[root])
        over: dict[int, int] = {}
        for network in self._order:
            head, others = self._networks[network]
            for child in self._children[network]:
                there = self._networks[child][0]
                held[child] = call.send(head, there, held[network], block, call.result)
            for other in others:
                (piece,) = call.send(
                    head, other, held[network], block, call.result, fan_out=len(others)
                )
                (over[other],) = piece.after
        return over

    def _summed(
        self, network: int, block: Block, earlier: Mapping[int, int], *, final: bool
    ) -> Pieces:
        """Return the sum over a network at its head; in its result if ``final``."""
        call, (head, others) = self._call, self._networks[network]
        pieces = call.pieces(call.source, block)
        for other in others:
            last = final and other == others[-1]
            into, buffer = (block, call.result) if last else (None, STAGING)
            after = (earlier[other],) if other in earlier else ()
            own = call.pieces(call.source, block, after)
            arrived = call.send(other, head, own, into, buffer, fan_in=len(others))
            pieces = call.combine(head, arrived, pieces)
        return pieces
