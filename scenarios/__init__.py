"""The experiments: which fabric, which traffic, what is measured."""
