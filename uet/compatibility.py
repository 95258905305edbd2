"""Switches for peers of another revision or with manners of their own.

The defaults are those of UE Specification 1.0.3.  Each switch names the implementation that it
matches; none of them is needed between two endpoints of this project.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Compatibility:
    """The deviations from UES 1.0.3 for the sake of a peer."""

    #: Answer a trimmed ACK that carried read data with NACK TRIMMED_ACK, and send the request
    #: again when that NACK comes (UES 1.0 to 1.0.2; code reserved since 1.0.3).
    trimmed_ack_nack: bool = False

    #: Meaning of ``mpr`` 0 in an ACK, in units of 128 PSNs (UES 1.0.3, Override_MPR_Zero_Value);
    #: ``None``: 0 reports nothing.
    override_mpr_zero_value: int | None = None

    #: Keep SYN and psn_offset in what was first sent with them, even once the target's
    #: identifier is known (UEC reference provider).
    keep_syn_on_retransmission: bool = False

    #: The ACK of a CLOSE does not count the CLOSE in its cumulative PSN (UEC reference provider).
    close_ack_excludes_close: bool = False

    #: The closing ACK of a secured PDC carries the Expected_PSN behind flag 0x40, which UES
    #: leaves reserved (UEC reference provider).
    epsn_in_close_ack: bool = False

    #: Default responses carry the request's length as modified length, rather than 0
    #: (UEC reference provider).
    modified_length_in_default_response: bool = False

    #: The response to a duplicate is NULL, rather than OK (UEC reference provider).
    null_response_to_duplicate: bool = False

    #: Answer each REQ_CLEAR with a CLEAR control packet at once (UEC reference provider).
    clear_at_once: bool = False

    #: Deferred and unexpected messages are answered without guaranteed delivery (older sources
    #: of the UEC reference provider).
    plain_unexpected_response: bool = False

    #: Message ids begin at 0, which UES keeps for datagrams, and so do a target's restart tokens
    #: (UEC reference provider).
    message_ids_from_zero: bool = False

    #: Understand opcodes 0x10 (SYNC_WRITE) and 0x11 (SYNC_ATOMIC) with their four-octet
    #: extension (UEC reference provider; reserved in UES 1.0).
    sync_operations: bool = False

    #: EOM does not mark the only packet of a read (UEC reference provider).
    single_read_without_eom: bool = False

    #: DEFERRABLE_RTR has the target's restart token in front of the initiator's, both as it is sent
    #: and as it is understood (UEC reference provider).
    target_restart_token_first: bool = False

    #: DEFERRABLE_RTR goes to resource index 0, rather than to that of the message (UEC reference
    #: provider).
    restarts_at_index_zero: bool = False

    #: Datagrams go as SEND with a message id of their own (UEC reference provider), rather than
    #: as DATAGRAM_SEND with id 0.
    datagrams_as_send: bool = False

    #: A write or atomic beyond the end of its region is refused with UNSUPPORTED_SIZE, rather than
    #: BAD_ADDR (UEC reference provider).
    region_overrun_is_unsupported_size: bool = False

    #: A send that is too long for its receive leaves that posted, rather than ending it (UEC
    #: reference provider).
    long_send_leaves_receive: bool = False

    #: ACKs repeat neither RETX nor the congestion mark of what they answer (UEC reference
    #: provider).
    ack_without_echo: bool = False

    #: An ACK_REQ for what CACK covers already draws no ACK the first time (the UEC reference
    #: provider never answers it; a lost ACK would then end the PDC).
    ack_req_below_cack_is_ignored: bool = False

    #: ACK_REQ packets do not set AR (UEC reference provider).
    ack_req_without_ar: bool = False

    #: RUDI responses go in the class of data, rather than in that of ACKs (UEC reference
    #: provider).
    rudi_responses_as_data: bool = False

    #: NACKs of packets that belong to no PDC leave a secure domain without security (UEC
    #: reference provider).  Anyone can forge such packets.
    clear_nack_without_pdc: bool = False

    #: There is one PDC to each peer and delivery mode (UEC reference provider).
    one_pdc_for_each_mode: bool = False

    #: RTO does not double from one retry to the next (UEC reference provider).
    constant_rto: bool = False

    #: Retransmitted RUDI requests do not set RETX (UEC reference provider).
    rudi_without_retx: bool = False

    #: A trimmed packet with SYN that belongs to no PDC is dropped in silence, so that only a timer
    #: brings it again, rather than refused with spdcid 0 (UES leaves it open).
    silent_trimmed_syn: bool = False


#: UE Specification 1.0.3.
STANDARD: Final = Compatibility()

#: The UEC reference provider as of 2026.
REFERENCE_PROVIDER: Final = Compatibility(
    keep_syn_on_retransmission=True,
    close_ack_excludes_close=True,
    epsn_in_close_ack=True,
    modified_length_in_default_response=True,
    null_response_to_duplicate=True,
    clear_at_once=True,
    message_ids_from_zero=True,
    sync_operations=True,
    single_read_without_eom=True,
    target_restart_token_first=True,
    restarts_at_index_zero=True,
    region_overrun_is_unsupported_size=True,
    datagrams_as_send=True,
    long_send_leaves_receive=True,
    ack_without_echo=True,
    ack_req_below_cack_is_ignored=True,
    ack_req_without_ar=True,
    rudi_responses_as_data=True,
    clear_nack_without_pdc=True,
    one_pdc_for_each_mode=True,
    constant_rto=True,
    rudi_without_retx=True,
)
