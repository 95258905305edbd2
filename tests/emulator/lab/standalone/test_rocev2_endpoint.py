"""``uetemu hca``: what its words mean, and what is said of wrong ones."""

import contextlib
import json
import os
import socket
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from emulator.cli.main import cli
from emulator.errors import UserError
from emulator.lab.standalone.cards import (
    DEFAULT_PORT,
    Card,
    CardExchange,
    card_of,
    exchange,
    gid_of,
    meeting,
)
from emulator.lab.standalone.rocev2_endpoint import (
    ANY_PEER,
    FIELDS,
    THE_REGION,
    at_peer,
    error_name,
    path_mtu_for,
)
from emulator.lab.standalone.script.requested_operations import Around, Message, messages_of
from emulator.lab.standalone.session import Stop
from emulator.rocev2.wire.codes import BthOperation
from uet.ses.address import Address
from uet.transport import AtomicRequest, WriteRequest

OWN = Card(address="10.0.0.1", qpn=0x11, psn=0xFFFFFF, mtu=1024, rkey=7, vaddr=1 << 40, length=9)
PEER = Card(address="10.0.0.2", qpn=0x12, psn=0, rkey=0x99, vaddr=0x1000)


def message(phrase: str) -> Message:
    around = Around(
        peer=ANY_PEER, peers=[ANY_PEER], home=Address(), key=THE_REGION, fields=FIELDS,
        error=error_name,
    )  # fmt: skip
    (made,) = messages_of([phrase], None, around)
    return made


# -- cards -----------------------------------------------------------------------------------------


@given(
    st.builds(
        Card,
        address=st.ip_addresses().map(str),
        qpn=st.integers(2, 2**24 - 2),
        psn=st.integers(0, 2**24 - 1),
        mtu=st.sampled_from([256, 512, 1024, 2048, 4096]),
        rkey=st.integers(0, 2**32 - 1),
        vaddr=st.integers(0, 2**64 - 1),
        length=st.integers(0, 2**64 - 1),
    )
)
def test_a_card_says_all_that_its_owner_is(card: Card) -> None:
    read = card_of(card.line())
    if not card.address.startswith("::ffff:"):  # IPv4 in other clothes
        assert read == card


def test_a_card_may_name_its_owner_by_the_gid() -> None:
    for gid in ("::ffff:10.0.0.1", "0000:0000:0000:0000:0000:ffff:0a00:0001"):
        assert card_of(json.dumps({"gid": gid, "qpn": 17, "psn": 0})).address == "10.0.0.1"
    assert gid_of("10.0.0.1") == "::ffff:10.0.0.1"
    assert gid_of("fd00::1") == "fd00::1"


@pytest.mark.parametrize(
    ("line", "stated"),
    [
        (b"0000:0001:000011:123456:00000000:0000000000000000", "not its card"),
        (b"", "not its card"),
        (b"[" * 4000, "not its card"),
        (b"\xff\xfe", "not its card"),
        (b"[]", "not its card"),
        (b'{"psn": 0, "address": "10.0.0.1"}', "says no qpn"),
        (b'{"qpn": 17, "psn": 0}', "neither address nor gid"),
        (b'{"qpn": 1, "psn": 0, "address": "10.0.0.1"}', "qpn is 1"),
        (b'{"qpn": 17, "psn": 16777216, "address": "10.0.0.1"}', "psn is 16777216"),
        (b'{"qpn": 17, "psn": true, "address": "10.0.0.1"}', "psn is True"),
        (b'{"qpn": 17, "psn": 0, "address": "10.0.0.1", "mtu": 1500}', "one of 256"),
        (b'{"qpn": 17, "psn": 0, "address": "rxe0"}', "no IP address"),
    ],
)
def test_what_is_no_card_is_told_in_a_sentence(line: bytes, stated: str) -> None:
    with pytest.raises(UserError, match=stated):
        card_of(line)


@pytest.mark.parametrize(
    ("text", "listens", "place"),
    [
        ("", True, ("", DEFAULT_PORT)),
        (":99", True, ("", 99)),
        ("99", True, ("", 99)),
        ("10.0.0.1", True, ("10.0.0.1", DEFAULT_PORT)),
        ("peer:99", False, ("peer", 99)),
        ("fd00::1", False, ("fd00::1", DEFAULT_PORT)),
        ("[fd00::1]:99", False, ("fd00::1", 99)),
        ("[fd00::1]", False, ("fd00::1", DEFAULT_PORT)),
    ],
)
def test_places_to_meet(text: str, listens: bool, place: tuple[str, int]) -> None:
    assert meeting(text, listens=listens) == CardExchange(*place, listens)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def test_cards_are_exchanged_whoever_comes_first() -> None:
    port = free_port()
    found: list[Card] = []
    ask = CardExchange("127.0.0.1", port, False)
    asking = threading.Thread(target=lambda: found.append(exchange(OWN, ask, Stop(), 20)))
    asking.start()
    assert exchange(PEER, CardExchange("127.0.0.1", port, True), Stop(), 20) == OWN
    asking.join()
    assert found == [PEER]


