"""Golden frames: each as octets and as the values it was made of.

G1..G13 agree with scapy's ICRC and with what tshark reads in them; ``CONNECTX`` was captured from a
ConnectX-4 Lx and is published with scapy's regression tests.
"""

from dataclasses import dataclass, field

from emulator.rocev2.wire.codes import Extension

X = Extension


@dataclass(frozen=True)
class Golden:
    """Values are those that differ from the defaults of the layers."""

    name: str
    frame: bytes
    bth: dict[str, int]
    extensions: tuple[tuple[Extension, dict[str, int]], ...] = ()
    payload: bytes = b""
    pad: int = 0
    tos: int = 0x6A
    reverse: bool = False
    ipv6: bool = field(default=False)


SIXTEEN = bytes(range(16))
_RETH = {"va": 0x1122334455667788, "rkey": 0xAABBCCDD, "dmalen": 16}


def _hex(*parts: str) -> bytes:
    return bytes.fromhex("".join(parts))


_E = "0200000000020200000000010800456a"
_FORTH = "c6120001c6120002c12312b7"
_BACK = "c6120002c6120001c12312b7"

GOLDEN = (
    Golden(
        "G1 WRITE Only",
        _hex(_E, "004c000140004011ae0e", _FORTH, "003800000a40ffff0000001280000100",
             "1122334455667788aabbccdd00000010000102030405060708090a0b0c0d0e0f28461a9c"),
        {"opcode": 0x0A, "dqpn": 0x12, "ackreq": 1, "psn": 0x100},
        ((X.RETH, _RETH),),
        SIXTEEN,
    ),
    Golden(
        "G2 WRITE Only over IPv6",
        _hex("02000000000202000000000186dd66a1234500381140",
             "20010db800000000000000000000000120010db8000000000000000000000002",
             "c12312b7003800000a40ffff00000012800001001122334455667788aabbccdd00000010",
             "000102030405060708090a0b0c0d0e0f618c5cb5"),
        {"opcode": 0x0A, "dqpn": 0x12, "ackreq": 1, "psn": 0x100},
        ((X.RETH, _RETH),),
        SIXTEEN,
        ipv6=True,
    ),
    Golden(
        "G3 WRITE Only with Immediate, solicited, pad 3",
        _hex(_E, "0048000140004011ae12", _FORTH, "003400000bf0ffff0000001280000101",
             "00000000000010000000007700000005deadbeef68656c6c6f000000af8b53dc"),
        {"opcode": 0x0B, "solicited": 1, "padcount": 3, "dqpn": 0x12, "ackreq": 1, "psn": 0x101},
        (
            (X.RETH, {"va": 0x1000, "rkey": 0x77, "dmalen": 5}),
            (X.IMM_DT, {"immediate": 0xDEADBEEF}),
        ),
        b"hello",
        pad=3,
    ),
    Golden(
        "G4 READ Request",
        _hex(_E, "003c000140004011ae1e", _FORTH, "002800000c40ffff0000001200000102",
             "1122334455667788aabbccdd00000010bff58cb2"),
        {"opcode": 0x0C, "dqpn": 0x12, "psn": 0x102},
        ((X.RETH, _RETH),),
    ),
    Golden(
        "G5 READ Response Only",
        _hex(_E, "0040000140004011ae1a", _FORTH, "002c00001040ffff00000012000001021f000005",
             "000102030405060708090a0b0c0d0e0f8c0eb72f"),
        {"opcode": 0x10, "dqpn": 0x12, "psn": 0x102},
        ((X.AETH, {"syndrome": 0x1F, "msn": 5}),),
        SIXTEEN,
    ),
    Golden(
        "G6 ACK",
        _hex(_E, "0030000140004011ae2a", _BACK, "001c00001140ffff00000034000001001f0000011c13c213"),
        {"opcode": 0x11, "dqpn": 0x34, "psn": 0x100},
        ((X.AETH, {"syndrome": 0x1F, "msn": 1}),),
        reverse=True,
    ),
    Golden(
        "G7 NAK, PSN sequence error",
        _hex(_E, "0030000140004011ae2a", _BACK, "001c00001140ffff000000340000010160000001668afe1d"),
        {"opcode": 0x11, "dqpn": 0x34, "psn": 0x101},
        ((X.AETH, {"syndrome": 0x60, "msn": 1}),),
        reverse=True,
    ),
    Golden(
        "G8 RNR NAK, timer code 14",
        _hex(_E, "0030000140004011ae2a", _BACK, "001c00001140ffff00000034000001012e00000168a53566"),
        {"opcode": 0x11, "dqpn": 0x34, "psn": 0x101},
        ((X.AETH, {"syndrome": 0x2E, "msn": 1}),),
        reverse=True,
    ),
    Golden(
        "G9 CNP",
        _hex("020000000002020000000001080045c2003c000140004011adc6", _BACK,
             "002800008140ffff4000003400000000", "00" * 16, "9a762585"),
        {"opcode": 0x81, "becn": 1, "dqpn": 0x34},
        ((X.CNP_PADDING, {}),),
        tos=0xC2,
        reverse=True,
    ),
    Golden(
        "G10 FetchAdd",
        _hex(_E, "0048000140004011ae12", _FORTH, "003400001440ffff0000001280000103",
             "00000000000020000000007700000000000000010000000000000000d1363337"),
        {"opcode": 0x14, "dqpn": 0x12, "ackreq": 1, "psn": 0x103},
        ((X.ATOMIC_ETH, {"va": 0x2000, "rkey": 0x77, "swap_or_add": 1}),),
    ),
    Golden(
        "G11 ATOMIC Acknowledge",
        _hex(_E, "0038000140004011ae22", _BACK, "002400001240ffff00000034000001031f000002",
             "00000000000000299708737c"),
        {"opcode": 0x12, "dqpn": 0x34, "psn": 0x103},
        ((X.AETH, {"syndrome": 0x1F, "msn": 2}), (X.ATOMIC_ACK_ETH, {"origremdt": 41})),
        reverse=True,
    ),
    Golden(
        "G12 UD SEND Only to QP1",
        _hex(_E, "0044000140004011ae16", _FORTH, "003000006440ffff00000001000000078001000000000001",
             "000102030405060708090a0b0c0d0e0fb0be69e5"),
        {"opcode": 0x64, "dqpn": 1, "psn": 7},
        ((X.DETH, {"qkey": 0x80010000, "srcqp": 1}),),
        SIXTEEN,
    ),
    Golden(
        "G13 SEND Only with Invalidate",
        _hex(_E, "0040000140004011ae1a", _FORTH, "002c00001740ffff00000012800001040000cafe",
             "000102030405060708090a0b0c0d0e0f5e752edd"),
        {"opcode": 0x17, "dqpn": 0x12, "ackreq": 1, "psn": 0x104},
        ((X.IETH, {"rkey": 0xCAFE}),),
        SIXTEEN,
    ),
)  # fmt: skip

CONNECTX = bytes.fromhex(
    "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff"
    "40000118000000000000000000000000000000000000000082fd002a"
)
