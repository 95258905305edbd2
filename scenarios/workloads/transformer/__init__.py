"""A training step of a transformer: its computing, its traffic, its times: a library."""
