"""Labs for the engine's tests."""

from __future__ import annotations

from tests.fabric.conftest import lab, lab_name

__all__ = ["lab", "lab_name"]
