"""``uetemu graph``."""
