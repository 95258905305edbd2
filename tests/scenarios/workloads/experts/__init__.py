"""Tests of the neural network and of its training over a fabric."""
