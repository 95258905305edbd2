"""Errors that a user can mend."""

import errno


def is_full(error: BaseException | None) -> bool:
    """Return whether ``error`` is a disk without room, or a quota that is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_short_of_memory(error: BaseException | None) -> bool:
    """Return whether ``error``, or what it comes from, is that this process gets no more memory.

    A library then cannot be mapped, and a thread not be started, both without an error number.
    """
    while error is not None:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        if isinstance(error, ImportError) and "failed to map segment" in str(error):
            return True
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


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
