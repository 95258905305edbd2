"""Fabrics commands: Connect, Property Get and Property Set (NVM Express Base 2.0, 6)."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.cluster.nvme_tcp.target.command_outcomes import SUCCEEDED, Answer, Outcome, refused
from emulator.cluster.nvme_tcp.target.nvme_controller import NvmeController
from emulator.cluster.nvme_tcp.wire.layouts import (
    CONNECT,
    CONNECT_DATA,
    DISABLE_FLOW_CONTROL,
    IN_DATA,
    LONG_PROPERTIES,
    PROPERTY,
    NvmeStatus,
    Property,
    padded_text,
)


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A Connect command and its data."""

    record_format: int
    qid: int
    sqsize: int
    flow_control: bool
    keep_alive_ms: int
    host_identifier: bytes
    cntlid: int
    subsystem: str
    host: str


def connect_request(entry: bytes, data: bytes) -> ConnectRequest:
    """Take a Connect command apart; ``data`` has the size of its layout."""
    fields, given = CONNECT.unpack(entry), CONNECT_DATA.unpack(data)
    return ConnectRequest(
        record_format=fields["recfmt"],
        qid=fields["qid"],
        sqsize=fields["sqsize"],
        flow_control=not fields["cattr"] & DISABLE_FLOW_CONTROL,
        keep_alive_ms=fields["kato"],
        host_identifier=given["hostid"],
        cntlid=given["cntlid"],
        subsystem=padded_text(given["subnqn"]),
        host=padded_text(given["hostnqn"]),
    )


def invalid_parameter(name: str) -> Answer:
    """Refuse a Connect for a field: IPO is its offset, IATTR names command or data."""
    for layout, attribute in ((CONNECT, 0), (CONNECT_DATA, IN_DATA)):
        try:
            place = layout.offset(name)
        except KeyError:
            continue
        return refused(NvmeStatus.CONNECT_INVALID_PARAMETERS, attribute << 16 | place)
    raise ValueError(f"Connect has no field {name}")


def property_get(controller: NvmeController, entry: bytes) -> Outcome:
    """Answer Property Get (Base 2.0, 6.5)."""
    fields = PROPERTY.unpack(entry)
    value = controller.value_of(fields["ofst"])
    if value is None or (fields["attrib"] & 7) != int(fields["ofst"] in LONG_PROPERTIES):
        return refused(NvmeStatus.INVALID_FIELD)
    return Answer(result=value)


def property_set(controller: NvmeController, entry: bytes) -> Outcome:
    """Carry out Property Set (Base 2.0, 6.6): CC alone can be set."""
    fields = PROPERTY.unpack(entry)
    if fields["ofst"] != Property.CC or fields["attrib"] & 7:
        return refused(NvmeStatus.INVALID_FIELD)
    controller.configure(fields["value"] & 0xFFFFFFFF)
    return SUCCEEDED
