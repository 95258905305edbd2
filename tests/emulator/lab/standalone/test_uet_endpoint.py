"""``uetemu fep``: what its words mean, and what is said of wrong ones.  No sockets here."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from scapy.utils import RawPcapNgReader

from emulator.cli.decode.decode_source import keys_beside, read_domains
from emulator.cli.main import cli
from emulator.errors import UserError
from emulator.lab.standalone.events import CaptureFile
from emulator.lab.standalone.script import endpoint_parameters as parameters
from emulator.lab.standalone.script.contents import decode, encode, pattern, summary
from emulator.lab.standalone.script.offers import receives, region
from emulator.lab.standalone.script.phrases import duration, number, phrase, switch
from emulator.lab.standalone.script.requested_operations import (
    DEFAULT_KEY,
    Around,
    Message,
    Open,
    ProbeRequest,
    messages_of,
)
from emulator.lab.standalone.uet_endpoint import EventLog, write_keys
from emulator.sim.endpoint.endpoint_fitting import payload_for
from emulator.transports.one_time_keys import KEY_FILE, KEY_SUFFIX
from tests.harness.examples import examples
from uet.compatibility import REFERENCE_PROVIDER, Compatibility
from uet.config import FepConfig
from uet.eventlog.sequence import read
from uet.ses.address import Address
from uet.transport import AtomicRequest, ReadRequest, SendRequest, WriteRequest
from uet.tss.secure_domain import SecureDomain
from uet.wire.codes import AtomicOpcode, Datatype

PEERS = ["10.0.0.2", "10.0.0.3"]
HOME = Address(job_id=7)


def made(*phrases: str, script: str | None = None) -> list[Message]:
    return messages_of(phrases, script, Around(peer=PEERS[0], peers=PEERS, home=HOME))


# --- words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("3000", 3000), ("0xbeef", 0xBEEF), ("64k", 65536), ("1M", 2**20), ("2Gi", 2**31),
     ("0x4000_0000_0000_0123", DEFAULT_KEY), (12, 12)],
)  # fmt: skip
def test_numbers(text: object, value: int) -> None:
    assert number(text, "it") == value


@pytest.mark.parametrize("text", ["", "many", "1.5", "4kk", "k", "-1", "0x1k", True, None])
def test_no_numbers(text: object) -> None:
    with pytest.raises(UserError, match=r"^it is "):
        number(text, "it")


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("5ms", 5 * 10**6),
        ("1.5", 1_500_000_000),
        ("250us", 250_000),
        ("7ns", 7),
        ("2 s", 2 * 10**9),
    ],
)
def test_times(text: str, ns: int) -> None:
    assert duration(text, "it") == ns


@pytest.mark.parametrize("text", ["", "soon", "-1s", "5m", "nan", "inf", "1e30s"])
def test_no_times(text: str) -> None:
    with pytest.raises(UserError, match=r"^it is "):
        duration(text, "it")


def test_a_phrase() -> None:
    reported = phrase("write:3000,offset=4k,header-data=1,dc")
    assert (reported.head, reported.size) == ("write", "3000")
    assert reported.fields == {"offset": "4k", "header_data": "1", "dc": "true"}
    assert switch("yes", "it") is True
    for wrong in (":3", "", "a,=1", "a,b=1,b=2"):
        with pytest.raises(UserError):
            phrase(wrong)


# --- data --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("index", "length"), [(0, 3000), (1, 0), (300, 140_001)])
def test_the_reference_pattern(index: int, length: int) -> None:
    octets = pattern("reference", "it").octets(length, index)
    assert octets == bytes((7 * index + 13 * j + j // 256) % 256 for j in range(length))


def test_patterns(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"abc")
    assert pattern("counter", "it").octets(257)[255:] == b"\xff\x00"
    assert pattern("byte:0x5a", "it").octets(3) == b"ZZZ"
    assert pattern("hex:0102", "it").octets(3) == b"\1\2\1"
    assert pattern(f"file:{tmp_path}/data", "it").octets(5) == b"abc\0\0"
    assert pattern("uint64:1000", "it").octets(9) == b"\xe8\x03" + bytes(7)
    same = pattern("random", "it")
    assert same.octets(9, 1, 5) == same.octets(9, 1, 5) != same.octets(9, 2, 5)


@pytest.mark.parametrize("text", ["", "nonsense", "byte:256", "hex:0", "hex:", "file:/no/such"])
def test_no_patterns(text: str) -> None:
    with pytest.raises(UserError):
        pattern(text, "it")


def test_a_summary_shows_short_data() -> None:
    assert summary(b"123456789")["crc32c"] == "e3069283"  # the check value of RFC 3720's CRC
    assert summary(b"123456789")["data"] == b"123456789".hex()
    assert "data" not in summary(bytes(33))


@given(st.sampled_from(list(Datatype)), st.integers(-100, 100))
@examples(60)
def test_elements_come_back(datatype: Datatype, value: int) -> None:
    if datatype.name.startswith(("UINT", "INT")):
        value = abs(value)
        assert decode(datatype, encode(datatype, [value], "it")) == [value]
    elif datatype.size is not None and "COMPLEX" not in datatype.name:
        assert decode(datatype, encode(datatype, [value], "it")) == [float(value)]


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        (Datatype.UINT8, "256"),
        (Datatype.UINT64, "-1"),
        (Datatype.INT8, "x"),
        (Datatype.FP16, "1e9"),
    ],
)
def test_elements_that_do_not_fit(datatype: Datatype, value: str) -> None:
    with pytest.raises(UserError, match=datatype.name.lower()):
        encode(datatype, [value], "it")


# --- operations --------------------------------------------------------------------------------


def test_writes_lie_one_after_the_other() -> None:
    first, second = (message.request for message in made("write:3000,count=2,offset=4k,hd=0x11"))
    assert isinstance(first, WriteRequest)
    assert isinstance(second, WriteRequest)
    assert (first.key, first.offset, second.offset) == (DEFAULT_KEY, 4096, 7096)
    assert bytes(second.payload) == pattern("reference", "").octets(3000, 1)
    assert first.header_data == 0x11
    assert first.destination == HOME


def test_reads_know_what_they_expect() -> None:
    (message,) = made("read:16,expect=uint64:1000,delivery=rod,peer=10.0.0.3")
    assert isinstance(message.request, ReadRequest)
    assert message.request.memory is message.memory
    assert message.expected == b"\xe8\x03" + bytes(14)
    assert (message.request.peer, message.request.delivery) == ("10.0.0.3", "rod")


def test_sends() -> None:
    plain, first, second, datagram = made(
        "send:10,protocol=rendezvous,dc", "tsend:10,tag=0x10,count=2", "datagram:5"
    )
    assert isinstance(plain.request, SendRequest)
    assert (plain.request.protocol, plain.request.delivery_complete) == ("rendezvous", True)
    tags = [message.request.tag for message in (first, second)]  # type: ignore[attr-defined]
    assert tags == [0x10, 0x11]
    assert datagram.request.delivery == "uud"


def test_atomics() -> None:
    add, *fetches, swap = made(
        "atomic:sum,operand=1/2,type=uint32", "fetch:sum,operand=5,count=2,expect=1000/1005",
        "cswap,operand=5,compare=1000,type=int16",
    )  # fmt: skip
    assert isinstance(add.request, AtomicRequest)
    assert add.request.operand == b"\1\0\0\0\2\0\0\0"
    assert add.request.result is None
    assert [message.expected for message in fetches] == [
        value.to_bytes(8, "little") for value in (1000, 1005)
    ]
    assert isinstance(swap.request, AtomicRequest)
    assert (swap.request.operation, swap.request.compare) == (AtomicOpcode.CSWAP, b"\xe8\x03")
    assert (swap.datatype, bytes(swap.memory or b"")) == (Datatype.INT16, bytes(2))


def test_a_script_says_the_same_as_phrases(tmp_path: Path) -> None:
    script = tmp_path / "operations.json"
    script.write_text(json.dumps([{"op": "write", "size": 30, "offset": 4096}, "read:12",
                                  {"op": "fetch", "operation": "sum", "operand": [5],
                                   "expect": 1}]))  # fmt: skip
    reported = made(script=str(script))
    meant = made("write:30,offset=4k", "read:12", "fetch:sum,operand=5,expect=1")
    assert [(m.name, m.size, m.expected, m.stated) for m in reported] == [
        (m.name, m.size, m.expected, m.stated) for m in meant
    ]
    assert [m.number for m in reported] == [0, 1, 2]


def test_members_of_a_group_and_tagged_atomics() -> None:
    write, add, fetch = made(
        "write:30,synchronise=7/0", "atomic:sum,operand=5,sync=0x7/2", "fetch:sum,operand=5,tag=9"
    )
    assert isinstance(write.request, WriteRequest)
    assert isinstance(add.request, AtomicRequest)
    assert isinstance(fetch.request, AtomicRequest)
    assert (write.request.synchronise, add.request.synchronise) == ((7, 0), (7, 2))
    assert (add.request.tag, add.request.key) == (None, DEFAULT_KEY)
    assert (fetch.request.tag, fetch.request.key) == (9, 0)
    assert fetch.stated["tag"] == "0x9"
    assert "key" not in fetch.stated


def test_control_packets_are_operations_too() -> None:
    noop, negotiation, probe = (
        message.request for message in made("open", "open,negotiate,delivery=rod", "probe,wait=5ms")
    )
    assert noop == Open(peer=PEERS[0], ordered=False, negotiate=False)
    assert negotiation == Open(peer=PEERS[0], ordered=True, negotiate=True)
    assert probe == ProbeRequest(peer=PEERS[0], wait=5_000_000)


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("wrte:3", "there is no operation 'wrte'"),
        ("write", "say how many octets"),
        ("write:3,ofset=1", "did you mean offset"),
        ("write:x", "size is 'x'"),
        ("write:", "say how many octets, for example write:3000"),
        ("send:3,protocol=lazy", "choose one of eager, rendezvous, deferrable"),
        ("cswap,compare=1", "cswap needs compare and operand"),
        ("write:3,error=BAD_MKY", "did you mean BAD_MKEY?"),
        ("write:3,error=OK", "which no operation ends with"),
        ("send:3,idempotent", "has no 'idempotent'"),
        ("write:3,peer=10.0.0.9", "10.0.0.9 is no peer"),
        ("write:3,delivery=best", "delivery is 'best'"),
        ("write:3,pid_on_fep=4096", "pid_on_fep is 4096"),
        ("send:3,tag=1", "has no 'tag'"),
        ("atomic:sum", "needs an operand"),
        ("atomic:add,operand=1", "there is no atomic operation 'add'"),
        ("fetch:sum,operand=1,compare=2", "compare=... goes with"),
        ("cswap,operand=1", "needs compare and operand; add compare=7"),
        ("fetch:sum,operand=1,type=word", "there is no type 'word'"),
        ("write:3,count=0", "count is 0"),
        ("read:3,expect=nothing", "expect is 'nothing'"),
        ("write:3,size=4", "says size twice"),
        ("write:4294967294,count=100000", "ask for less"),
        ("write:3,synchronise=7", "synchronise is GROUP/COUNT"),
        ("write:3,synchronise=7/65536", "synchronise is 65536"),
        ("fetch:sum,operand=1,synchronise=7/1", "has no 'synchronise'"),
        ("atomic:sum,operand=1,tag=1,key=2", "leave one of them out"),
        ("open,delivery=uud", "PDCs are for rud or rod"),
        ("probe:3", "has no 'size'"),
        ("probe,wait=soon", "wait is 'soon'"),
    ],
)
def test_wrong_operations(text: str, stated: str) -> None:
    with pytest.raises(UserError) as caught:
        made(text)
    assert stated in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "stated"),
    [("", "holds no operations"), ("operations:\n  - noop\n", "not a JSON script"),
     ("[3]", "operation 1 is neither"), ("[{", "not a JSON script"),
     ("{}", "holds no operations"), ('[{"op": "write"}]', "operation 1: say how many")],
)  # fmt: skip
def test_wrong_scripts(tmp_path: Path, text: str, stated: str) -> None:
    script = tmp_path / "script"
    script.write_text(text)
    with pytest.raises(UserError, match=stated):
        made(script=str(script))


# --- offers ------------------------------------------------------------------------------------


def test_regions() -> None:
    one = region("default:4k,fill=uint64:1000,access=r", 1)
    assert (one.key, len(one.memory), one.readable, one.writable) == (
        DEFAULT_KEY,
        4096,
        True,
        False,
    )
    assert bytes(one.memory[:2]) == b"\xe8\x03"
    assert region("0x99", 1).key == 0x99
    for wrong in (
        "x:1",
        "1:0",
        "default:",
        "1:1,idempotent=3",
        "1:1,access=x",
        "1:1,fil=zero",
        "1:1,fill=x",
    ):
        with pytest.raises(UserError, match="--region"):
            region(wrong, 1)


def test_receives() -> None:
    first, second = receives("3000x2,tag=0x11,ignore=0xf,peer=10.0.0.2,index=4", 5)
    assert (first.size, first.tag, first.ignore, first.after) == (3000, 0x11, 0xF, 5)
    assert (first.index, second.index) == (4, 5)
    assert first.receive().context is first
    assert receives("0x400x3", 0)[2].size == 1024
    assert len(receives("0x400", 0)) == 1
    assert receives("64k,after=250ms", 0)[0].after == 250_000_000
    for wrong in ("x3", "3x", "3x0", "3:4", "3,tga=1", "3,peer=x", "3,multi=2,repost", "16gx65536"):
        with pytest.raises(UserError, match="--receive"):
            receives(wrong, 0)


# --- parameters --------------------------------------------------------------------------------


def test_every_switch_and_every_parameter_is_reached() -> None:
    for switch_ in fields(Compatibility):
        value = "3" if "None" in str(switch_.type) else "true"
        chosen, _ = parameters.compatibility([f"{switch_.name}={value}"])
        assert getattr(chosen, switch_.name) == (3 if value == "3" else True)
    elsewhere = {"address", "mac", "neighbours", "domains", "compatibility", "cc_parameters"}
    for field in fields(FepConfig):
        if field.name in elsewhere:
            with pytest.raises(UserError, match=f"--set {field.name}: use"):
                parameters.settings([f"{field.name}=1"])
            continue
        if field.name == "spray_parameters":
            with pytest.raises(UserError, match="each by itself"):
                parameters.settings([f"{field.name}=1"])
            assert parameters.settings([f"{field.name}.bits=1"]) == {field.name: {"bits": 1}}
            continue
        default = field.default
        text = ",".join(default) if isinstance(default, tuple) else str(default)
        assert parameters.settings([f"{field.name}={text}"]) == {field.name: default}


def test_presets_and_switches_in_turn() -> None:
    chosen, with_it = parameters.compatibility(["reference-provider"])
    assert chosen == REFERENCE_PROVIDER
    assert (with_it["mpr"], with_it["payload_mtu"]) == (1, 1_024)
    chosen, _ = parameters.compatibility(["reference-provider", "constant-rto=false"])
    assert not chosen.constant_rto
    assert chosen.sync_operations


def test_parameters_of_congestion_control_have_two_names() -> None:
    requested = ["cc=both", "base_rtt=12us", "nscc.gamma=0.5", "nscc.qa-gate=2"]
    values = parameters.settings(requested)
    assert values == {
        "cc": "both",
        "base_rtt": 12_000,
        "cc_parameters": {"nscc": {"gamma": 0.5, "qa_gate": 2.0}},
    }
    config = parameters.endpoint({"address": "10.0.0.1", "mac": "02:00:00:00:00:01", **values})
    assert config.cc_parameters["nscc"]["gamma"] == 0.5
    for wrong, complaint in (
        ("nscc=3", "is for nscc.PARAMETER=NUMBER"),
        ("nscc.gamma=much", "give a number"),
        ("ttl.x=3", "ttl has no parameters of its own"),
    ):
        with pytest.raises(UserError, match=complaint):
            parameters.settings([wrong])


@pytest.mark.parametrize(
    ("words", "stated"),
    [(["mrp=3"], "did you mean mpr"), (["mpr"], "says no value"), (["crc=maybe"], "true or false"),
     (["rto_init_time=fast"], "give a time")],
)  # fmt: skip
def test_wrong_settings(words: list[str], stated: str) -> None:
    with pytest.raises(UserError, match=stated):
        parameters.settings(words)


def test_the_payload_fits_the_interface() -> None:
    plain: dict[str, Any] = {"version": 4, "native": False, "crc": False, "secure": False}
    assert payload_for(1500, **plain, requested=None) == 1024
    assert payload_for(9000, **plain, requested=None) == 4096
    assert payload_for(9000, **plain, requested=8192) == 8192
    with pytest.raises(UserError, match="too small"):
        payload_for(1000, **plain, requested=None)
    with pytest.raises(UserError, match="needs an interface MTU"):
        payload_for(4000, **plain, requested=4096)


def test_a_report_shows_no_keys() -> None:
    domain = SecureDomain(sdi=1, mode="direct", keys={0: bytes(range(32))})
    config = FepConfig(address="10.0.0.1", mac="02:00:00:00:00:01", domains=(domain,))
    shown = json.dumps(parameters.as_data(config))
    assert bytes(range(32)).hex() not in shown
    assert '"sdi": 1' in shown
    (like_the_provider,) = parameters.compatible([domain], ["reference-provider"])
    config = replace(config, domains=(like_the_provider,))
    (shown_domain,) = parameters.as_data(config)["domains"]
    assert shown_domain["accept_clear"] is shown_domain["address_in_ipv6_kdf"] is True


def test_the_keys_really_used_stand_beside_the_capture(tmp_path: Path) -> None:
    """With what a preset has set, for nobody else to read; decode takes them first."""
    capture = tmp_path / "c.pcapng"
    capture.touch()
    (tmp_path / KEY_FILE).write_text("[]")
    assert keys_beside(str(capture)) == tmp_path / KEY_FILE
    domain = SecureDomain(sdi=1, mode="direct", keys={0: bytes(range(32))}, ssi=3)
    used = parameters.compatible([domain], ["reference-provider"])
    path = Path(f"{capture}{KEY_SUFFIX}")
    for _ in range(2):  # an older one makes room
        write_keys(path, used)
    assert keys_beside(str(capture)) == path
    assert read_domains(path) == list(used) != [domain]
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="cannot write"):
        write_keys(tmp_path / "nowhere" / "keys", used)


# --- the capture file --------------------------------------------------------------------------


def test_a_capture_is_whole_at_every_flush(tmp_path: Path) -> None:
    path = tmp_path / "c.pcapng"
    capture = CaptureFile(path, "eth0", "a comment")
    capture.sent([(b"header", memoryview(b"payload"))])
    capture.received([memoryview(b"x" * 61)])
    capture.flush()
    with RawPcapNgReader(str(path)) as reader:
        frames = list(reader)
    assert [frame for frame, _ in frames] == [b"headerpayload", b"x" * 61]
    assert frames[0][1].ifname == b"eth0"
    capture.close()
    with pytest.raises(UserError, match="is there already; choose another"):
        CaptureFile(path, "eth0", "")
    assert path.stat().st_size > 100
    with pytest.raises(UserError, match="cannot write"):
        CaptureFile(tmp_path / "no" / "c.pcapng", "eth0", "")


@contextmanager
def files_of_at_most(octets: int) -> Iterator[None]:
    """Fail writes beyond a limit, as on a disk with no more room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (octets, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_said_once(tmp_path: Path) -> None:
    capture = CaptureFile(tmp_path / "c.pcapng", "eth0", "")
    log = EventLog(tmp_path / "e.sqlog", name="10.0.0.1", title="a trace")
    with files_of_at_most(1000):
        capture.sent([(bytes(2000), b"")])
        with pytest.raises(UserError, match=r"cannot write .*c\.pcapng: .*; make room"):
            capture.flush()
        with pytest.raises(UserError, match=r"cannot write .*e\.sqlog: .*; make room"):
            log({"time": 0.0, "name": "uet:it", "data": {"long": "x" * 2000}})
        capture.close()
        log.close()


def test_an_event_log_is_whole_after_every_event(tmp_path: Path) -> None:
    path = tmp_path / "e.sqlog"
    log = EventLog(path, name="10.0.0.1", title="a trace")
    log({"time": 0.5, "name": "uet:it", "data": {}})
    first, events = read(path.read_text())
    assert first["trace"]["vantage_point"]["name"] == "10.0.0.1"
    assert events == [{"time": 0.5, "name": "uet:it", "data": {}}]
    with pytest.raises(UserError, match="is there already; choose another"):
        EventLog(path, name="10.0.0.1", title="")
    log.close()


# --- the command line --------------------------------------------------------------------------


def failure(*words: str) -> str:
    """Return what is said of a command line that cannot be."""
    result = CliRunner().invoke(cli, ["fep", *words])
    assert result.exit_code != 0
    return str(result.exception) if isinstance(result.exception, UserError) else result.output


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (("initiator", "-i", "e0", "-p", "10.0.0.2"), "no operation is given"),
        (("initiator", "-i", "e0", "noop"), "name the target with --peer"),
        (("initiator", "-i", "e0", "-p", "nowhere", "noop"), "'nowhere' is not an IP address"),
        (("initiator", "-i", "e0", "-p", "fe80::1%e0", "noop"), "leave out %e0"),
        (("initiator", "-i", "e0", "-p", "::1", "-p", "::1", "noop"), "given twice"),
        (("target", "-i", "e0", "--peer-mac", "02:00:00:00:00:01"), "name it with --peer"),
        (("target", "-i", "e0", "--keys", "/no/such/file"), "/no/such/file cannot be read"),
        (("target",), "say which port"),
        (("target", "-i", "e0", "--job-id", "many"), "--job-id is 'many'"),
    ],
)
def test_wrong_command_lines(words: tuple[str, ...], stated: str) -> None:
    assert stated in failure(*words)


@pytest.mark.skipif(os.geteuid() != 0, reason="root is asked for before these are looked at")
@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (("target", "-i", "e0", "-n", "no-such-namespace"), "no network namespace 'no-such-names"),
        (("target", "-i", "no-such-port"), "there is no interface 'no-such-port'"),
        (("target", "-i", "e0", "--job-id", "0x1000000"), "job_id is 16777216"),
        (("target", "-i", "e0", "--compat", "quirky"), "--compat has no 'quirky'"),
        (("target", "-i", "e0", "--set", "ttl=0"), "ttl is 0; it must lie in 1..255"),
        (("target", "-i", "e0", "--sdi", "3"), "sdi is 3, but there are no secure domains"),
    ],
)
def test_wrong_endpoints(words: tuple[str, ...], stated: str) -> None:
    assert stated in failure(*words)


@pytest.mark.parametrize("role", ["target", "initiator"])
def test_the_help_has_examples_and_every_switch(role: str) -> None:
    shown = CliRunner().invoke(cli, ["fep", role, "--help"]).output
    assert f"uetemu fep {role} -i eth0" in shown
    for switch_ in fields(Compatibility):
        assert switch_.name in shown.replace("\n  ", " ")
