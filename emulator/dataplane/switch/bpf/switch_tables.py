"""The tables of a switch program, whoever keeps them: the kernel, or a model of it.

Layouts are those of :mod:`emulator.dataplane.switch.bpf.layout`.
"""

from __future__ import annotations

from typing import Protocol


class Table(Protocol):
    """Fixed-size keys to fixed-size values, both octets here."""

    @property
    def entries(self) -> int:
        """Return how many values the table has, or has room for."""

    def get(self, key: bytes, *, flags: int = 0) -> bytes:
        """The value at ``key``.  Raises OSError (ENOENT) if there is none."""

    def put(self, key: bytes, value: bytes, *, flags: int = 0) -> None:
        """Write ``value`` at ``key``."""

    def delete(self, key: bytes) -> None:
        """Remove the value at ``key``.  Raises OSError (ENOENT) if there is none."""

    def first(self, count: int, *, flags: int = 0) -> bytearray:
        """The values of keys 0 to ``count`` - 1 of an array, one after the other."""

    def read_first(self, count: int, values: bytearray, *, flags: int = 0) -> None:
        """Read entries into ``values`` as :meth:`first` does."""

    def all_keys(self) -> list[bytes]:
        """All keys of a hash table."""

    def mapped(self) -> memoryview:
        """Return the memory of an array itself: who writes there writes the table."""


class SwitchTables(Protocol):
    """The tables of the switch program of ``lab``.

    ``egress``, ``ingress`` and ``forget`` are file descriptors of programs, -1 where the kernel has
    none.  Those named ``virtual_`` are None with the host's clock.
    ``in_kernel``: other processes can open them by the lab's name.
    """

    @property
    def lab(self) -> str: ...
    @property
    def in_kernel(self) -> bool: ...
    @property
    def egress(self) -> int: ...
    @property
    def ingress(self) -> int: ...
    @property
    def forget(self) -> int: ...
    @property
    def settings(self) -> Table: ...
    @property
    def ports(self) -> Table: ...
    @property
    def routes(self) -> Table: ...
    @property
    def flowlets(self) -> Table: ...
    @property
    def pause_rules(self) -> Table: ...
    @property
    def pause_states(self) -> Table: ...
    @property
    def pause_counts(self) -> Table: ...
    @property
    def waiting_octets(self) -> Table: ...
    @property
    def virtual_pools(self) -> Table | None: ...
    @property
    def virtual_switches(self) -> Table | None: ...
    @property
    def virtual_ports(self) -> Table | None: ...

    def close(self) -> None:
        """Let go of the tables."""
