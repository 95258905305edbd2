"""Settings of ports, decoded from the tables once for all frames."""

from __future__ import annotations

from typing import NamedTuple

from emulator.dataplane.switch.bpf.layout import (
    CLASS_SETTINGS,
    FAULT_SETTINGS,
    FAULTS_AT,
    PAUSE_RULES,
    PORT_HEAD,
    PORT_TAIL,
    TAIL_AT,
    Queue,
    TrafficClass,
)


class ModelClass(NamedTuple):
    """``class_settings`` of ``asic.h``; octets are those on the wire."""

    mark_from: int
    mark_all: int
    mark_slope: int
    trim_above: int
    limit: int
    priority: int
    queue: int


class ModelFaults(NamedTuple):
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


class ModelRules(NamedTuple):
    """``port_settings`` of ``asic.h``, as far as a virtual clock has a use for them."""

    rate: int
    seed: int
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
    switch_seed: int
    flowlet_gap: int

    @classmethod
    def of(cls, settings: bytes) -> ModelRules:
        """Decode ``settings``."""
        rate, seed = PORT_HEAD.unpack_from(settings)
        at, classes = PORT_HEAD.size, []
        for _ in TrafficClass:
            numbers = ModelClass(*CLASS_SETTINGS.unpack_from(settings, at))
            classes.append(numbers._replace(queue=min(numbers.queue, int(Queue.LOW))))
            at += CLASS_SETTINGS.size
        tail = PORT_TAIL.unpack_from(settings, TAIL_AT)
        (by_code_point, trim_payload, trimmed_dscp, bin_shift, balancing, switch, native) = tail[:7]
        _, _, _, switch_seed, flowlet_gap = tail[7:]
        untrimmed = int(TrafficClass.UNTRIMMED)
        points = (by_code_point[octet >> 2] for octet in range(256))
        return cls(
            rate=rate,
            seed=seed,
            classes=tuple(classes),
            faults=ModelFaults(*FAULT_SETTINGS.unpack_from(settings, FAULTS_AT)),
            class_of=bytes(point if point <= untrimmed + 1 else untrimmed for point in points),
            trim_payload=trim_payload,
            trimmed_dscp=trimmed_dscp,
            bin_shift=bin_shift & 63,
            balancing=balancing,
            switch=switch,
            native_protocol=native,
            switch_seed=switch_seed,
            flowlet_gap=flowlet_gap,
        )


class PauseLimits(NamedTuple):
    """``pause_rules`` of ``pfc.h``, of a port that pauses."""

    ceiling: int
    dropping: bool

    @classmethod
    def of(cls, packed: bytes) -> PauseLimits | None:
        """Decode ``packed``; None of a port that does not pause."""
        _, _, ceiling, enabled, dropping = PAUSE_RULES.unpack(packed)
        return cls(ceiling, bool(dropping)) if enabled else None
