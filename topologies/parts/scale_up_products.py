"""Scale-up networks by name (``scale_up=nvswitch3``): the links of a GPU, and their rate.

The rates are those that documents give, each way; ``source`` names the document.  Copies do not
reach them: of NVLink's 25 GB/s a link they get 20 (NVIDIA/nccl-tests#149), of MI300X's 64 they get
48 (ROCm/rccl#1210).  No document has a latency of one direction, so that ``scale_up_latency`` is
the user's for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from topologies.model import MESH, SWITCH
from topologies.units import format_rate

_GBPS: Final = 1_000_000_000
_FABRIC_MANAGER: Final = "NVIDIA Fabric Manager User Guide, GPU Baseboard Topologies"


@dataclass(frozen=True, kw_only=True)
class ScaleUpProduct:
    """A product: ``links`` of a GPU (None: its maker's choice) with ``link_bps`` each way.

    Of a mesh one leads to each peer.  ``sums``: its switches sum what they carry (NVLS).
    """

    shape: str
    links: int | None
    link_bps: int
    source: str
    sums: bool = False

    @property
    def meaning(self) -> str:
        """Return shape, links and source in a line."""
        links = "links" if self.links is None else f"{self.links} links"
        way = "one to each GPU" if self.shape == MESH else "to switches"
        adds = ", which sum (NVLS)" if self.sums else ""
        each = f"{self.link_bps / 8 / _GBPS:g} GB/s each way"
        return f"{links} of {format_rate(self.link_bps)} ({each}), {way}{adds}: {self.source}"


PRODUCTS: Mapping[str, ScaleUpProduct] = {
    "nvswitch1": ScaleUpProduct(
        shape=SWITCH, links=6, link_bps=200 * _GBPS, source=f"V100, DGX-2; {_FABRIC_MANAGER}"
    ),
    "nvswitch2": ScaleUpProduct(
        shape=SWITCH, links=12, link_bps=200 * _GBPS, source=f"A100; {_FABRIC_MANAGER}"
    ),
    "nvswitch3": ScaleUpProduct(
        shape=SWITCH,
        links=18,
        link_bps=200 * _GBPS,
        source=f"H100, H200; {_FABRIC_MANAGER}",
        sums=True,
    ),
    "nvswitch4": ScaleUpProduct(
        shape=SWITCH,
        links=18,
        link_bps=400 * _GBPS,
        source="B200, GB200; NVIDIA Health Validation, NVLink Checks (18 links), GB200 NVL "
        "Multi-Node Tuning Guide, UCX (900 GB/s one way)",
        sums=True,
    ),
    "mi300x": ScaleUpProduct(
        shape=MESH,
        links=7,
        link_bps=512 * _GBPS,
        source="MI300X; AMD's platform data sheet (128 GB/s both ways a link), ROCm/rccl#1210",
    ),
    "ualink": ScaleUpProduct(
        shape=SWITCH,
        links=None,
        link_bps=800 * _GBPS,
        source="UALink 200G 1.0, a station of four lanes; scale_up_links is the accelerator's",
    ),
}


def meanings() -> dict[str, str]:
    """Return what each product has, by its name."""
    return {name: product.meaning for name, product in PRODUCTS.items()}
