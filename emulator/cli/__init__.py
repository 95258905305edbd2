"""The verbs of ``uetemu``: one file for each."""
