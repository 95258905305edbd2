"""OpenMetrics of a running lab and of the run in it."""
