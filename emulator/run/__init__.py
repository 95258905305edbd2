"""A run: from a loaded scenario to its run folder."""
