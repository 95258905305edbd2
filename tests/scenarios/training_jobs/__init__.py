"""Tests of the scenarios of whole jobs."""
