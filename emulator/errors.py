"""Errors that a user can mend."""


class UserError(Exception):
    """One sentence: what was wrong, and how to mend it.  The command line prints it and exits 1."""


class Misfit(UserError):
    """Parameters, of a switch, a control plane or a topology, that do not go together, or with the
    fabric: ``parameters`` are those to blame, the likeliest first."""

    def __init__(self, stated: str, *parameters: str) -> None:
        super().__init__(stated)
        self.parameters = parameters
