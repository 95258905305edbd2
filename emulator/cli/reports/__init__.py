"""Verbs that read run folders: ``uetemu report``, ``uetemu compare`` and ``uetemu follow``."""
