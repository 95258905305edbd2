"""The tables of the switch program in memory, in place of the kernel's maps, and what they say."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from ipaddress import IPv4Network

from mypy_extensions import i64

from emulator.dataplane.model.port_counts import PortCounts, PortDepths, SwitchCounts
from emulator.dataplane.switch.balancing import Balancing
from emulator.dataplane.switch.bpf.layout import (
    CLASS,
    CLASS_SETTINGS,
    FAULT_SETTINGS,
    FAULTS_ARRIVALS,
    FAULTS_AT,
    FLOWLET,
    FLOWLETS,
    PAUSE,
    PAUSE_COUNTS,
    PAUSE_RULES,
    PAUSE_STATE,
    POOL,
    PORT_HEAD,
    PORT_KEY,
    PORT_SETTINGS_BYTES,
    PORT_STATE_BYTES,
    ROUTE,
    ROUTE_KEY,
    TAIL,
    TAIL_AT,
    VIRTUAL_PORT,
    VIRTUAL_SWITCH,
    Queue,
    TrafficClass,
    unpack,
)
from emulator.dataplane.switch.bpf.switch_program import Size
from emulator.words import word_of


class ArrayTable:
    """``entries`` values of ``value_bytes`` octets each; keys are their numbers.

    ``written`` is called with a number after :meth:`put` has written its value, ``before`` before
    anybody looks at a value or writes one.
    """

    def __init__(
        self,
        entries: int,
        value_bytes: int,
        written: Callable[[int], None] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self.entries, self.value_bytes = entries, value_bytes
        # Workers that are forked later share it.  Pages take no room until they are written, unlike
        # a bytearray's: of the ports of other processes most never are.
        self._octets = mmap.mmap(-1, max(1, entries * value_bytes))
        self._written, self._before = written, before

    def get(self, key: bytes, *, flags: int = 0) -> bytes:
        """The value at ``key``.  Raises OSError (ENOENT) if there is none."""
        at = self._number(key) * self.value_bytes
        return bytes(self._current()[at : at + self.value_bytes])

    def put(self, key: bytes, value: bytes, *, flags: int = 0) -> None:
        """Write ``value`` at ``key``.  Raises OSError (E2BIG) if there is no such place."""
        number = self._number(key, errno.E2BIG)
        if len(value) != self.value_bytes:
            raise ValueError(f"{len(value)} octets for a table of {self.value_bytes}")
        at = number * self.value_bytes
        memoryview(self._current())[at : at + self.value_bytes] = value
        if self._written is not None:
            self._written(number)

    def delete(self, key: bytes) -> None:
        """Raise OSError: an array keeps all its values."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def first(self, count: int, *, flags: int = 0) -> bytearray:
        """The values of keys 0 to ``count`` - 1, one after the other."""
        return bytearray(self._current()[: count * self.value_bytes])

    def read_first(self, count: int, values: bytearray, *, flags: int = 0) -> None:
        """Read entries into ``values`` as :meth:`first` does."""
        if len(values) != count * self.value_bytes:
            raise ValueError(f"{len(values)} octets for {count} values")
        values[:] = memoryview(self._current())[: len(values)]

    def all_keys(self) -> list[bytes]:
        """The numbers of all values."""
        return [number.to_bytes(4, sys.byteorder) for number in range(self.entries)]

    def mapped(self) -> memoryview:
        """Return the memory itself: who writes there writes the table."""
        return memoryview(self._current())[: self.entries * self.value_bytes]

    def _current(self) -> mmap.mmap:
        """Return the memory with all that was counted."""
        if self._before is not None:
            self._before()
        return self._octets

    def _number(self, key: bytes, absent: int = errno.ENOENT) -> int:
        number = int.from_bytes(key, sys.byteorder)
        if number >= self.entries:
            raise OSError(absent, os.strerror(absent))
        return number


