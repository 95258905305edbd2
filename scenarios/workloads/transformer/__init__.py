"""A training step of a transformer: its computing, its traffic, and its operations: a library."""
