"""Scenarios of whole jobs: training steps, experts, inference, checkpoints, several jobs at once."""

HOLDS_SCENARIOS = True
