"""Verbs that read run folders: ``uetemu report`` and ``uetemu compare``."""
