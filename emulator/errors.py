"""Errors that a user can mend."""

import errno


def is_full(error: BaseException | None) -> bool:
    """Return whether ``error`` is a disk without room, or a quota that is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class UserError(Exception):
    """One sentence: what was wrong, and how to mend it.  The command line prints it and exits 1."""


class Misfit(UserError):
    """Parameters do not go together, or not with the fabric.

    They are those of a switch, a control plane or a topology; ``parameters`` are those to blame,
    the likeliest first.
    """

    def __init__(self, stated: str, *parameters: str) -> None:
        super().__init__(stated)
        self.parameters = parameters
