"""Scenarios that train neural networks with real numbers, spread over the GPUs of a fabric."""

HOLDS_SCENARIOS = True
