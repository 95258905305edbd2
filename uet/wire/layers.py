# scapy.contrib.description = Ultra Ethernet Transport (UET)
# scapy.contrib.status = loads

"""All scapy layers of Ultra Ethernet Transport, for scapy's shell.

>>> from uet.wire.layers import *
>>> pkt = Ether() / IP(dst="10.0.1.2") / UDP(sport=7) / UET_RUD_REQ(ar=1) / UET_SES_STD() / b"x"
>>> (pkt / UET_CRC()).show2()
"""

from uet.wire.encapsulation import UET, UET_CRC, UET_ENTROPY, UET_TRUNCATED
from uet.wire.pds import (
    UET_ACK,
    UET_ACK_CC,
    UET_ACK_CCX,
    UET_CP,
    UET_EXPECTED_PSN,
    UET_NACK,
    UET_NACK_CCX,
    UET_REQ_CC_STATE,
    UET_ROD_REQ,
    UET_RUD_REQ,
    UET_RUDI_REQ,
    UET_RUDI_RESP,
    UET_UUD_REQ,
)
from uet.wire.ses import (
    UET_SES_ATOMIC,
    UET_SES_CSWAP,
    UET_SES_MEDIUM,
    UET_SES_RENDEZVOUS,
    UET_SES_RESPONSE,
    UET_SES_RESPONSE_DATA,
    UET_SES_RESPONSE_DATA_SMALL,
    UET_SES_SMALL,
    UET_SES_STD,
    UET_SES_SYNC,
)
from uet.wire.tss import UET_CIPHERTEXT, UET_ICV, UET_TSS

__all__ = [
    "UET",
    "UET_ACK",
    "UET_ACK_CC",
    "UET_ACK_CCX",
    "UET_CIPHERTEXT",
    "UET_CP",
    "UET_CRC",
    "UET_ENTROPY",
    "UET_EXPECTED_PSN",
    "UET_ICV",
    "UET_NACK",
    "UET_NACK_CCX",
    "UET_REQ_CC_STATE",
    "UET_ROD_REQ",
    "UET_RUDI_REQ",
    "UET_RUDI_RESP",
    "UET_RUD_REQ",
    "UET_SES_ATOMIC",
    "UET_SES_CSWAP",
    "UET_SES_MEDIUM",
    "UET_SES_RENDEZVOUS",
    "UET_SES_RESPONSE",
    "UET_SES_RESPONSE_DATA",
    "UET_SES_RESPONSE_DATA_SMALL",
    "UET_SES_SMALL",
    "UET_SES_STD",
    "UET_SES_SYNC",
    "UET_TRUNCATED",
    "UET_TSS",
    "UET_UUD_REQ",
]
