"""Facts of a trial's fabric and rows: what two results must share to be comparable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.report.suite.suite_folder import TrialRun


@dataclass(frozen=True)
class FabricFacts:
    """Size and rates of a fabric.

    ``rate_bps`` is B_acc, the sum of an accelerator's NICs; None where accelerators differ.
    """

    spec: str
    accelerators: int
    per_node: str
    switches: int
    cables: int
    rate_bps: int | None
    oversubscription: str
    control_plane: str

    @property
    def rate(self) -> str:
        """Return B_acc in Gb/s."""
        return "unequal" if self.rate_bps is None else f"{self.rate_bps / 1e9:g}"


def fabric_facts(run: TrialRun) -> FabricFacts:
    """Return the facts of the fabric that ``run`` was made on."""
    fabric = run.fabric
    servers, nodes = _objects(fabric.get("servers")), _objects(fabric.get("nodes"))
    links = _objects(fabric.get("links"))
    held = [len(one["gpus"]) for one in servers if isinstance(one.get("gpus"), list)]
    gpus = {str(one.get("name")) for one in nodes if one.get("role") == "gpu"}
    profile = fabric.get("profile")
    return FabricFacts(
        spec=str(run.result.get("topology")),
        accelerators=len(gpus) or _whole(run.result.get("ranks")),
        per_node=" or ".join(map(str, sorted(set(held)))) or "unknown",
        switches=sum(one.get("role") not in ("gpu", "nic") for one in nodes),
        cables=len(links),
        rate_bps=_accelerator_rate(fabric, gpus, links),
        oversubscription=_oversubscription(fabric.get("capacity")),
        control_plane=str(profile.get("control_plane")) if isinstance(profile, dict) else "unknown",
    )


def _accelerator_rate(
    fabric: Mapping[str, Any], gpus: set[str], links: Sequence[Mapping[str, Any]]
) -> int | None:
    """Return the rate of all cables of an accelerator; of a shared NIC it is not told apart."""
    rates = dict.fromkeys(gpus, 0)
    for link in links:
        for end in ("a", "b"):
            node = link.get(end)
            name = str(node.get("node")) if isinstance(node, dict) else ""
            if name in rates:
                rates[name] += _whole(link.get("rate_bps"))
    found = set(rates.values())
    return found.pop() if len(found) == 1 else None


def _oversubscription(capacity: object) -> str:
    ratios = capacity.get("oversubscription") if isinstance(capacity, dict) else None
    if not isinstance(ratios, dict) or not ratios:
        return "unknown"
    return ", ".join(f"{tier} {ratio}" for tier, ratio in ratios.items())


@dataclass(frozen=True)
class ComparableRow:
    """Facts of a row that another must share to be compared with it, beside its fabric."""

    pattern: str
    factor: str
    transport: str
    switch: str
    tss: str
    algorithm: str


def comparable_rows(run: TrialRun) -> dict[ComparableRow, list[int]]:
    """Return the distinct rows of ``run``, each with its sizes S (octets)."""
    found: dict[ComparableRow, list[int]] = {}
    for row in run.rows:
        busbw, algbw = row.get("busbw_gbps"), row.get("algbw_gbps")
        transport = str(row.get("transport"))
        one = ComparableRow(
            pattern=str(row.get("collective")),
            factor=f"{busbw / algbw:.4g}" if busbw and algbw else "none",
            transport=transport,
            switch=str(row.get("switch")),
            tss="active" if "tss=" in transport and "tss=off" not in transport else "not active",
            algorithm=str(row.get("algorithm") or "none"),
        )
        size = row.get("size_bytes")
        found.setdefault(one, []).append(size if isinstance(size, int) else 0)
    return found


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def joined(values: Iterable[object]) -> str:
    """Return distinct values in their order, as one text."""
    return ", ".join(dict.fromkeys(map(str, values)))
