"""Errors of the initiator that its user can act on."""

from __future__ import annotations

from emulator.cluster.nvme_tcp.wire.layouts import DO_NOT_RETRY, NvmeStatus, status_name
from emulator.errors import UserError

#: What its user can do about a status.
_HINTS: dict[int, str] = {
    NvmeStatus.CONNECT_INVALID_PARAMETERS: "; uetemu nvme discover lists the subsystems",
    NvmeStatus.CONNECT_INVALID_HOST: "; the target admits other hosts only: give --host NQN",
    NvmeStatus.CONNECT_CONTROLLER_BUSY: "; the target has no controller left: end another host",
    NvmeStatus.NAMESPACE_WRITE_PROTECTED: "; it is served read-only",
}


class NvmeCommandError(UserError):
    """The controller has completed a command with an error."""

    def __init__(self, what: str, status: int, result: int = 0) -> None:
        hint = _HINTS.get(status & ~DO_NOT_RETRY, "")
        super().__init__(f"{what} failed: {status_name(status)} ({status & 0x7FF:#05x}){hint}")
        self.status = status & ~DO_NOT_RETRY
        self.do_not_retry = bool(status & DO_NOT_RETRY)
        self.result = result


class QueueBrokenError(UserError):
    """The connection of a queue has ended while a command was outstanding, or before."""


class ControllerLostError(UserError):
    """The controller stayed away for longer than ``ctrl_loss_s``, or the host was closed."""
