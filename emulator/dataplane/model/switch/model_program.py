"""The tables of the switch program in memory, and the ports that work by them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Network

from emulator.dataplane.model.switch.memory_table import ArrayTable, HashTable
from emulator.dataplane.model.switch.model_rules import ModelRules, PauseLimits
from emulator.dataplane.switch.bpf.layout import (
    FLOWLET,
    FLOWLETS,
    PAUSE_COUNTS,
    PAUSE_RULES,
    PAUSE_STATE,
    PORT_KEY,
    PORT_SETTINGS_BYTES,
    PORT_STATE_BYTES,
    ROUTE,
    ROUTE_KEY,
    VIRTUAL_PORT,
    VIRTUAL_SWITCH,
)
from emulator.dataplane.switch.bpf.switch_program import Size

_IPV4_MAPPED = bytes(10) + b"\xff\xff"
_MAPPED_BITS, _SWITCH_BITS = 96, 32


class BalancedRoute:
    """The next hops to a destination, by interface index, and whose ``turn`` it is."""

    __slots__ = ("ports", "turn")

    def __init__(self, ports: tuple[int, ...]) -> None:
        self.ports, self.turn = ports, 0


class ModelProgram:
    """The tables of the switch program of one lab, as :class:`SwitchTables` has them.

    Nothing of it is in the kernel: it goes with this process.
    """

    egress = ingress = forget = -1
    in_kernel = False

    def __init__(self, lab: str, size: Size) -> None:
        self.lab = lab
        ports = size.ports
        #: told of what a worker that was forked has to do, too, as it shares the arrays alone
        self.changed: Callable[[Callable[[ModelProgram], None]], None] = lambda _: None
        self._rules: dict[int, ModelRules] = {}
        self._pauses: dict[int, PauseLimits | None] = {}
        self._routes: dict[tuple[int, bytes], BalancedRoute | None] = {}
        #: by switch and network; None: to be made of the table
        self._networks: dict[tuple[int, IPv4Network], BalancedRoute] | None = {}
        self.settings = ArrayTable(ports, PORT_SETTINGS_BYTES, self._settings_written)
        self.ports = ArrayTable(ports, PORT_STATE_BYTES)
        self.routes = HashTable(size.prefixes, self._route_changed)
        self.flowlets = ArrayTable(size.switches * FLOWLETS, FLOWLET.size)
        self.pause_rules = ArrayTable(ports, PAUSE_RULES.size, self._pauses_written)
        self.pause_states = ArrayTable(ports, PAUSE_STATE.size)
        self.pause_counts = ArrayTable(ports, PAUSE_COUNTS.size)
        self.waiting_octets = HashTable(0)
        self.virtual_switches = ArrayTable(size.switches, VIRTUAL_SWITCH.size)
        self.virtual_ports = ArrayTable(ports, VIRTUAL_PORT.size)

    def rules(self, index: int) -> ModelRules:
        """Return the settings of port ``index``."""
        found = self._rules.get(index)
        if found is None:
            found = ModelRules.of(self.settings.get(PORT_KEY.pack(index)))
            self._rules[index] = found
        return found

    def pausing(self, index: int) -> PauseLimits | None:
        """Return what port ``index`` may hold; None if it does not pause."""
        if index not in self._pauses:
            self._pauses[index] = PauseLimits.of(self.pause_rules.get(PORT_KEY.pack(index)))
        return self._pauses[index]

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
        self._rules.pop(index, None)

    def _pauses_written(self, index: int) -> None:
        self.forget_pauses(index)
        self.changed(partial(ModelProgram.forget_pauses, index=index))

    def forget_pauses(self, index: int) -> None:
        """Have what port ``index`` may hold read anew."""
        self._pauses.pop(index, None)

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
