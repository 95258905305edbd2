"""Errors that a user can mend."""


class UserError(Exception):
    """One sentence: what was wrong, and how to mend it.  The command line prints it and exits 1."""
