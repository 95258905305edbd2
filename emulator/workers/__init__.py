"""Who carries out a run: this process, forked ones, or the ranks of an MPI job."""

MOST_WORKERS = 256
