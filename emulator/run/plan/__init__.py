"""The plan of a run, made and checked before the first kernel object exists."""
