"""Every key of ``result.json`` and every counter has a meaning in the manual, and no other has."""

import ast
import re
from collections.abc import Mapping
from dataclasses import fields

import pytest

from emulator import result_keys
from emulator.dataplane.kernel.port_counters import PortCounters, QueueCounters
from emulator.dataplane.switch.cable_counters import LinkCounters, PauseCounters
from emulator.dataplane.switch.switch_counters import ClassCounters, PoolUse, QueueDepth
from emulator.metrics import METRICS
from emulator.rocev2 import counters
from emulator.run.results import ROW_KEYS, Result
from tests import CHECKOUT
from uet import counter_meanings

#: Each stack's sources, meanings, and names that stand in these sources for the other stack.
STACKS = {
    "uet": (("uet",), counter_meanings.COUNTERS, set()),
    # Parsing of carriers, with its reasons to drop, is that of Ultra Ethernet.
    "rocev2": (
        ("emulator/rocev2", "uet/carrier_codec.py"),
        counters.COUNTERS,
        {"rx_drop_not_uet", "rx_drop_bad_crc"},
    ),
}


def names(kind: type) -> set[str]:
    return {one.name for one in fields(kind)}


@pytest.mark.parametrize(
    ("kind", "meanings"),
    [
        (ClassCounters, result_keys.SWITCH_CLASS),
        (QueueDepth, result_keys.SWITCH_QUEUE),
        (PoolUse, result_keys.SWITCH_POOL),
        (PauseCounters, result_keys.PAUSE),
        (LinkCounters, result_keys.LINK),
    ],
)
def test_fields_have_meanings(kind: type, meanings: Mapping[str, str]) -> None:
    assert names(kind) == set(meanings)


def test_a_result_and_its_rows_have_meanings() -> None:
    assert names(Result) | {"schema", "units", "metrics"} == set(result_keys.RESULT)
    assert set(ROW_KEYS) <= METRICS.keys()


def test_a_port_has_meanings() -> None:
    queues = {"control", "data"}
    own = names(PortCounters) - queues
    inner = {
        ", ".join(f"{queue}.{name}" for queue in sorted(queues)) for name in names(QueueCounters)
    }
    assert own | inner == set(result_keys.PORT)


def counted(places: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """Return the keys of subscripts of counters in the source, and all its strings."""
    keys, strings = set(), set()
    for place in places:
        path = CHECKOUT / place
        for file in [path] if path.is_file() else path.rglob("*.py"):
            if file.name in ("counter_meanings.py", "counters.py"):
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    strings.add(node.value)
                if isinstance(node, ast.Subscript):
                    owner = ast.unparse(node.value)
                    if re.search(r"(counts|counters)$", owner):
                        keys |= {
                            inner.value
                            for inner in ast.walk(node.slice)
                            if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
                        }
    return keys, strings


@pytest.mark.parametrize("stack", STACKS)
def test_counters_of_transports_have_meanings(stack: str) -> None:
    places, meanings, others = STACKS[stack]
    keys, strings = counted(places)
    assert len(keys) > 20
    assert keys <= set(meanings)
    drops = {one for one in strings if re.fullmatch(r"(rx|tx)_drop_[a-z_]+", one)} - others
    assert drops <= set(meanings)
    assert set(meanings) <= strings, "a meaning of no counter"
