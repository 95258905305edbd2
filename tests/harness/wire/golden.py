"""The golden vectors: one packet each, with its octets, fields and derived numbers."""

import json
from dataclasses import dataclass
from typing import Any

from tests import DATA

VECTORS = DATA / "vectors"
CAPTURE = VECTORS / "uet-vectors.pcap"
#: DSCP that the trimmed vector carries.
TRIMMED_DSCP = 10

#: Kinds of field names that describe the UET headers rather than what carries them.
UET_FIELDS = ("pds.", "ses.", "ext.", "tss.")


@dataclass(frozen=True)
class Vector:
    """One golden packet."""

    name: str
    frame: bytes
    fields: dict[str, Any]
    derived: dict[str, int]
    #: (name, octets) of each layer of the UET part
    layers: list[tuple[str, bytes]]
    #: keys of the file that restrict what it proves: header_only, crc_only
    restrictions: frozenset[str]

    @property
    def is_tss(self) -> bool:
        return self.name.startswith("rp-tss-")

    @property
    def crc_only(self) -> bool:
        return "crc_only" in self.restrictions

    @property
    def native(self) -> bool:
        return "entropy.entropy" in self.fields

    def __str__(self) -> str:
        return self.name


def _load(entry: dict[str, Any]) -> Vector:
    data = json.loads((VECTORS / f"{entry['name']}.json").read_text())
    return Vector(
        name=data["name"],
        frame=bytes.fromhex(data["frame_hex"]),
        fields=data["fields"],
        derived=data["derived"],
        layers=[(layer["header"], bytes.fromhex(layer["hex"])) for layer in data["layers"]],
        restrictions=frozenset(key for key in ("header_only", "crc_only") if data.get(key)),
    )


ALL = [_load(entry) for entry in json.loads((VECTORS / "index.json").read_text())]
#: Vectors without security whose UET headers mean something.
CLEAR = [vector for vector in ALL if not vector.is_tss and not vector.crc_only]
WITH_CRC = [vector for vector in ALL if "crc" in vector.fields]


def number(value: int | str) -> int:
    """A vector's field as a number."""
    return int(value, 16) if isinstance(value, str) else value
