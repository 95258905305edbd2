"""The two clocks of a run, and whether its times can be trusted."""
