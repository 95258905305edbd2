"""Every header of a UET frame: one constant per header and overlay variant (UES 3.4, 3.5, 3.7).

Each field is its name and its width in bits, with its default behind ``=`` if that is not 0:
``i16`` is a signed one, ``s6`` six octets that stay octets.  The scapy layer that is named
describes the same header to scapy, with the meaning of its values; ``tests/uet/wire/test_codec.py``
compares them.  A run that decodes nothing loads no scapy.
"""

from __future__ import annotations

from uet.wire.codec import Header, header

ETHERNET = header("eth", "scapy.layers.l2.Ether", "dst:s6 src:s6 type:16=0x9000")
VLAN = header("vlan", "scapy.layers.l2.Dot1Q", "prio:3 dei:1 vlan:12=1 type:16")
IPV4 = header(
    "ip",
    "scapy.layers.inet.IP",
    "version:4=4 ihl:4=5 tos:8 len:16 id:16=1 flags:3 frag:13 ttl:8=64 proto:8 chksum:16"
    " src:s4 dst:s4",
)
IPV6 = header(
    "ip6",
    "scapy.layers.inet6.IPv6",
    "version:4=6 tc:8 fl:20 plen:16 nh:8=59 hlim:8=64 src:s16 dst:s16",
)
UDP_HEADER = header("udp", "scapy.layers.inet.UDP", "sport:16=53 dport:16=53 len:16 chksum:16")
ENTROPY = header("entropy", "uet.wire.encapsulation.UET_ENTROPY", "entropy:16 rsvd:16")
CRC = header("crc", "uet.wire.encapsulation.UET_CRC", "crc:32")

_TSS = "uet.wire.tss.UET_TSS"
TSS = header("tss", _TSS, "type:5=1 sp:1 rsvd:1 an:1 sdi:24 epoch:16 counter:48")
TSS_SSI = header("tss", _TSS, "type:5=1 sp:1=1 rsvd:1 an:1 sdi:24 ssi:32 epoch:16 counter:48")


def _pds(name: str, fields: str) -> Header:
    return header(f"pds.{name}", f"uet.wire.pds.UET_{name.upper()}", fields)


_REQ = (
    "next_hdr:4 rsvd_flags_hi:2 retx:1 ar:1 {} rsvd_flags_lo:2 clear_psn_offset:i16 psn:32"
    " spdcid:16"
)
_REQ_PDC = _REQ.format("syn:1") + " dpdcid:16"
_REQ_SYN = _REQ.format("syn:1=1") + " pdc_info:4 psn_offset:12"
RUD_REQ = _pds("rud_req", f"type:5=2 {_REQ_PDC}")
RUD_REQ_SYN = _pds("rud_req", f"type:5=2 {_REQ_SYN}")
ROD_REQ = _pds("rod_req", f"type:5=3 {_REQ_PDC}")
ROD_REQ_SYN = _pds("rod_req", f"type:5=3 {_REQ_SYN}")
REQ_CC_STATE = _pds("req_cc_state", "ccc_id:8 credit_target:24")

_ACK = "next_hdr:4 rsvd_flags_hi:1 m:1 retx:1 {} cack_psn:32 spdcid:16 dpdcid:16"
_OF_PSN = _ACK.format("p:1 req:2 rsvd_flags_lo:1 ack_psn_offset:i16")
_OF_PROBE = _ACK.format("p:1=1 req:2 rsvd_flags_lo:1 probe_opaque:16")
_SACK = "cc_flags:4 mpr:8 sack_psn_offset:i16 sack_bitmap:64"
_NSCC = (
    f"cc_type:4 {_SACK} service_time:16 restore_cwnd:1 rcv_cwnd_pend:7 rcvd_bytes:24 ooo_count:16"
)
_CREDIT = f"cc_type:4=1 {_SACK} credit:24 rsvd_credit:24 ooo_count:16"
_OTHER = f"cc_type:4=14 {_SACK} state:64"
_CCX = f"ccx_type:4 {_SACK} ccx_state_hi:64 ccx_state_lo:64"
ACK = _pds("ack", f"type:5=7 {_OF_PSN}")
ACK_PROBE = _pds("ack", f"type:5=7 {_OF_PROBE}")
ACK_CC_NSCC = _pds("ack_cc", f"type:5=8 {_OF_PSN} {_NSCC}")
ACK_CC_NSCC_PROBE = _pds("ack_cc", f"type:5=8 {_OF_PROBE} {_NSCC}")
ACK_CC_CREDIT = _pds("ack_cc", f"type:5=8 {_OF_PSN} {_CREDIT}")
ACK_CC_CREDIT_PROBE = _pds("ack_cc", f"type:5=8 {_OF_PROBE} {_CREDIT}")
ACK_CC_OTHER = _pds("ack_cc", f"type:5=8 {_OF_PSN} {_OTHER}")
ACK_CC_OTHER_PROBE = _pds("ack_cc", f"type:5=8 {_OF_PROBE} {_OTHER}")
ACK_CCX = _pds("ack_ccx", f"type:5=9 {_OF_PSN} {_CCX}")
ACK_CCX_PROBE = _pds("ack_ccx", f"type:5=9 {_OF_PROBE} {_CCX}")

