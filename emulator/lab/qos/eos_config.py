"""Untried: Arista EOS, maps of code points and a QoS profile for the interfaces of each kind."""

from __future__ import annotations

from collections.abc import Iterator

from emulator.dataplane.switch.pause import PauseRules
from emulator.lab.qos.emulated_qos import (
    WARNING,
    EmulatedQos,
    NosConfig,
    NosFormat,
    PortGroup,
    ports_note,
    register,
)

#: Times that the watchdog takes (ns).
_WATCHDOG_NS = (10 * 10**6, 60 * 10**9)


def _lines(qos: EmulatedQos) -> Iterator[str]:
    for number, points in qos.code_points().items():
        yield f"qos map dscp {' '.join(map(str, points))} to traffic-class {number}"
    yield "!"
    if (rules := _watched(qos)) is not None:
        seconds = f"{rules.watchdog_ns / 1e9:.3f}"
        pause = "priority-flow-control pause watchdog"
        yield f"{pause} default timeout {seconds}"
        yield f"{pause} default recovery-time {seconds}"
        yield f"{pause} action {'drop' if rules.drops else 'no-drop'}"
        yield "!"
    for group in qos.groups:
        yield from _profile(qos, group)
        yield "!"
    for group in qos.groups:
        for port in group.ports:
            yield f"interface {port.name}"
            yield f"   service-profile {_name(group)}"
            yield "!"


def _name(group: PortGroup) -> str:
    return group.name.replace("_", "-")


def _profile(qos: EmulatedQos, group: PortGroup) -> Iterator[str]:
    yield f"qos profile {_name(group)}"
    yield "   qos trust dscp"
    if qos.pause is not None:
        yield "   priority-flow-control on"
        yield f"   priority-flow-control priority {qos.pause.priority} no-drop"
    for number in sorted({qos.control, qos.trimmed or qos.control}, reverse=True):
        yield "   !"
        yield f"   uc-tx-queue {number}"
        yield "      priority strict"
    yield "   !"
    yield f"   uc-tx-queue {qos.data}"
    yield "      no priority"
    if group.rules is not None:
        yield (
            f"      random-detect ecn minimum-threshold {group.rules.kmin_bytes} bytes "
            f"maximum-threshold {group.rules.kmax_bytes} bytes "
            f"max-mark-probability {group.probability} weight 0"
        )


def _watched(qos: EmulatedQos) -> PauseRules | None:
    """Return the rules of pauses whose watchdog has a time that EOS takes."""
    least, most = _WATCHDOG_NS
    return qos.pause if qos.pause and least <= qos.pause.watchdog_ns <= most else None


def _notes(qos: EmulatedQos) -> Iterator[str]:
    yield WARNING
    yield qos.title
    yield ports_note(qos)
    yield (
        "Queues are uc-tx-queue or tx-queue, and units of thresholds differ, by platform; traffic "
        "class N is taken to be in queue N, which is the default."
    )
    if qos.trim_dscp is not None:
        yield (
            f"Trimming (code point {qos.trim_dscp}, {qos.trim_octets} octets) is left out: no "
            "public command reference of EOS has it."
        )
    if qos.pause is not None and qos.pause.watchdog_ns and _watched(qos) is None:
        yield (
            f"The emulated watchdog of {qos.pause.watchdog_ns} ns is left out: EOS takes 0.01 to "
            "60 s."
        )
    yield from qos.lost()


def to_eos(qos: EmulatedQos) -> NosConfig:
    """Return lines for ``configure``, with the notes as comments in front."""
    notes = list(_notes(qos))
    lines = [*(f"! {note}" for note in notes), "!", *_lines(qos), "end"]
    return NosConfig("\n".join(lines) + "\n", notes)


EOS = register(NosFormat("eos", "Arista EOS configuration", lambda n: f"Ethernet{n + 1}/1", to_eos))
