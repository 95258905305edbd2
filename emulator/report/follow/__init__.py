"""One packet followed through every hop of a run, from the files of its folder."""
