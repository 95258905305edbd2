"""SONiC's ``config_db.json``: the tables of QoS, as its YANG models (sonic-*.yang) have them.

The tables of buffers are left out: pools and their sizes are a chip's.  Names of profiles say that
nobody has tried them, as JSON has no comments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from emulator.dataplane.switch.parameters import ClassRules
from emulator.dataplane.switch.pause import PauseRules
from emulator.lab.qos.emulated_qos import (
    HIGHEST_CLASS,
    UNVERIFIED,
    WARNING,
    EmulatedQos,
    NosConfig,
    NosFormat,
    ports_note,
    register,
)

#: Lanes of a port: SONiC names a port after its first one.
_LANES = 8
_COLOURS = ("green", "yellow", "red")
#: Times that sonic-pfcwd.yang takes (ms).
_WATCHDOG_MS = range(100, 5001)
_STRICT, _DATA = f"{UNVERIFIED}_strict", f"{UNVERIFIED}_data"

Tables = dict[str, dict[str, Any]]


def tables(qos: EmulatedQos) -> Tables:
    """Return the tables of QoS of the switch."""
    numbers = [str(number) for number in range(HIGHEST_CLASS + 1)]
    lossless = str(qos.data)
    found: Tables = {
        "DSCP_TO_TC_MAP": {
            UNVERIFIED: {str(dscp): str(number) for dscp, number in qos.classes.items()}
        },
        "TC_TO_QUEUE_MAP": {UNVERIFIED: {number: number for number in numbers}},
        "TC_TO_PRIORITY_GROUP_MAP": {
            UNVERIFIED: {
                number: number if qos.pause is not None and number == lossless else "0"
                for number in numbers
            }
        },
        "SCHEDULER": {_STRICT: {"type": "STRICT"}, _DATA: {"type": "DWRR", "weight": "100"}},
        "WRED_PROFILE": {},
        "PORT_QOS_MAP": {},
        "QUEUE": {},
    }
    if qos.pause is not None:
        found["MAP_PFC_PRIORITY_TO_QUEUE"] = {UNVERIFIED: {lossless: lossless}}
    if qos.trim_dscp is not None:
        found["SWITCH_TRIMMING"] = {
            "GLOBAL": {
                "size": str(qos.trim_octets),
                "dscp_value": str(qos.trim_dscp),
                "queue_index": str(qos.trimmed),
            }
        }
    for group in qos.groups:
        if group.rules is not None:
            found["WRED_PROFILE"][group.name] = _wred(group.rules, group.probability)
        for port in group.ports:
            data = {"scheduler": _DATA}
            if group.rules is not None:
                data["wred_profile"] = group.name
            found["QUEUE"][f"{port.name}|{qos.data}"] = data
            for number in sorted({qos.control, qos.trimmed or qos.control}):
                found["QUEUE"][f"{port.name}|{number}"] = {"scheduler": _STRICT}
            found["PORT_QOS_MAP"][port.name] = _maps(qos, lossless)
    if qos.pause is not None and (watchdog := _watchdog_ms(qos.pause)) is not None:
        action = "drop" if qos.pause.drops else "forward"
        times = {"detection_time": str(watchdog), "restoration_time": str(watchdog)}
        found["PFC_WD"] = {port.name: {"action": action, **times} for port in qos.ports}
    return {name: table for name, table in found.items() if table}


def _wred(rules: ClassRules, probability: int) -> Mapping[str, str]:
    found = {"ecn": "ecn_all"}
    for colour in _COLOURS:
        found |= {
            f"wred_{colour}_enable": "true",
            f"{colour}_min_threshold": str(rules.kmin_bytes),
            f"{colour}_max_threshold": str(rules.kmax_bytes),
            f"{colour}_drop_probability": str(probability),
        }
    return found


def _maps(qos: EmulatedQos, lossless: str) -> Mapping[str, str]:
    found = {
        "dscp_to_tc_map": UNVERIFIED,
        "tc_to_queue_map": UNVERIFIED,
        "tc_to_pg_map": UNVERIFIED,
    }
    if qos.pause is not None:
        found |= {"pfc_enable": lossless, "pfc_to_queue_map": UNVERIFIED}
        if _watchdog_ms(qos.pause) is not None:
            found["pfcwd_sw_enable"] = lossless
    return found


def _watchdog_ms(rules: PauseRules) -> int | None:
    """Return the watchdog's time in ms where SONiC takes it."""
    time_ms, rest = divmod(rules.watchdog_ns, 10**6)
    return time_ms if not rest and time_ms in _WATCHDOG_MS else None


def _notes(qos: EmulatedQos) -> Iterator[str]:
    yield WARNING
    yield qos.title
    yield ports_note(qos)
    yield (
        "SONiC's WRED drops packets that are not ECN-capable where it would mark; the emulator "
        "lets them pass up to the limit."
    )
    if qos.trim_dscp is not None:
        yield (
            f"SWITCH_TRIMMING trims nothing yet: queue {qos.data} needs a BUFFER_PROFILE with "
            f"packet_discard_action trim. The size of {qos.trim_octets} octets is the emulator's; "
            "a chip may take others only."
        )
    if qos.pause is not None and qos.pause.watchdog_ns and _watchdog_ms(qos.pause) is None:
        yield (
            f"The emulated watchdog of {qos.pause.watchdog_ns} ns is left out: SONiC's takes "
            f"{_WATCHDOG_MS[0]} to {_WATCHDOG_MS[-1]} ms."
        )
    yield from qos.lost()


def to_sonic(qos: EmulatedQos) -> NosConfig:
    """Return the tables as JSON for ``config load`` or ``config apply-patch``, with notes."""
    return NosConfig(json.dumps(tables(qos), indent=4) + "\n", list(_notes(qos)))


SONIC = register(
    NosFormat("sonic", "SONiC config_db.json", lambda n: f"Ethernet{_LANES * n}", to_sonic)
)
