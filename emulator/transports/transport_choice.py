"""Transports of a run: their facts about a fabric, and the user's parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from emulator.dataplane.kernel.frame_filter import TransportFrames
from emulator.dataplane.switch.switch_choice import DEFAULT, SwitchChoice
from emulator.errors import UserError
from emulator.transports.one_time_keys import OneTimeKeys
from emulator.transports.wire_cost import WireCost
from topologies.advice import near
from topologies.model import CableEnd, Topology
from topologies.parts.attachment import nic_rate_bps, port_rate_bps
from topologies.registry import Registry
from topologies.routing.paths import longest_to_gpus
from topologies.units import UnitError, parse_time_ns
from uet.wire.codes import MIN_TRIM_SIZE

#: First retransmission timeout of a run in base RTTs (the specifications leave it to the operator,
#: and their defaults suit networks with far longer ones).  Full queues of the deepest switch
#: profile at each of three hops fit in.
RTO_BASE_RTTS = 20

Options = Mapping[str, str]
#: The key under which options name the preset they come from.
PRESET = ""


@dataclass(frozen=True)
class TransportChoice:
    """A transport fitted to a fabric.

    ``name`` is what the user requested, parameters included.  ``factory`` (``module:function``)
    makes an endpoint from ``configs[gpu]`` and a seed.  ``keys`` are those that its endpoints still
    need, for one life (:meth:`keyed`).  ``data_packets`` and ``retransmitted`` name its counters of
    first transmissions and repeats.  ``event_logs``: its endpoints can write them.
    ``trimmed_octets``: what trimming must leave of an IP payload, so that the packet can be
    refused.  ``header_bits``: what a write carries of header data.
    ``queue_pairs``: those to each peer, which messages take in turn. ``out_of_order`` names the
    counter of packets that come out of order, where the transport keeps every flow on one path.
    ``traits`` describe by subject how it works, for people who compare it with another.
    ``code_points`` are those that its endpoints send, each with whether such packets can be marked
    (ECN).
    """

    name: str
    factory: str
    frames: TransportFrames
    configs: Mapping[str, Mapping[str, Any]]
    code_points: Mapping[int, bool]
    wire: WireCost
    data_packets: str
    retransmitted: str
    keys: OneTimeKeys | None = None
    event_logs: bool = True
    trimmed_octets: int = MIN_TRIM_SIZE
    out_of_order: str | None = None
    header_bits: int = 64
    queue_pairs: int = 1
    traits: Mapping[str, str] = field(default_factory=dict)

    def keyed(self, secret: bytes) -> TransportChoice:
        """Return this transport with keys derived from ``secret``, if it needs any."""
        if self.keys is None:
            return self
        more = self.keys.config(secret)
        configs = {gpu: {**config, **more} for gpu, config in self.configs.items()}
        return replace(self, keys=None, configs=configs)


class Fitter(Protocol):
    """Fits a transport with its options to a fabric; :class:`UserError` if that cannot be."""

    def __call__(
        self,
        requested: str,
        options: Options,
        topology: Topology,
        seed: int,
        switch: SwitchChoice | None,
    ) -> TransportChoice: ...


@dataclass(frozen=True)
class Preset:
    """Parameters that go by one word, and their changes to the customary switch."""

    options: Options
    meaning: str
    switch: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Words:
    """A parameter that takes one of ``values``: words, the ``default`` among them, or a registry.

    The default of words is the first of them.
    """

    values: tuple[str, ...] | Registry[Any]
    meaning: str
    default: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the values at this moment, the default first."""
        return self._registry.names(self.default) if self._registry else tuple(self.values)

    @property
    def described(self) -> str:
        """Return the meaning, and those of the entries of a registry."""
        return f"{self.meaning}: {self._registry.meanings()}" if self._registry else self.meaning

    @property
    def _registry(self) -> Registry[Any] | None:
        return self.values if isinstance(self.values, Registry) else None


