"""Groups of synchronised operations: one report once all members have arrived.

Opcodes and extension are those of the UEC reference provider; UES 1.0 reserves their numbers.
The terminating operation carries the number of members, others 0.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from uet.timekeeper import Timekeeper
from uet.transport import Completion
from uet.wire import headers

#: Extension header of a member: group, and how many the group has where this one carries it.
SYNC_HEADER: Final = headers.SES_SYNC
#: Groups that may be open at once, and for how long (ns), as the UEC reference provider has it.
MOST_GROUPS: Final = 4_096
LIFETIME: Final = 60_000_000_000


class _Group:
    __slots__ = ("arrived", "begun", "expected", "header_data", "octets")

    def __init__(self, begun: int) -> None:
        self.begun = begun
        self.arrived = 0
        self.expected = 0
        self.octets = 0
        self.header_data: int | None = None


class SyncGroups:
    """The groups of one endpoint that are not complete."""

    def __init__(self, complete: Callable[[Completion], None], time: Timekeeper) -> None:
        self._complete = complete
        self._groups: OrderedDict[tuple[str, int, int], _Group] = OrderedDict()
        self._time = time

    @staticmethod
    def read(extension: memoryview, initiator: int) -> tuple[int, int, int]:
        """(initiator, group, number of members or 0) of an operation."""
        group, expected = SYNC_HEADER.unpack_from(extension)
        return initiator, group, expected

    def arrived(
        self,
        peer: str,
        member: tuple[int, int, int],
        key: int,
        offset: int,
        length: int,
        header_data: int | None,
    ) -> None:
        """An operation has been carried out; if it was the last of its group, report it."""
        initiator, number, expected = member
        groups = self._groups
        while groups:
            oldest = next(iter(groups))
            if len(groups) <= MOST_GROUPS and self._time.now - groups[oldest].begun < LIFETIME:
                break
            del groups[oldest]
        name = (peer, initiator, number)
        group = groups.get(name)
        if group is None:
            group = groups[name] = _Group(self._time.now)
        group.arrived += 1
        group.octets += length
        group.expected = max(group.expected, expected)
        if header_data is not None:
            group.header_data = header_data
        if group.expected and group.arrived >= group.expected:
            del groups[name]
            self._complete(
                Completion(
                    kind="remote_write",
                    peer=peer,
                    length=group.octets,
                    header_data=group.header_data,
                    key=key,
                    offset=offset,
                    initiator=initiator,
                )
            )
