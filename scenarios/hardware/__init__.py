"""Measurements of hardware that others have published, and what uetemu gives for them."""
