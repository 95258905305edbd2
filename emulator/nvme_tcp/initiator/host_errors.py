"""Errors of the initiator that its user can act on."""

from __future__ import annotations

from emulator.errors import UserError
from emulator.nvme_tcp.wire.nvme_status import DO_NOT_RETRY, status_name


class NvmeCommandError(UserError):
    """The controller has completed a command with an error."""

    def __init__(self, what: str, status: int, result: int = 0) -> None:
        super().__init__(f"{what} failed: {status_name(status)} ({status & 0x7FF:#05x})")
        self.status = status & ~DO_NOT_RETRY
        self.do_not_retry = bool(status & DO_NOT_RETRY)
        self.result = result


class QueueBrokenError(UserError):
    """The connection of a queue has ended while a command was outstanding, or before."""


class ControllerLostError(UserError):
    """The controller stayed away for longer than ``ctrl_loss_s``, or the host was closed."""
