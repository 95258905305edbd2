"""Tests of benchmark suites, with trials that a small program stands in for."""
