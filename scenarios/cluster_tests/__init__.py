"""Scenarios of a whole cluster: each conducts services and clients in its networks."""

HOLDS_CLUSTER_SCENARIOS = True
