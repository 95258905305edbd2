"""Runs beside each other: differences of their inputs and outcomes, and whether they count."""
