"""Tests of the workloads of scenarios."""
