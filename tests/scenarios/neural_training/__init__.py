"""Tests of the scenarios that train neural networks."""
