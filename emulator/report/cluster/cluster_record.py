"""The folder of a cluster's run, read back."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.cluster.run.cluster_runner import SCHEMA
from emulator.errors import UserError

RESULT, SAMPLES = "result.json", "networks.csv"


@dataclass(frozen=True, kw_only=True)
class ClusterRecord:
    """``result`` is the content of ``result.json``, ``samples`` are the lines of ``networks.csv``.

    A sample has its time ``at_s``, its ``network``, and the octets and drops since the run began.
    """

    path: Path
    result: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path) -> ClusterRecord:
        """Read the folder ``path``.  Raises UserError if it is not that of a cluster's run."""
        try:
            result = json.loads((path / RESULT).read_text(encoding="utf-8"))
            with (path / SAMPLES).open(newline="", encoding="utf-8") as file:
                samples = [
                    {
                        "at_s": float(row["at_s"]),
                        "network": row["network"],
                        "octets": int(row["octets"]),
                        "drops": int(row["drops"]),
                    }
                    for row in csv.DictReader(file)
                ]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{path} is no complete folder of uetemu cluster: {error}") from None
        return cls(path=path, result=result, samples=samples)

    def dilation(self, network: str) -> float:
        """Return the machine's seconds for one of ``network``; 1 where the result has none."""
        rows = (one for one in self.result.get("networks", ()) if one["network"] == network)
        return float(next((one["dilation"] for one in rows), 1.0))


def is_cluster_run(path: Path) -> bool:
    """Return whether ``path`` is the folder of a cluster's run."""
    try:
        content = json.loads((path / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("schema") == SCHEMA
