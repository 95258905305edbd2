"""Untried: NVIDIA NVUE, ``nv set qos``, by the command reference of Cumulus Linux 5."""

from __future__ import annotations

from collections.abc import Iterator

from emulator.lab.qos.emulated_qos import (
    UNVERIFIED,
    WARNING,
    EmulatedQos,
    NosConfig,
    NosFormat,
    ports_note,
    register,
)

#: Sizes of trimmed packets that the command takes (octets), in steps.
_TRIM_SIZES = range(256, 1025, 4)


def _commands(qos: EmulatedQos) -> Iterator[str]:
    yield f"nv set qos mapping {UNVERIFIED} trust l3"
    for number, points in qos.code_points().items():
        for point in points:
            yield f"nv set qos mapping {UNVERIFIED} dscp {point} switch-priority {number}"
    mapping = "nv set qos egress-queue-mapping default-global"
    for number in qos.code_points():
        yield f"{mapping} switch-priority {number} traffic-class {number}"
    for number in sorted({qos.control, qos.trimmed or qos.control}):
        yield f"nv set qos egress-scheduler default-global traffic-class {number} mode strict"
    if qos.pause is not None:
        yield f"nv set qos pfc {UNVERIFIED} switch-priority {qos.pause.priority}"
        yield f"nv set qos pfc {UNVERIFIED} tx enable"
        yield f"nv set qos pfc {UNVERIFIED} rx enable"
    for group in qos.groups:
        if group.rules is not None:
            control = f"nv set qos congestion-control {group.name} traffic-class {qos.data}"
            yield f"{control} ecn enable"
            yield f"{control} red disable"
            yield f"{control} min-threshold {group.rules.kmin_bytes}"
            yield f"{control} max-threshold {group.rules.kmax_bytes}"
            yield f"{control} probability {group.probability}"
    if qos.trim_dscp is not None:
        trimming = "nv set system forwarding packet-trim"
        yield f"{trimming} state enabled"
        yield f"{trimming} remark dscp {qos.trim_dscp}"
        yield f"{trimming} size {_trim_size(qos)}"
        yield f"{trimming} switch-priority {qos.trimmed}"
    for group in qos.groups:
        ports = ",".join(port.name for port in group.ports)
        interface = f"nv set interface {ports}"
        yield f"{interface} qos mapping profile {UNVERIFIED}"
        if group.rules is not None:
            yield f"{interface} qos congestion-control profile {group.name}"
        if qos.pause is not None:
            yield f"{interface} qos pfc profile {UNVERIFIED}"
            if qos.pause.watchdog_ns:
                yield f"{interface} qos pfc-watchdog state enable"
        if qos.trim_dscp is not None:
            yield f"{interface} packet-trim egress-eligibility traffic-class {qos.data}"


def _trim_size(qos: EmulatedQos) -> int:
    """Return the least size that the command takes and that holds the emulator's."""
    return next((size for size in _TRIM_SIZES if size >= qos.trim_octets), _TRIM_SIZES[-1])


def _notes(qos: EmulatedQos) -> Iterator[str]:
    yield WARNING
    yield qos.title
    yield ports_note(qos)
    yield "Not to be mixed with nv set qos roce, which has settings of its own."
    if qos.trim_dscp is not None:
        yield (
            f"Trimmed frames have {qos.trim_octets} octets in the emulator and {_trim_size(qos)} "
            "here, the least that the command takes. Packet trimming needs Spectrum-4 or later."
        )
    if qos.pause is not None and qos.pause.watchdog_ns:
        yield f"The watchdog's time of {qos.pause.watchdog_ns} ns is left to the switch's default."
    yield from qos.lost()


def to_nvue(qos: EmulatedQos) -> NosConfig:
    """Return commands for ``nv config apply``, with the notes as comments in front."""
    notes = list(_notes(qos))
    lines = [*(f"# {note}" for note in notes), *_commands(qos), "nv config diff"]
    return NosConfig("\n".join(lines) + "\n", notes)


NVUE = register(NosFormat("nvue", "NVIDIA NVUE commands", lambda n: f"swp{n + 1}", to_nvue))
