"""Errors that a user can mend."""


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
