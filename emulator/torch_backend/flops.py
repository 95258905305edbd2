"""Formulas for the FLOPs of torch's operations."""

# ruff: noqa: SLF001 (operations of torch have such names)
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
#: By operation; torch has none for attention on a CPU, which has the same shapes.
FLOPS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    _aten._scaled_dot_product_flash_attention_for_cpu: (
        flop_registry[_aten._scaled_dot_product_flash_attention]
    ),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        flop_registry[_aten._scaled_dot_product_flash_attention_backward]
    ),
}
