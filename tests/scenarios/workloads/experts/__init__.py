"""Tests of mixtures of experts: routing, and exchanges."""
