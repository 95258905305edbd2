"""Emulated queueing as configurations of switch operating systems; none was tried on hardware."""

from __future__ import annotations

from emulator.lab.qos import eos_config, nvue_config, sonic_config
from emulator.lab.qos.emulated_qos import FORMATS, NosConfig, NosFormat

__all__ = ["FORMATS", "NosConfig", "NosFormat", "eos_config", "nvue_config", "sonic_config"]