_NACK = (
    "next_hdr:4 rsvd_flags_hi:1 m:1 retx:1 {} rsvd_flags_lo:3 nack_code:8 vendor_code:8 {}"
    " spdcid:16 dpdcid:16 payload_word:32"
)
_REFUSED_PSN = _NACK.format("nt:1", "nack_psn:32")
_REFUSED_PACKET = _NACK.format("nt:1=1", "nack_pkt_id:32")
_NCCX = "nccx_type:4 nack_ccx_state1:60 nack_ccx_state2:64"
NACK = _pds("nack", f"type:5=10 {_REFUSED_PSN}")
NACK_RUDI = _pds("nack", f"type:5=10 {_REFUSED_PACKET}")
NACK_CCX = _pds("nack_ccx", f"type:5=12 {_REFUSED_PSN} {_NCCX}")
NACK_CCX_RUDI = _pds("nack_ccx", f"type:5=12 {_REFUSED_PACKET} {_NCCX}")
EXPECTED_PSN = _pds("expected_psn", "expected_psn:32")

_CP = (
    "type:5=11 ctl_type:4 rsvd_flags_hi:1 isrod:1 retx:1 ar:1 {} rsvd_flags_lo:2 probe_opaque:16"
    " psn:32 spdcid:16 {} payload_word:32"
)
CP = _pds("cp", _CP.format("syn:1", "dpdcid:16"))
CP_SYN = _pds("cp", _CP.format("syn:1=1", "pdc_info:4 psn_offset:12"))
_RUDI = "next_hdr:4 rsvd_flags_hi:1 m:1 retx:1 rsvd_flags_lo:4 rsvd:16 pkt_id:32"
RUDI_REQ = _pds("rudi_req", f"type:5=4 {_RUDI}")
RUDI_RESP = _pds("rudi_resp", f"type:5=5 {_RUDI}")
UUD_REQ = _pds("uud_req", "type:5=6 next_hdr:4 rsvd_flags:7 rsvd:16")


def _ses(name: str, layer: str, fields: str) -> Header:
    return header(f"ses.{name}", f"uet.wire.ses.UET_SES_{layer}", fields)


_OPCODE = "rsvd_opcode:2 {} version:2 dc:1 ie:1 rel:1 {} eom:1=1 {} "
_TARGET = "ri_generation:8 job_id:24 rsvd_pid:4 pid_on_fep:12 rsvd_index:4 resource_index:12 "
_MATCHED = "buffer_offset:64 initiator:32 match_bits:64 "
_DEFERRABLE = "initiator_restart_token:32 target_restart_token:32 initiator:32 match_bits:64 "
_RTR = "buffer_offset:64 initiator:32 rtr_initiator_restart_token:32 rtr_target_restart_token:32 "


def _std(som: int, opcode: str, to: str) -> Header:
    """Return a standard request: the first packet of a message, or one that follows."""
    start = _OPCODE.format(opcode, "hd:1", "som:1=1" if som else "som:1")
    end = "header_data:64" if som else "rsvd_continuation:18 payload_length:14 message_offset:32"
    return _ses(
        "request_std_som" if som else "request_std_nosom",
        "STD",
        f"{start}message_id:16 {_TARGET}{to}{end} request_length:32",
    )


SES_STD_SOM = _std(1, "opcode:6", _MATCHED)
SES_STD_NOSOM = _std(0, "opcode:6", _MATCHED)
SES_DEFERRABLE_SOM = _std(1, "opcode:6=8", _DEFERRABLE)
SES_DEFERRABLE_NOSOM = _std(0, "opcode:6=8", _DEFERRABLE)
SES_RTR_SOM = _std(1, "opcode:6=12", _RTR)
SES_RTR_NOSOM = _std(0, "opcode:6=12", _RTR)

_SHORT = _OPCODE + "rsvd_length:2 request_length:14 " + _TARGET
_MEDIUM = "{}:64 initiator:32 match_bits:64"
SES_MEDIUM = _ses(
    "request_medium",
    "MEDIUM",
    _SHORT.format("opcode:6", "hd:1", "som:1=1") + _MEDIUM.format("buffer_offset"),
)
SES_MEDIUM_HD = _ses(
    "request_medium",
    "MEDIUM",
    _SHORT.format("opcode:6", "hd:1=1", "som:1=1") + _MEDIUM.format("header_data"),
)
SES_SMALL = _ses(
    "request_small", "SMALL", _SHORT.format("opcode:6", "hd:1", "som:1=1") + "buffer_offset:64"
)
SES_RENDEZVOUS = _ses(
    "ext_rendezvous",
    "RENDEZVOUS",
    "eager_length:32 read_ri_generation:8 read_pid_on_fep:12 read_resource_index:12"
    " read_offset:64 read_memory_key:64",
)
_ATOMIC = "atomic_datatype:8=7 sem_ctl:8 rsvd:8"
SES_ATOMIC = _ses("ext_atomic", "ATOMIC", f"atomic_opcode:8=2 {_ATOMIC}")
SES_CSWAP = _ses(
    "ext_cswap", "CSWAP", f"atomic_opcode:8=13 {_ATOMIC} compare_value:128 swap_value:128"
)
SES_SYNC = _ses("ext_sync", "SYNC", "sync_group:16 sync_count:16")

_ANSWER = "list:2 {} version:2 return_code:6=1 "
SES_RESPONSE = _ses(
    "response",
    "RESPONSE",
    _ANSWER.format("opcode:6=1") + "message_id:16 ri_generation:8 job_id:24 modified_length:32",
)
SES_RESPONSE_DATA = _ses(
    "response_data",
    "RESPONSE_DATA",
    _ANSWER.format("opcode:6=2") + "response_message_id:16 rsvd_generation:8 job_id:24"
    " read_request_message_id:16 rsvd_length:2 payload_length:14 modified_length:32"
    " message_offset:32",
)
SES_RESPONSE_DATA_SMALL = _ses(
    "response_data_small",
    "RESPONSE_DATA_SMALL",
    _ANSWER.format("opcode:6=2")
    + "rsvd_length:2 payload_length:14 rsvd_generation:8 job_id:24 original_request_psn:32",
)
