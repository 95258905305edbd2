"""Tests of disaggregated serving: arrivals, times, and who sends what."""