class HashTable:
    """Values by any key, at most ``entries`` of them.

    ``changed`` is called after each change, with the key and the value (None: it is removed).
    """

    def __init__(
        self, entries: int, changed: Callable[[bytes, bytes | None], None] | None = None
    ) -> None:
        self.entries = entries
        self.values: dict[bytes, bytes] = {}
        self._changed = changed

    def get(self, key: bytes, *, flags: int = 0) -> bytes:
        """The value at ``key``.  Raises OSError (ENOENT) if there is none."""
        if key not in self.values:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self.values[key]

    def put(self, key: bytes, value: bytes, *, flags: int = 0) -> None:
        """Write ``value`` at ``key``.  Raises OSError (ENOSPC) if the table is full."""
        if key not in self.values and len(self.values) >= self.entries:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.values[key] = value
        if self._changed is not None:
            self._changed(key, value)

    def delete(self, key: bytes) -> None:
        """Remove the value at ``key``.  Raises OSError (ENOENT) if there is none."""
        self.get(key)
        del self.values[key]
        if self._changed is not None:
            self._changed(key, None)

    def first(self, count: int, *, flags: int = 0) -> bytearray:
        """Raise OSError: these keys have no order."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def read_first(self, count: int, values: bytearray, *, flags: int = 0) -> None:
        """Raise OSError: these keys have no order."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def all_keys(self) -> list[bytes]:
        """All keys, in the order in which they came."""
        return list(self.values)

    def mapped(self) -> memoryview:
        """Raise OSError: a hash table is no array."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


@dataclass(frozen=True, slots=True)
class ModelClass:
    """``class_settings`` of ``asic.h``; octets are those on the wire."""

    mark_from: int
    mark_all: int
    mark_slope: int
    trim_above: int
    limit: int
    alpha: int
    priority: int
    queue: int


@dataclass(frozen=True, slots=True)
class ModelFaults:
    """``fault_settings`` of ``asic.h``; probabilities are of 2^32."""

    loss: int
    good_to_bad: int
    bad_to_good: int
    loss_in_bad: int
    corruption: int
    duplication: int
    reordering: int
    #: chance of loss for each octet, 2^-32 / 2^24
    bit_errors: int
    black_hole: int
    enabled: int


@dataclass(frozen=True, slots=True)
class ModelRules:
    """``port_settings`` of ``asic.h``, as far as a virtual clock has a use for them.

    ``hashes_at_once``: each IP packet that arrives is to be hashed; ``gives_hashes``: it gets a
    hash, and not the kernel's own; ``strikes_arrivals``: faults may take or change it.
    """

    rate: int
    seed: i64
    classes: tuple[ModelClass, ...]
    faults: ModelFaults
    #: traffic class by the octet of DSCP and ECN
    class_of: bytes
    trim_payload: int
    trimmed_dscp: int
    bin_shift: int
    balancing: int
    switch: int
    native_protocol: int
    switch_seed: i64
    flowlet_gap: int
    hashes_at_once: bool
    gives_hashes: bool
    strikes_arrivals: bool

    @classmethod
    def of(cls, settings: bytes) -> ModelRules:
        """Decode ``settings``."""
        rate, seed = PORT_HEAD.unpack_from(settings)
        at, classes = PORT_HEAD.size, []
        for _ in TrafficClass:
            numbers = unpack(CLASS, settings, at)
            numbers["queue"] = min(numbers["queue"], int(Queue.LOW))
            classes.append(ModelClass(*(numbers[one.name] for one in fields(ModelClass))))
            at += CLASS_SETTINGS.size
        tail = unpack(TAIL, settings, TAIL_AT)
        untrimmed = int(TrafficClass.UNTRIMMED)
        points = (tail["class_of"][octet >> 2] for octet in range(256))
        faults = ModelFaults(*FAULT_SETTINGS.unpack_from(settings, FAULTS_AT))
        balancing = tail["balancing"]
        return cls(
            rate=rate,
            seed=word_of(seed),
            classes=tuple(classes),
            faults=faults,
            class_of=bytes(point if point <= untrimmed + 1 else untrimmed for point in points),
            trim_payload=tail["trim_payload"],
            trimmed_dscp=tail["trimmed_dscp"],
            bin_shift=tail["bin_shift"] & 63,
            balancing=balancing,
            switch=tail["switch_number"],
            native_protocol=tail["native_protocol"],
            switch_seed=word_of(tail["switch_seed"]),
            flowlet_gap=tail["flowlet_gap"],
            hashes_at_once=balancing not in (Balancing.KERNEL, Balancing.FLOW),
            gives_hashes=balancing != Balancing.KERNEL,
            strikes_arrivals=bool((faults.black_hole | faults.enabled) & FAULTS_ARRIVALS),
        )


@dataclass(frozen=True, slots=True)
class PauseLimits:
    """``pause_rules`` of ``pfc.h``, of a port that pauses."""

    xoff: int
    ceiling: int
    alpha: int
    dropping: bool

    @classmethod
    def of(cls, packed: bytes) -> PauseLimits | None:
        """Decode ``packed``; None of a port that does not pause."""
        rules = unpack(PAUSE, packed)
        if not rules["enabled"]:
            return None
        return cls(rules["xoff"], rules["ceiling"], rules["alpha"], bool(rules["dropping"]))


class PortTables:
    """What the tables say of one port, as far as it was read.

    ``rules`` None: read them.  ``limits``, None of a port that does not pause, are only valid
    if they are ``limits_known``.
    """

    __slots__ = ("limits", "limits_known", "rules")

    def __init__(self) -> None:
        self.rules: ModelRules | None = None
        self.limits: PauseLimits | None = None
        self.limits_known = False


_IPV4_MAPPED = bytes(10) + b"\xff\xff"
_MAPPED_BITS, _SWITCH_BITS = 96, 32
_WORD_BYTES = 8


class BalancedRoute:
    """The next hops to a destination, by interface index, and whose ``turn`` it is."""

    __slots__ = ("ports", "turn")

    def __init__(self, ports: tuple[int, ...]) -> None:
        self.ports, self.turn = ports, 0


class ModelProgram:
    """The tables of the switch program of one lab, as :class:`SwitchTables` has them.

    Nothing of it is in the kernel: it goes with this process.
    """

    egress = -1
    ingress = -1
    forget = -1
    in_kernel = False

    def __init__(self, lab: str, size: Size) -> None:
        self.lab = lab
        ports = size.ports
        #: told of what a worker that was forked has to do, too, as it shares the arrays alone
        self.changed: Callable[[Callable[[ModelProgram], None]], None] = lambda _: None
        self._of_ports: dict[int, PortTables] = {}
        self._routes: dict[tuple[int, bytes], BalancedRoute | None] = {}
        #: by switch and network; None: to be made of the table
        self._networks: dict[tuple[int, IPv4Network], BalancedRoute] | None = {}
        self.settings = ArrayTable(ports, PORT_SETTINGS_BYTES, self._settings_written)
        #: counts that the tables of ports and switches do not have yet
        self._unwritten: list[PortCounts] = []
        self._unwritten_of_switches: list[SwitchCounts] = []
        self._unwritten_depths: list[PortDepths] = []
        self._of_switches: dict[int, SwitchCounts] = {}
        self._depths: dict[int, PortDepths] = {}
        self.ports = ArrayTable(ports, PORT_STATE_BYTES, before=self.write_counts)
        self.routes = HashTable(size.prefixes, self._route_changed)
        self.flowlets = ArrayTable(size.switches * FLOWLETS, FLOWLET.size)
        self.pause_rules = ArrayTable(ports, PAUSE_RULES.size, self._pauses_written)
        self.pause_states = ArrayTable(ports, PAUSE_STATE.size)
        self.pause_counts = ArrayTable(ports, PAUSE_COUNTS.size)
        self.waiting_octets = HashTable(0)
        self.virtual_pools = ArrayTable(size.switches, POOL.size)
        self.virtual_switches = ArrayTable(
            size.switches, VIRTUAL_SWITCH.size, before=self.write_counts
        )
        self.virtual_ports = ArrayTable(
            ports, VIRTUAL_PORT.size, self._depths_written, before=self.write_counts
        )

    def of_port(self, index: int) -> PortTables:
        """Return what is known of port ``index``, and follows each change of the tables."""
        found = self._of_ports.get(index)
        if found is None:
            found = self._of_ports[index] = PortTables()
        return found

    def port_counts(self, index: int) -> PortCounts:
        """Return counts of port ``index``, nothing yet."""
        at = index * (PORT_STATE_BYTES // _WORD_BYTES)
        return PortCounts(self._unwritten, self.ports.mapped().cast("Q"), at)

    def depths(self, index: int) -> PortDepths:
        """Return the depths of the queues of port ``index``."""
        found = self._depths.get(index)
        if found is None:
            words = self.virtual_ports.mapped().cast("Q")
            at = index * (VIRTUAL_PORT.size // _WORD_BYTES)
            found = self._depths[index] = PortDepths(self._unwritten_depths, words, at)
        return found

    def _depths_written(self, index: int) -> None:
        if index in self._depths:
            self._depths[index].read()

    def switch_counts(self, number: int) -> SwitchCounts:
        """Return the counts of a switch, which all its ports have in common."""
        found = self._of_switches.get(number)
        if found is None:
            words = self.virtual_switches.mapped().cast("Q")
            at = number * (VIRTUAL_SWITCH.size // _WORD_BYTES)
            found = self._of_switches[number] = SwitchCounts(self._unwritten_of_switches, words, at)
        return found

    def write_counts(self) -> None:
        """Let the tables, and so other processes, have all that was counted."""
        if self._unwritten:
            for port in self._unwritten:
                port.write()
            self._unwritten.clear()
        if self._unwritten_depths:
            for depths in self._unwritten_depths:
                depths.write()
            self._unwritten_depths.clear()
        if self._unwritten_of_switches:
            for switch in self._unwritten_of_switches:
                switch.write()
            self._unwritten_of_switches.clear()

    def rules(self, index: int) -> ModelRules:
        """Return the settings of port ``index``."""
        known = self.of_port(index)
        found = known.rules
        if found is None:
            found = known.rules = ModelRules.of(self.settings.get(PORT_KEY.pack(index)))
        return found

    def pausing(self, index: int) -> PauseLimits | None:
        """Return what port ``index`` may hold; None if it does not pause."""
        known = self.of_port(index)
        if not known.limits_known:
            known.limits = PauseLimits.of(self.pause_rules.get(PORT_KEY.pack(index)))
            known.limits_known = True
        return known.limits

    def route(self, switch: int, destination: bytes) -> BalancedRoute | None:
        """Return the next hops of ``switch`` to an IPv4 address; None if there is one at most."""
        key = switch, destination
        if key not in self._routes:
            self._routes[key] = self._longest(switch, destination)
        return self._routes[key]

    def _longest(self, switch: int, destination: bytes) -> BalancedRoute | None:
        if self._networks is None:
            self._networks = self._balanced()
        for length in range(32, -1, -1):
            network = IPv4Network((destination, length), strict=False)
            if (found := self._networks.get((switch, network))) is not None:
                return found
        return None

    def _settings_written(self, index: int) -> None:
        self.forget_rules(index)
        self.changed(partial(ModelProgram.forget_rules, index=index))

    def forget_rules(self, index: int) -> None:
        """Have the settings of port ``index`` read anew."""
        self.of_port(index).rules = None

    def _pauses_written(self, index: int) -> None:
        self.forget_pauses(index)
        self.changed(partial(ModelProgram.forget_pauses, index=index))

    def forget_pauses(self, index: int) -> None:
        """Have what port ``index`` may hold read anew."""
        self.of_port(index).limits_known = False

    def _route_changed(self, key: bytes, value: bytes | None) -> None:
        self._forget_routes()
        self.changed(partial(ModelProgram.take_route, key=key, value=value))

    def take_route(self, key: bytes, value: bytes | None) -> None:
        """Have ``value`` at ``key`` of the routes, or nothing any more with None."""
        self.routes.values.pop(key, None)
        if value is not None:
            self.routes.values[key] = value
        self._forget_routes()

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._networks = None

    def _balanced(self) -> dict[tuple[int, IPv4Network], BalancedRoute]:
        networks: dict[tuple[int, IPv4Network], BalancedRoute] = {}
        for key, value in self.routes.values.items():
            length, switch, address = ROUTE_KEY.unpack(key)
            if not address.startswith(_IPV4_MAPPED):
                continue
            _, hops, *ports, _ = ROUTE.unpack(value)
            network = IPv4Network((address[12:], length - _MAPPED_BITS - _SWITCH_BITS))
            networks[switch, network] = BalancedRoute(tuple(ports[:hops]))
        return networks

    def close(self) -> None:
        """Do nothing: the tables go with this process."""
