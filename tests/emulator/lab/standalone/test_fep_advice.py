"""``uetemu fep``: what it says to help: refusals told and explained, key files, wrong domains."""

import io
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emulator.cli.main import cli
from emulator.errors import UserError
from emulator.lab.standalone.events import EventReport, Refusals
from emulator.lab.standalone.script import endpoint_parameters as parameters
from emulator.lab.standalone.script.offers import region
from emulator.lab.standalone.script.requested_operations import (
    DEFAULT_KEY,
    Around,
    error_name,
    explanation,
    known_errors,
    messages_of,
)
from uet.ses.address import Address
from uet.tss.secure_domain import SecureDomain

AROUND = Around(peer="10.0.0.2", peers=["10.0.0.2"], home=Address(job_id=7))


def requests_of(*phrases: str, around: Around = AROUND) -> list[Any]:
    return [message.request for message in messages_of(phrases, None, around)]


def test_rudi_asks_for_idempotent_memory() -> None:
    safe = DEFAULT_KEY | 1 << 63
    requests = requests_of(
            "write:3,delivery=rudi", "read:3,idempotent", "write:3,delivery=rudi,key=5",
            "write:3,key=5,idempotent", "write:3,delivery=rudi,idempotent=no", "write:3",
    )  # fmt: skip
    keys = [request.key for request in requests]
    assert keys == [safe, safe, 5, 5 | 1 << 63, DEFAULT_KEY, DEFAULT_KEY]
    (request,) = requests_of("read:3", around=replace(AROUND, delivery="rudi"))
    assert request.key == safe
    assert region("default:4k,idempotent", 1).key == safe
    assert "bit 63" in str(explanation(requests[0], "BAD_MKEY", "rud"))
    assert "not idempotent-safe" in str(explanation(requests[2], "OP_VIOLATION", "rud"))
    assert explanation(requests[5], "OP_VIOLATION", "rud") is None
    assert explanation(requests[0], None, "rud") is None


def test_names_of_errors() -> None:
    for name in known_errors():
        assert error_name(name.lower(), "error") == name
    assert error_name("RC_BAD_MKEY", "error") == "BAD_MKEY"
    assert error_name("return_code_0x2A", "error") == "RETURN_CODE_0x2a"


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        messages_of((), str(tmp_path / "none"), AROUND)
    assert str(caught.value).endswith("none cannot be read: No such file or directory; check the"
                                      " path")  # fmt: skip


def test_each_kind_of_refusal_is_told_once() -> None:
    counts = {"rx_requests_refused": 0, "rx_packets": 1}
    out = io.StringIO()
    refusals = Refusals(counts, EventReport(out, table=False))
    frame = memoryview(bytes(12) + b"\x08\x00" + bytes(12) + bytes([10, 0, 0, 7]) + bytes(20))
    refusals.look([frame])
    assert not out.getvalue()
    counts["rx_requests_refused"] += 2
    refusals.look([frame, frame])
    counts["rx_requests_refused"] += 1
    counts |= {"tss_bad_tag": 1, "rx_drop_truncated": 0}
    refusals.look([])
    counts["rx_drop_truncated"] = 1
    refusals.look([frame, memoryview(bytes(60))])
    refusals.look([frame])
    reported = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(item["event"], item["what"], item.get("peer")) for item in reported] == [
        ("refused", "rx_requests_refused", "10.0.0.7"),
        ("refused", "tss_bad_tag", None),
        ("refused", "rx_drop_truncated", None),
    ]


def test_domains_that_ipv6_cannot_have() -> None:
    key = {0: bytes(range(32))}
    client = {0: bytes(range(44))}
    parameters.must_suit_ipv6(
        [
            SecureDomain(sdi=1, mode="cluster", keys=key),
            SecureDomain(sdi=2, mode="direct", keys=key, ssi=0),
            SecureDomain(sdi=3, mode="server", keys=key, clients={"fd00::7": 8}),
            SecureDomain(sdi=4, mode="client", keys=client, ssi=8),
        ],
        "k.json",
    )
    for mode in ("direct", "client"):
        keys = client if mode == "client" else key
        with pytest.raises(UserError) as caught:
            parameters.must_suit_ipv6([SecureDomain(sdi=5, mode=mode, keys=keys)], "k.json")
        assert str(caught.value) == (
            f"secure domain (sdi 5) has no ssi, which IPv6 needs in {mode} mode;"
            ' add "ssi": NUMBER to its entry in k.json'
        )
    with pytest.raises(UserError, match='add "clients"'):
        parameters.must_suit_ipv6([SecureDomain(sdi=5, mode="server", keys=key)], "k.json")


def test_the_key_file_is_described() -> None:
    shown = CliRunner().invoke(cli, ["decode", "--help"]).output
    for there in fields(SecureDomain):
        assert f"  {there.name}" in shown or f", {there.name}" in shown
    assert "provision_client" in shown
