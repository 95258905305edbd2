"""Scenarios of whole jobs: training steps, experts, inference, checkpoints, jobs side by side."""

HOLDS_SCENARIOS = True
