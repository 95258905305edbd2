"""Measures of trials: lower bounds, message times, port records, queue depths."""
