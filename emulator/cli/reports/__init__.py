"""Verbs that read run folders: ``uetemu report``, ``compare``, ``follow``, ``traffic``."""
