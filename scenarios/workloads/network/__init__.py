"""A small neural network on numpy, and its training spread over the GPUs of a fabric: a library."""
