"""Admin commands (NVM Express Base 2.0, 5), but Identify, Get Log Page and Fabrics commands."""

from __future__ import annotations

from emulator.cluster.nvme_tcp.target.command_outcomes import (
    SUCCEEDED,
    Answer,
    Outcome,
    Waiting,
    refused,
    transmission_of,
)
from emulator.cluster.nvme_tcp.target.nvme_controller import NvmeController
from emulator.cluster.nvme_tcp.wire.layouts import FeatureId, NvmeCommand, NvmeStatus

_SAVE = 1 << 31


def set_features(controller: NvmeController, command: NvmeCommand, now_ns: int) -> Outcome:
    """Carry out Set Features (Base 2.0, 5.27); nothing is saved."""
    number, value = command.cdw10 & 0xFF, command.cdw11
    if command.cdw10 & _SAVE:
        return refused(NvmeStatus.INVALID_FIELD)
    if number == FeatureId.KEEP_ALIVE:
        controller.set_keep_alive(value, now_ns)
        return SUCCEEDED
    if number == FeatureId.ASYNC_EVENTS:
        controller.event_mask = value
        return SUCCEEDED
    if number == FeatureId.HOST_IDENTIFIER:
        return refused(NvmeStatus.SEQUENCE_ERROR)  # Connect has set it (Base 2.0, 5.27.1.25)
    if controller.subsystem is None:
        return refused(NvmeStatus.INVALID_FIELD)
    if number == FeatureId.NUMBER_OF_QUEUES:
        if 0xFFFF in (value & 0xFFFF, value >> 16):
            return refused(NvmeStatus.INVALID_FIELD)
        return _allocated_queues(controller)
    if number == FeatureId.WRITE_CACHE:
        controller.write_cache = bool(value & 1)
        return SUCCEEDED
    return refused(NvmeStatus.INVALID_FIELD)


def _allocated_queues(controller: NvmeController) -> Answer:
    """Return the I/O queues of the controller, which has them whatever was requested."""
    last = controller.settings.queues - 1
    return Answer(result=last << 16 | last)


def get_features(controller: NvmeController, command: NvmeCommand) -> Outcome:
    """Answer Get Features (Base 2.0, 5.15) with present values."""
    number = command.cdw10 & 0xFF
    if command.cdw10 >> 8 & 7:  # SEL: default, saved, supported
        return refused(NvmeStatus.INVALID_FIELD)
    if number == FeatureId.KEEP_ALIVE:
        return Answer(result=controller.keep_alive_ms)
    if number == FeatureId.ASYNC_EVENTS:
        return Answer(result=controller.event_mask)
    if controller.subsystem is None:
        return refused(NvmeStatus.INVALID_FIELD)
    if number == FeatureId.HOST_IDENTIFIER:
        if not command.cdw11 & 1:  # EXHID: over fabrics it has 128 bits
            return refused(NvmeStatus.INVALID_FIELD)
        return transmission_of(controller.host.identifier)
    if number == FeatureId.NUMBER_OF_QUEUES:
        return _allocated_queues(controller)
    if number == FeatureId.WRITE_CACHE:
        return Answer(result=int(controller.write_cache))
    return refused(NvmeStatus.INVALID_FIELD)


def async_event_request(controller: NvmeController, command: NvmeCommand) -> Outcome:
    """Hold an Async Event Request (Base 2.0, 5.2) until an Abort, a reset or the end."""
    if len(controller.event_requests) >= controller.settings.event_requests:
        return refused(NvmeStatus.EVENT_LIMIT_EXCEEDED)
    controller.event_requests.append(command.cid)
    return Waiting()


def keep_alive(controller: NvmeController, now_ns: int) -> Outcome:
    """Start the keep-alive timer again (Keep Alive, Base 2.0, 5.18)."""
    controller.keep_alive(now_ns)
    return SUCCEEDED
