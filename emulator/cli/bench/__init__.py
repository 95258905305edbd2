"""``uetemu bench``: suites of benchmark drafts."""
