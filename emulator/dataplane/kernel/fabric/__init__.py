"""Nodes, cables, bonds and tunnels of a fabric in the kernel."""
