"""Tree algorithms: NCCL's tree and double tree over hosts, and binomial trees over members.

NCCL's first tree over n hosts has its root at host 0.  Host h, whose lowest set bit is b, hangs on
(h ^ b) | 2b, or on h ^ b where that is beyond the last host.  The second tree mirrors the first
for an even number of hosts, and is shifted by one host for an odd number: whoever is a leaf of one
is an inner node of the other.  Inside a host the members form a chain, at whose head is the one
with the NIC of the channel.  (Sanders, Speck, Träff: Two-tree algorithms for full bandwidth
broadcast, reduction and scan, 2009.)
"""

from __future__ import annotations

from collections.abc import Sequence

from scenarios.collectives.algorithm_registry import WITHOUT_RINGS, algorithm
from scenarios.collectives.blocks import Block
from scenarios.collectives.collective_call import STAGING, CollectiveCall, Pieces

#: The parent of each node; None at the root.
Parents = Sequence[int | None]


def first_tree(nodes: int) -> list[int | None]:
    """Return the parents of NCCL's first tree over ``nodes``."""
    parents: list[int | None] = [None]
    for node in range(1, nodes):
        bit = node & -node
        above = (node ^ bit) | (bit << 1)
        parents.append(above if above < nodes else node ^ bit)
    return parents


def second_tree(nodes: int) -> list[int | None]:
    """Return the parents of NCCL's second tree over ``nodes``."""
    first = first_tree(nodes)
    parents: list[int | None] = [None] * nodes
    for node, above in enumerate(first):
        if nodes % 2 == 0:
            parents[nodes - 1 - node] = None if above is None else nodes - 1 - above
        else:
            parents[(node + 1) % nodes] = None if above is None else (above + 1) % nodes
    return parents


def binomial_tree(nodes: int) -> list[int | None]:
    """Return the parents of the tree in which node r gets from r without its highest set bit."""
    return [None, *(node ^ (1 << (node.bit_length() - 1)) for node in range(1, nodes))]


def _over_members(call: CollectiveCall, hosts: Parents, channel: int) -> list[int | None]:
    """Return the parents of all positions: ``hosts`` above, and chains inside them."""
    parents: list[int | None] = [None] * call.members
    chains = []
    for host in call.communicator.hosts:
        head = channel % len(host)
        chains.append([*host[head:], *host[:head]])
    for chain, above in zip(chains, hosts, strict=True):
        parents[chain[0]] = None if above is None else chains[above][0]
        for member, before in zip(chain[1:], chain, strict=False):
            parents[member] = before
    return parents


def _children(parents: Parents) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in parents]
    for node, above in enumerate(parents):
        if above is not None:
            children[above].append(node)
    return children


def _walk(children: Sequence[Sequence[int]], root: int) -> list[int]:
    """Return all nodes below ``root``, each behind its parent."""
    order = [root]
    for node in order:
        order.extend(children[node])
    return order


def reduce_up(call: CollectiveCall, parents: Parents, block: Block) -> Pieces:
    """Add ``block`` up along the tree; return the root's pieces, which lie in its result."""
    children = _children(parents)
    root = list(parents).index(None)
    held: dict[int, Pieces] = {}
    for node in reversed(_walk(children, root)):
        held[node] = call.pieces(call.source, block)
        for number, child in enumerate(children[node]):
            final = node == root and number == len(children[node]) - 1
            into, buffer = (block, call.result) if final else (None, STAGING)
            arrived = call.send(child, node, held.pop(child), into, buffer)
            held[node] = call.combine(node, arrived, held[node])
    return call.complete(root, held[root])


def send_down(call: CollectiveCall, parents: Parents, block: Block, pieces: Pieces) -> None:
    """Pass ``pieces`` of the root on along the tree into each member's result."""
    children = _children(parents)
    root = list(parents).index(None)
    held = {root: pieces}
    for node in _walk(children, root):
        for child in children[node]:
            held[child] = call.send(node, child, held[node], block, call.result)


def _tree_allreduce(call: CollectiveCall, trees: Sequence[Parents]) -> None:
    for channel, share in enumerate(call.blocks(call.channels)):
        for hosts, block in zip(trees, call.blocks(len(trees), within=share), strict=True):
            if not block.length:
                continue
            parents = _over_members(call, hosts, channel)
            sums = reduce_up(call, parents, block)
            if call.up_then_down:
                sums = call.joined(parents.index(None), sums)
            send_down(call, parents, block, sums)


@algorithm("allreduce", "tree")
def tree(call: CollectiveCall) -> None:
    """Reduce along one tree of hosts and pass the result back down."""
    _tree_allreduce(call, [first_tree(len(call.communicator.hosts))])


@algorithm("allreduce", "double-tree")
def double_tree(call: CollectiveCall) -> None:
    """Reduce each half of the data along one of two trees, as NCCL's Tree does."""
    hosts = len(call.communicator.hosts)
    _tree_allreduce(call, [first_tree(hosts), second_tree(hosts)])


def _rooted(call: CollectiveCall) -> list[int | None]:
    """Return the parents of a binomial tree whose root is that of the call."""
    members, root = call.members, call.root
    parents: list[int | None] = [None] * members
    for node, above in enumerate(binomial_tree(members)):
        parents[(node + root) % members] = None if above is None else (above + root) % members
    return parents


@algorithm("broadcast", "binomial", in_place=True, idle=WITHOUT_RINGS)
def broadcast(call: CollectiveCall) -> None:
    """Double the number of members that have the data in each of log2(n) steps."""
    block = Block(0, call.size)
    send_down(call, _rooted(call), block, call.own(call.root, block, block))


@algorithm("reduce", "binomial", idle=WITHOUT_RINGS)
def reduce(call: CollectiveCall) -> None:
    """Halve the number of members that have a part of the sum in each of log2(n) steps."""
    reduce_up(call, _rooted(call), Block(0, call.size))
