"""Writes that reach a fabric interface: each is placed and reported once, by whichever plane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from uet.fep import FabricEndpoint
from uet.planes.numbered_writes import Reported, is_plain, split_key
from uet.transport import Completion

COUNTERS = ("rx_writes_repeated",)


class ArrivedWrites:
    """The numbered writes of all peers; ``routes`` has each peer's addresses, one a plane."""

    def __init__(
        self,
        feps: Sequence[FabricEndpoint],
        routes: Mapping[str, Sequence[str]],
        counts: Counter[str],
    ) -> None:
        self._feps = feps
        self._routes = routes
        self._names = {address: peer for peer, route in routes.items() for address in route}
        self._counts = counts
        self._reported = {peer: Reported() for peer in routes}
        for plane, fep in enumerate(feps):
            fep.guard_writes(partial(self._begin, plane))

    def _begin(self, plane: int, address: str, key: int, memory: memoryview) -> memoryview:
        """Return where a write goes that begins to arrive.

        Nowhere, if it has been placed before.
        """
        peer = self._names.get(address)
        if peer is None or is_plain(key):
            return memory
        if self._reported[peer].begin(split_key(key)[1], plane):
            return memory
        self._counts["rx_writes_repeated"] += 1
        return memoryview(bytearray(len(memory)))

    def placed(self, completion: Completion) -> list[Completion]:
        """Return the application's completion of a placed write with header data."""
        peer = self._names.get(completion.peer)
        key, offset = completion.key, completion.offset
        if peer is None or key is None or offset is None or is_plain(key):
            return [completion._replace(peer=completion.peer if peer is None else peer)]
        key, label = split_key(key)
        reported = self._reported[peer]
        attempts = reported.attempts(label)
        if len(attempts) > 1:  # what is still coming of the others must not be placed any more
            for plane in set(attempts):
                self._feps[plane].divert(self._routes[peer][plane], label.on(key))
        whole = reported.take(label, offset, completion.length)
        if whole is None:
            return []
        return [completion._replace(peer=peer, key=key, offset=whole[0], length=whole[1])]
