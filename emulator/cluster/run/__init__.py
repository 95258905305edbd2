"""Scenarios of a whole cluster: real clients and services in its networks, on the host's clock."""
