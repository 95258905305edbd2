"""Collectives compiled into the schedules of all ranks: a library of scenarios."""
