"""The report of a run of a cluster: one page with all four networks over time."""
