"""Tests of the published measurements."""
