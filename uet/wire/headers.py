"""Every header of a UET frame, compiled: one constant per header and overlay variant."""

from __future__ import annotations

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether

from uet.wire import pds, ses, tss
from uet.wire.codec import compile_header
from uet.wire.codes import CcType, Opcode
from uet.wire.encapsulation import UET_CRC, UET_ENTROPY

ETHERNET = compile_header("eth", Ether)
VLAN = compile_header("vlan", Dot1Q)
IPV4 = compile_header("ip", IP, omit=("options",), version=4, ihl=5)
IPV6 = compile_header("ip6", IPv6, version=6)
UDP_HEADER = compile_header("udp", UDP)
ENTROPY = compile_header("entropy", UET_ENTROPY)
CRC = compile_header("crc", UET_CRC)

TSS = compile_header("tss", tss.UET_TSS, sp=0)
TSS_SSI = compile_header("tss", tss.UET_TSS, sp=1)

RUD_REQ = compile_header("pds.rud_req", pds.UET_RUD_REQ, syn=0)
RUD_REQ_SYN = compile_header("pds.rud_req", pds.UET_RUD_REQ, syn=1)
ROD_REQ = compile_header("pds.rod_req", pds.UET_ROD_REQ, syn=0)
ROD_REQ_SYN = compile_header("pds.rod_req", pds.UET_ROD_REQ, syn=1)
REQ_CC_STATE = compile_header("pds.req_cc_state", pds.UET_REQ_CC_STATE)
ACK = compile_header("pds.ack", pds.UET_ACK, p=0)
ACK_PROBE = compile_header("pds.ack", pds.UET_ACK, p=1)
ACK_CC_NSCC = compile_header("pds.ack_cc", pds.UET_ACK_CC, p=0, cc_type=CcType.NSCC)
ACK_CC_NSCC_PROBE = compile_header("pds.ack_cc", pds.UET_ACK_CC, p=1, cc_type=CcType.NSCC)
ACK_CC_CREDIT = compile_header("pds.ack_cc", pds.UET_ACK_CC, p=0, cc_type=CcType.CREDIT)
ACK_CC_CREDIT_PROBE = compile_header("pds.ack_cc", pds.UET_ACK_CC, p=1, cc_type=CcType.CREDIT)
ACK_CC_OTHER = compile_header("pds.ack_cc", pds.UET_ACK_CC, p=0, cc_type=14)
ACK_CC_OTHER_PROBE = compile_header("pds.ack_cc", pds.UET_ACK_CC, p=1, cc_type=14)
ACK_CCX = compile_header("pds.ack_ccx", pds.UET_ACK_CCX, p=0)
ACK_CCX_PROBE = compile_header("pds.ack_ccx", pds.UET_ACK_CCX, p=1)
NACK = compile_header("pds.nack", pds.UET_NACK, nt=0)
NACK_RUDI = compile_header("pds.nack", pds.UET_NACK, nt=1)
NACK_CCX = compile_header("pds.nack_ccx", pds.UET_NACK_CCX, nt=0)
NACK_CCX_RUDI = compile_header("pds.nack_ccx", pds.UET_NACK_CCX, nt=1)
EXPECTED_PSN = compile_header("pds.expected_psn", pds.UET_EXPECTED_PSN)
CP = compile_header("pds.cp", pds.UET_CP, syn=0)
CP_SYN = compile_header("pds.cp", pds.UET_CP, syn=1)
RUDI_REQ = compile_header("pds.rudi_req", pds.UET_RUDI_REQ)
RUDI_RESP = compile_header("pds.rudi_resp", pds.UET_RUDI_RESP)
UUD_REQ = compile_header("pds.uud_req", pds.UET_UUD_REQ)

_STD, _SEND, _RTR = ses.UET_SES_STD, Opcode.DEFERRABLE_SEND, Opcode.DEFERRABLE_RTR
SES_STD_SOM = compile_header("ses.request_std_som", _STD, som=1)
SES_STD_NOSOM = compile_header("ses.request_std_nosom", _STD, som=0)
SES_DEFERRABLE_SOM = compile_header("ses.request_std_som", _STD, som=1, opcode=_SEND)
SES_DEFERRABLE_NOSOM = compile_header("ses.request_std_nosom", _STD, som=0, opcode=_SEND)
SES_RTR_SOM = compile_header("ses.request_std_som", _STD, som=1, opcode=_RTR)
SES_RTR_NOSOM = compile_header("ses.request_std_nosom", _STD, som=0, opcode=_RTR)
SES_MEDIUM = compile_header("ses.request_medium", ses.UET_SES_MEDIUM, hd=0)
SES_MEDIUM_HD = compile_header("ses.request_medium", ses.UET_SES_MEDIUM, hd=1)
SES_SMALL = compile_header("ses.request_small", ses.UET_SES_SMALL)
SES_RENDEZVOUS = compile_header("ses.ext_rendezvous", ses.UET_SES_RENDEZVOUS)
SES_ATOMIC = compile_header("ses.ext_atomic", ses.UET_SES_ATOMIC)
SES_CSWAP = compile_header("ses.ext_cswap", ses.UET_SES_CSWAP)
SES_SYNC = compile_header("ses.ext_sync", ses.UET_SES_SYNC)
SES_RESPONSE = compile_header("ses.response", ses.UET_SES_RESPONSE)
SES_RESPONSE_DATA = compile_header("ses.response_data", ses.UET_SES_RESPONSE_DATA)
SES_RESPONSE_DATA_SMALL = compile_header("ses.response_data_small", ses.UET_SES_RESPONSE_DATA_SMALL)
