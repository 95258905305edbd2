"""Trials farmed out to the ranks of an MPI job, on one machine or several that share no files."""
