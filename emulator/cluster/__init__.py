"""Clusters that run: a lab for each of their networks, joined by the machines in them."""
