"""The report of a run: one HTML file, made from the run folder alone."""
