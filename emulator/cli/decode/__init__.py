"""``uetemu decode``."""
