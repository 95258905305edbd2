"""Schedules of ranks: operations over GPU memory, checked, loaded and executed."""
