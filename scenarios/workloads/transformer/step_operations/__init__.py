"""The operations of a training step, written for all GPUs: a library of its scenarios."""
