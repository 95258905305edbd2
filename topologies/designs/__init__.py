"""Topology designs: one file for each shape, with its drawing and its parameters."""
