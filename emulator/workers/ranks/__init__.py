"""One run on several machines: a rank on each, which all take the same decisions."""
