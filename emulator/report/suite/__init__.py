"""The report of a benchmark suite: the ten parts of the drafts, made from its folder alone."""