def test_a_peer_that_says_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = CardExchange("127.0.0.1", server.getsockname()[1], False)

        def answer() -> None:
            there, _ = server.accept()
            with there:
                there.recv(1000)
                there.sendall(b"x" * 10_000)
                with contextlib.suppress(ConnectionResetError):
                    while there.recv(1000):
                        pass

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(UserError, match="not its card"):
            exchange(OWN, place, Stop(), 20)
        answering.join()


# -- operations ------------------------------------------------------------------------------------


def test_operations_are_aimed_at_the_region_on_the_card() -> None:
    write = message("write:10,offset=4k")
    at_peer(write, PEER)
    assert isinstance(write.request, WriteRequest)
    assert (write.request.peer, write.request.key, write.request.offset) == (
        "10.0.0.2", 0x99, 0x2000,
    )  # fmt: skip
    named = message("write:10,key=0x55,offset=4k")
    at_peer(named, PEER)
    assert isinstance(named.request, WriteRequest)
    assert (named.request.key, named.request.offset) == (0x55, 0x1000)


@pytest.mark.parametrize(
    ("phrase", "operation"),
    [
        ("fetch:sum,operand=1", BthOperation.FETCH_ADD),
        ("cswap,operand=1,compare=2", BthOperation.COMPARE_SWAP),
    ],
)
def test_the_two_atomics(phrase: str, operation: BthOperation) -> None:
    made = message(phrase)
    at_peer(made, PEER)
    assert isinstance(made.request, AtomicRequest)
    assert made.request.operation == operation


def test_no_memory_to_reach() -> None:
    with pytest.raises(UserError, match="card names none"):
        at_peer(message("read:10"), Card(address="10.0.0.2", qpn=17, psn=0))
    with pytest.raises(UserError, match="R_Keys have 32 bits"):
        at_peer(message(f"read:10,key={1 << 33}"), PEER)


# -- what needs nothing of the kernel is told first ------------------------------------------------

_MET = ("--connect", "10.0.0.2")


@pytest.mark.skipif(os.geteuid() != 0, reason="the first thing said to others is that root may")
@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (("target",), "by one of --listen, --connect HOST and --peer"),
        (("target", "--listen", "--connect", "10.0.0.2"), "by one of"),
        (("target", "--peer", "10.0.0.2"), "says no qpn"),
        (("target", "--listen", "--peer-qpn", "3"), "--peer-qpn goes with --peer"),
        (("target", "--listen", "--region", "0x1ffffffff:4k"), "does not fit into 32 bits"),
        (("target", "--listen", "--region", "1:4k", "--region", "1:4k"), "is in use"),
        (("target", "--listen", "--receive", "100,tag=3"), "has no 'tag'"),
        (("target", "--listen", "--set", "retry_cnt=8"), "must lie in 0..7"),
        (("target", "--listen", "--set", "connections=1"), "use --listen, --connect or --peer"),
        (("initiator", *_MET), "no operation is given"),
        (("initiator", *_MET, "tsend:100"), "no operation 'tsend'"),
        (("initiator", *_MET, "write:100,delivery=rod"), "has no 'delivery'"),
        (("initiator", *_MET, "fetch:min,operand=1"), "RoCEv2 has no min"),
        (("initiator", *_MET, "mswap,operand=1,compare=1"), "RoCEv2 has no mswap"),
        (("initiator", *_MET, "send:10,header_data=0x100000000"), "an immediate has 32 bits"),
        (("initiator", *_MET, f"send:{2**31 + 1}"), "must lie in 0..2147483648"),
        (("initiator", *_MET, "send:10,error=BAD_MKEY"), "no operation ends with"),
    ],
)
def test_wrong_words(words: tuple[str, ...], stated: str) -> None:
    role, *rest = words
    result = CliRunner().invoke(cli, ["hca", role, "-i", "no-such-interface", *rest])
    assert isinstance(result.exception, UserError), result.output
    assert stated in str(result.exception)


def test_path_mtus() -> None:
    assert path_mtu_for(1500, version=4, requested=None) == 1024
    assert path_mtu_for(1500, version=6, requested=256) == 256
    assert path_mtu_for(4160, version=4, requested=None) == 4096
    assert path_mtu_for(4159, version=4, requested=None) == 2048
    with pytest.raises(UserError, match="needs an interface MTU of 4180"):
        path_mtu_for(1500, version=6, requested=4096)
    with pytest.raises(UserError, match="InfiniBand knows"):
        path_mtu_for(1500, version=4, requested=1500)
    with pytest.raises(UserError, match="too small"):
        path_mtu_for(300, version=4, requested=None)


@pytest.mark.parametrize("role", ["target", "initiator"])
def test_the_help_shows_every_option(role: str, tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["hca", role, "--help"]).output
    for word in ("--listen", "--connect", "--peer-rkey", "retry_cnt", "gid"):
        assert word in shown