@dataclass(frozen=True)
class RunTransport:
    """A transport that runs can use, by its ``name``; ``meaning`` is a line about it.

    ``words`` are its parameters that take one of some words; those that match ``free`` take other
    values, which ``fit`` reads; ``described`` explains these for people.
    ``default_switch`` is what it runs on where the user names no switch.  ``presets`` are the words
    that stand for several parameters; a user's parameter beside one overrides it.
    """

    name: str
    meaning: str
    fit: Fitter
    words: Mapping[str, Words]
    free: re.Pattern[str]
    described: Callable[[], Mapping[str, str]]
    default_switch: Callable[[Options, Topology], str] = lambda options, topology: DEFAULT
    presets: Mapping[str, Preset] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, tuple[str, ...]]:
        """Return the values of each parameter that takes one of some words, the default first."""
        return {name: one.names for name, one in self.words.items()}

    def chosen(self, options: Options) -> dict[str, str]:
        """Return ``options`` beside the defaults of those that take one of some words."""
        return {name: values[0] for name, values in self.options.items()} | dict(options)

    def parse(self, name: str, text: str) -> dict[str, str]:
        """``PARAMETER=VALUE,...``; :class:`UserError` for what it does not have."""
        found: dict[str, str] = {}
        presets: list[str] = []
        for part in filter(None, text.split(",")):
            option, equals, value = part.partition("=")
            if option in self.presets and not equals:
                presets.append(option)
                continue
            if self.free.fullmatch(option):
                found[option] = value
                continue
            if option not in self.words:
                raise UserError(
                    f"the transport {name} has no parameter {option!r}{near(option, self._names)}"
                )
            if not equals or value not in self.words[option].names:
                raise UserError(
                    f"{part!r}: the parameter {option} of the transport {name} takes one of "
                    f"{', '.join(self.words[option].names)}"
                )
            found[option] = value
        if len(presets) > 1:
            raise UserError(
                f"{' and '.join(presets)} are two presets of the transport {name}; keep one of them"
            )
        for preset in presets:
            found = {**self.presets[preset].options, **found, PRESET: preset}
        return found

    def switch(self, options: Options, topology: Topology) -> str:
        """Return what it runs on with ``options`` where the user names no switch."""
        customary = self.default_switch(options, topology)
        preset = self.presets.get(options.get(PRESET, ""))
        more = [f"{key}={value}" for key, value in preset.switch.items()] if preset else []
        return ",".join((customary if ":" in customary or not more else f"{customary}:", *more))

    @property
    def _names(self) -> Mapping[str, object]:
        return {
            **self.presets,
            **self.words,
            **{line.partition("=")[0]: 0 for line in self.described() if line},
        }

    def describe(self) -> str:
        """Return the parameters and their values, the default first, a line each."""
        lines = [
            f"  {name + '=' + '|'.join(one.names):<46}{one.described}"
            for name, one in self.words.items()
        ]
        lines += [f"  {name:<46}{preset.meaning}" for name, preset in self.presets.items()]
        return "\n".join((*lines, *(f"  {k:<46}{text}" for k, text in self.described().items())))


#: Those that come along stand in the modules of this room whose names end in ``_transport``.
TRANSPORTS: Registry[RunTransport] = Registry(
    "transport", "emulator.transports", ending="_transport"
)


def number(requested: str, option: str, text: str) -> float:
    """The value of a parameter that is a number; :class:`UserError` for anything else."""
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"transport {requested!r}: {option} is {text!r}; give a number") from None
    return int(value) if value.is_integer() else value


def rto_ns(requested: str, options: Options, base_rtt: int) -> int:
    """The first retransmission timeout (ns): the user's, or :data:`RTO_BASE_RTTS`."""
    if "rto" not in options:
        return RTO_BASE_RTTS * base_rtt
    try:
        return parse_time_ns(options["rto"])
    except UnitError as error:
        raise UserError(f"transport {requested!r}: rto: {error}") from None


def path_window(
    topology: Topology, gpu: str, packet_octets: int, more: int, port: str | None = None
) -> int:
    """Octets in flight that keep the NIC, or its ``port``, busy on its longest path, and no more.

    Rate times round trip; ``more``, what the receiver may leave unacknowledged; and one packet of
    ``packet_octets`` that is being serialised at each hop.
    """
    delay_ns, hops = longest_to_gpus(topology, gpu)
    round_trip = 2 * delay_ns
    rate = (
        nic_rate_bps(topology, gpu)
        if port is None
        else port_rate_bps(topology, CableEnd(gpu, port))
    )
    return rate * round_trip // (8 * 10**9) + more + (hops + 1) * packet_octets
