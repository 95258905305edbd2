"""C and Python agree on every member of every struct that they share, and on every number.

The compiler describes the structs in the object file (BTF), so what is compared is what the kernel
loads, and not the text of a header.
"""

import json
import re
import shutil
import subprocess
from enum import IntEnum
from pathlib import Path
from typing import Any, get_args

import pytest

from emulator.dataplane.settings import Clock
from emulator.dataplane.switch.balancing import Balancing
from emulator.dataplane.switch.bpf import layout
from emulator.dataplane.switch.bpf import switch_program as asic_program
from emulator.dataplane.switch.bpf.layout import (
    DropReason,
    MemberPlace,
    Queue,
    TrafficClass,
)
from emulator.dataplane.switch.bpf.switch_program import Size
from emulator.dataplane.switch.pfc_agent import EventKind
from topologies.ethernet import FRAMING_OCTETS, SHORTEST_OCTETS

pytestmark = pytest.mark.skipif(
    not (shutil.which("clang") and shutil.which("bpftool")), reason="needs clang and bpftool"
)

#: Each enum by its name in C, with what its values' names begin with there.
ENUMS: dict[str, tuple[type[IntEnum], str]] = {
    "traffic_class": (TrafficClass, "CLASS_"),
    "queue_name": (Queue, "QUEUE_"),
    "drop_reason": (DropReason, "DROP_"),
    "balancing": (Balancing, "BALANCE_"),
    "pause_event_kind": (EventKind, "PAUSE_"),
}
#: The number of an enum's values, where C has it as one more value.
COUNTS = {"traffic_class": "CLASSES", "queue_name": "QUEUES", "drop_reason": "DROP_REASONS"}
MACROS = (
    *("RATE_SHIFT", "SLOPE_SHIFT", "SHARE_SHIFT", "BINS", "HOPS", "FLOWLETS", "CODE_POINTS"),
    *("FAULTS_DEPARTURES", "FAULTS_ARRIVALS", "WITHOUT_CARRIER"),
)
#: BTF has the types of maps and variables only: these make it describe the other shared types.
DESCRIBED = "".join(
    f"\n{what} described_{what.split()[1]};"
    for what in (*(f"enum {name}" for name in ENUMS), "struct pause_event")
)


class Btf:
    """The types that an object file describes (``bpftool btf dump``)."""

    def __init__(self, path: Path) -> None:
        dump = ["bpftool", "btf", "dump", "file", str(path), "format", "raw", "-j"]
        done = subprocess.run(dump, capture_output=True, text=True, check=True, timeout=60)
        self._types: dict[int, dict[str, Any]] = {
            one["id"]: one for one in json.loads(done.stdout)["types"]
        }

    def _named(self, kind: str, name: str) -> dict[str, Any]:
        (found,) = [
            one for one in self._types.values() if (one["kind"], one["name"]) == (kind, name)
        ]
        return found

    def _size(self, number: int) -> int:
        one = self._types[number]
        if one["kind"] == "ARRAY":
            return int(one["nr_elems"]) * self._size(one["type_id"])
        return int(one["size"]) if "size" in one else self._size(one["type_id"])

    def places(self, name: str) -> list[tuple[str, MemberPlace]]:
        """Return the members of the struct ``name`` in C's order."""
        return [
            (one["name"], MemberPlace(one["bits_offset"] // 8, self._size(one["type_id"])))
            for one in self._named("STRUCT", name)["members"]
        ]

    def size(self, name: str) -> int:
        return int(self._named("STRUCT", name)["size"])

    def values(self, name: str) -> dict[str, int]:
        return {one["name"]: one["val"] for one in self._named("ENUM", name)["values"]}


def described(folder: Path, *, clock: Clock = "host", swap: tuple[str, str] | None = None) -> Btf:
    """Compile a copy of the program, with the lines ``swap`` of ``asic.h`` exchanged, if any."""
    sources = folder / "bpf"
    shutil.copytree(asic_program.SOURCES, sources)
    with (sources / asic_program.MAIN_SOURCE).open("a") as main:
        main.write(f"{DESCRIBED}\n")
    if swap:
        header = sources / "asic.h"
        text = header.read_text()
        one, other = (re.search(rf"^\t{re.escape(line)}.*\n", text, re.M) for line in swap)
        assert one is not None
        assert other is not None
        middle = text[one.end() : other.start()]
        header.write_text(text[: one.start()] + other[0] + middle + one[0] + text[other.end() :])
    with asic_program.built(Size(), clock=clock, sources=sources, cache=folder / "cache") as target:
        return Btf(target)


def differences(btf: Btf, *, virtual: bool) -> list[str]:
    """Return the names of the structs of which C and Python say different things."""
    return [
        name
        for name in layout.STRUCTS
        if virtual or not name.startswith("virtual_")  # no map of the other program has those
        if list(layout.places(name).items()) != btf.places(name)
        or layout.size_of(name) != btf.size(name)
    ]


@pytest.mark.parametrize("clock", get_args(Clock))
def test_members_are_where_the_program_has_them(tmp_path: Path, clock: Clock) -> None:
    btf = described(tmp_path, clock=clock)
    assert differences(btf, virtual=clock == "virtual") == []


def test_values_have_the_names_and_numbers_of_the_program(tmp_path: Path) -> None:
    btf = described(tmp_path)
    for name, (numbers, prefix) in ENUMS.items():
        reported = {f"{prefix}{one.name}": int(one) for one in numbers}
        if name in COUNTS:
            reported[COUNTS[name]] = len(numbers)
        assert reported == btf.values(name), name


def test_macros_have_the_numbers_of_the_program() -> None:
    header = (asic_program.SOURCES / "asic.h").read_text()
    for name in MACROS:
        (number,) = re.findall(rf"^#define {name} (\d+)\b", header, re.M)
        assert getattr(layout, name) == int(number), name


def test_octets_around_a_frame_are_those_of_ethernet() -> None:
    header = (asic_program.SOURCES / "packet.h").read_text()
    for name, octets in (("WIRE_OVERHEAD", FRAMING_OCTETS), ("SMALLEST_FRAME", SHORTEST_OCTETS)):
        (number,) = re.findall(rf"^#define {name} (\d+)\b", header, re.M)
        assert octets == int(number), name


@pytest.mark.parametrize(
    ("struct", "swap"),
    [
        ("class_settings", ("__u64 mark_from;", "__u64 mark_all;")),
        ("port_settings", ("__u32 bin_shift;", "__u32 balancing;")),
        ("class_counters", ("__u64 marked;", "__u64 trimmed;")),
        ("port_state", ("__u64 credit;", "__u64 low_credit;")),
    ],
)
def test_two_members_of_equal_size_that_change_places_are_noticed(
    tmp_path: Path, struct: str, swap: tuple[str, str]
) -> None:
    btf = described(tmp_path, swap=swap)
    assert btf.size(struct) == layout.size_of(struct)
    assert differences(btf, virtual=False) == [struct]
