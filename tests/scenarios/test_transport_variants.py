"""Runs whose endpoints speak Ultra Ethernet in another way, and those that keep event logs."""

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scapy.utils import RawPcapNgReader

from emulator import scenario as scenarios
from emulator.cli import rank_runs, run_verb
from emulator.cli.decode.decode_source import opener, read_domains
from emulator.dataplane.capture.fabric_capture import SNAPLEN_FULL, SNAPLEN_HEADERS
from emulator.errors import UserError
from emulator.pytest_plugin.runs import RunProcess
from emulator.run.run_secret import run_secret
from emulator.run.runner import RunRequest, prepare
from emulator.transports import fit
from emulator.transports.uet_transport import (
    COUNTERS_PER_LIFE,
    UET,
    uet_endpoint,
)
from tests.harness.runs.processes import SMALL
from tests.harness.uet.event_schema import violations
from tests.harness.uet.tss_vectors import parts
from topologies import catalogue
from uet.eventlog import sequence
from uet.tss.record import SecureRecords
from uet.wire.frame import DecodedPacket, decode_frame

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="building namespaces needs root")
TOPOLOGY = catalogue.load("rail_clos:hosts=2,gpus_per_host=2,spines=1")


def packets(capture: Path, **options: Any) -> list[DecodedPacket]:
    frames = [frame for frame, _ in RawPcapNgReader(str(capture))]
    return [decode_frame(frame, **options) for frame in frames]


@needs_root
@pytest.mark.parametrize(
    ("variant", "layers"),
    [
        ("uet:delivery=rod", {"pds.rod_req", "pds.ack_cc"}),
        ("uet:delivery=rod,reorder=on,encapsulation=native,crc=on", {"pds.rod_req", "crc"}),
        ("uet:ack=ack", {"pds.rud_req", "pds.ack"}),
        ("uet:ack=ack_ccx,crc=on", {"pds.rud_req", "pds.ack_ccx", "crc"}),
    ],
)
def test_a_variant_is_what_the_capture_shows(
    start: Callable[..., RunProcess],
    variant: str,
    layers: set[str],
) -> None:
    run = start(*SMALL, "--sizes", "64KiB", "--transport", variant, "--snaplen", "full")
    status, out, err = run.communicate()
    assert (status, err) == (0, ""), out
    assert run.result["transport"] == variant
    assert [row["wrong"] for row in run.result["rows"]] == [0]
    decoded = packets(run.folder / "capture.pcapng", crc="on" if "crc=on" in variant else "off")
    assert [p.errors for p in decoded if p.errors] == []
    seen = Counter(name for p in decoded for name in p.layer_names)
    assert layers <= set(seen), seen


@needs_root
@pytest.mark.parametrize("mode", ["direct", "cluster"])
def test_the_run_folder_keeps_the_keys_of_a_secured_run(
    start: Callable[..., RunProcess],
    mode: str,
) -> None:
    """Without them there is ciphertext; with them every packet opens, as frames are kept whole."""
    run = start(*SMALL, "--sizes", "64KiB", "--transport", f"uet:tss={mode}")
    status, out, err = run.communicate()
    assert (status, err) == (0, ""), out
    assert [row["wrong"] for row in run.result["rows"]] == [0]
    capture = run.folder / "capture.pcapng"
    sealed = packets(capture)
    assert sealed
    assert {name for p in sealed for name in p.layer_names} == {"tss", "payload", "icv"}
    domains = read_domains(run.folder / "tss_keys.json")
    opened = packets(capture, open_secure=opener(domains))
    assert [p.errors for p in opened if p.errors] == []
    assert all("tss" in p.layer_names for p in opened)
    kinds = {name for p in opened for name in p.layer_names}
    assert {"pds.rud_req", "pds.ack_cc", "ses.request_std_som"} <= kinds


@needs_root
def test_every_life_of_a_secured_runs_endpoints_has_a_key_of_its_own(
    start: Callable[..., RunProcess],
) -> None:
    """Rows that begin anew, and another seed: no key seals two first packets.

    The same command would have the same packets, octet by octet.
    """
    keys = []
    for seed in ("1", "2"):
        transports = "uet:tss=cluster,uet:tss=cluster,cc=none"
        run = start(
            *(*SMALL, "--sizes", "16KiB", "--transport", transports),
            *("--seed", seed, "--seeds", "1"),
        )
        status, out, err = run.communicate()
        assert (status, err) == (0, ""), out
        domains = read_domains(run.folder / "tss_keys.json")
        assert len(domains) == 2
        keys += [domain.keys[0] for domain in domains]
        capture = run.folder / "capture.pcapng"
        opened = packets(capture, open_secure=opener(domains))
        assert [p.errors for p in opened if p.errors] == []
        # Under each key the iterations' fresh endpoints count on.
        lives: list[set[int]] = [set(), set()]
        sealed: dict[tuple[int, bytes, bytes], bytes] = {}
        records = [SecureRecords(domain) for domain in domains]
        for frame, _ in RawPcapNgReader(str(capture)):
            prefix, packet, size = parts(frame)
            (number,) = (
                k for k, r in enumerate(records) if isinstance(r.read(prefix, packet, size), bytes)
            )
            stamp = number, prefix[:4], packet[4:12]
            assert sealed.setdefault(stamp, packet) == packet
            lives[number].add(int.from_bytes(packet[6:12], "big") // COUNTERS_PER_LIFE)
        assert min(map(len, lives)) > 1
    assert len(set(keys)) == 4


def secret(seed: int = 1, life: int = 0, **changes: Any) -> bytes:
    scenario = scenarios.load("allreduce")
    texts = {"sizes": changes.pop("sizes", "16KiB")}
    request = RunRequest(
        scenario=scenario,
        parameters=scenario.parameters(texts),
        topology="clos:hosts=2,gpus_per_host=1,spines=0",
        lab="secret",
        seed=seed,
        **changes,
    )
    return run_secret(prepare(request), life)


@needs_root
def test_one_time_keys_follow_from_all_that_determines_packets() -> None:
    one = secret()
    assert secret() == one
    others = (
        {"seed": 2},
        {"life": 1},
        {"sizes": "32KiB"},
        {"transport": "uet:cc=none"},
        {"switch": "deep"},
        {"faults": ["t=30us nic h0g0 down"]},
    )
    assert len({one, *(secret(**other) for other in others)}) == 1 + len(others)
    for watched in ({"capture": "all", "snaplen": 80}, {"digest": "0" * 64}, {"event_log": "all"}):
        assert secret(**watched) == one


@needs_root
def test_event_logs_of_chosen_endpoints(start: Callable[..., RunProcess]) -> None:
    run = start(*SMALL, "--sizes", "64KiB", "--iterations", "1", "--event-log", "h0g0,h1g1")
    status, out, err = run.communicate()
    assert (status, err) == (0, ""), out
    logs = sorted((run.folder / "event-logs").iterdir())
    # The warm-up's endpoints, and the fresh ones of the iteration that counts.
    assert sorted(log.name for log in logs) == [
        *("h0g0.1.sqlog", "h0g0.sqlog", "h1g1.1.sqlog", "h1g1.sqlog"),
    ]
    for gpu in ("h0g0", "h1g1"):
        events = []
        for log in (one for one in logs if one.name.startswith(gpu)):
            preamble, of_life = sequence.read(log.read_text())
            assert preamble["trace"]["vantage_point"]["name"] == gpu
            assert [v for event in of_life for v in violations(event)] == []
            events += of_life
        names = Counter(event["name"] for event in events)
        endpoint = run.result["endpoints"][gpu]
        sent = [e for e in events if e["name"] == "uet:packet_sent"]
        data = [e for e in sent if e["data"]["header"]["type"] == "RUD_REQ"]
        assert len(data) == (
            endpoint["transport.tx_data_packets"]
            + endpoint.get("transport.tx_retransmitted_packets", 0)
        )
        assert names["uet:message_completed"] > 0


@pytest.mark.parametrize(
    ("requested", "complaint"),
    [
        ("uett", "did you mean uet?"),
        ("uet:tsss=direct", "did you mean tss?"),
        ("uet:tss", "takes one of off, direct, cluster"),
        ("uet:tss=server", "'tss=server': the parameter tss of the transport uet takes one of"),
        ("uet:delivery=rud,reorder=on", "reorder=on is for ordered delivery; add delivery=rod"),
        ("uet:reorder=on", "reorder=on is for ordered delivery; add delivery=rod"),
    ],
)
def test_a_variant_that_does_not_exist(requested: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint.replace("?", r"\?")):
        fit(requested, TOPOLOGY)


def test_help_lists_every_parameter_and_value() -> None:
    shown = CliRunner().invoke(run_verb.command, ["--help"]).output
    for name, values in UET.options.items():
        assert f"{name}={'|'.join(values)} " in shown
    assert "full if the transport encrypts" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), SNAPLEN_HEADERS),
        (("--transport", "uet:tss=off"), SNAPLEN_HEADERS),
        (("--transport", "uet:delivery=rod,tss=cluster"), SNAPLEN_FULL),
        (("--transport", "uet:tss=direct", "--snaplen", "headers"), SNAPLEN_HEADERS),
        (("--transport", "uet:tss=direct", "--snaplen", "96"), 96),
    ],
)
def test_frames_are_captured_whole_where_nothing_less_can_be_decrypted(
    arguments: tuple[str, ...], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def prepare(request: RunRequest) -> None:
        asked.append(request.snaplen)
        raise UserError("that is all")

    monkeypatch.setattr(rank_runs, "prepare", prepare)
    CliRunner().invoke(run_verb.command, ["allreduce", *arguments])
    assert asked == [expected]


def test_an_event_log_has_the_wall_clock_time_that_it_is_given(tmp_path: Path) -> None:
    chosen = fit("uet", TOPOLOGY)
    config = next(iter(chosen.configs.values()))
    log = tmp_path / "a.sqlog"
    uet_endpoint(seed=1, event_log=str(log), reference="2026-01-31T12:00:00Z", **config)
    preamble, _ = sequence.read(log.read_text())
    reference = preamble["trace"]["common_fields"]["reference_time"]
    assert reference["wall_clock_time"] == "2026-01-31T12:00:00Z"


def test_no_life_of_an_endpoint_counts_as_another_one() -> None:
    """With or without an event log: a run's endpoints keep their key when they begin anew."""
    config = next(iter(fit("uet:tss=cluster", TOPOLOGY).keyed(b"1").configs.values()))
    for life in (0, 1, 2, 1_000):
        fep = uet_endpoint(seed=1, life=life, **config)
        assert fep.domains is not None
        (records,) = fep.domains
        assert records.position(0) == (0, life * COUNTERS_PER_LIFE)


def test_keys_follow_from_a_secret() -> None:
    requested = fit("uet:tss=cluster", TOPOLOGY)
    assert requested.keys is not None
    assert not any("domains" in config for config in requested.configs.values())
    first, again, other = (requested.keyed(secret) for secret in (b"1", b"1", b"2"))
    assert first == again != other
    for config in first.configs.values():
        assert config["domains"] == [requested.keys.domain(b"1")]
        uet_endpoint(seed=1, **config)
    assert json.loads(json.dumps(requested.keys.domain(b"1"))) == requested.keys.domain(b"1")
    plain = fit("uet", TOPOLOGY)
    assert plain.keyed(b"1") is plain


@pytest.mark.parametrize(
    ("variant", "octets"),
    [
        ("uet", 24),
        ("uet:cc=rccc", 24),
        ("uet:tss=cluster", 32),
        ("uet:tss=direct,encapsulation=native", 28),
        ("uet:tss=cluster,cc=both", 36),
        ("rocev2", 24),
    ],
)
def test_trimming_leaves_the_pds_header_of_a_variant(variant: str, octets: int) -> None:
    """UDP or entropy header, TSS header, request, credit; 24 octets at least (UES 4.1)."""
    assert fit(variant, TOPOLOGY).trimmed_octets == octets


def test_the_ideal_counts_what_a_variant_adds() -> None:
    """TSS header and tag, the CRC, and the shorter entropy header."""
    plain = fit("uet", TOPOLOGY).wire.around_bytes
    assert fit("uet:crc=on", TOPOLOGY).wire.around_bytes == plain + 4
    assert fit("uet:tss=direct", TOPOLOGY).wire.around_bytes == plain + 12 + 16
    assert fit("uet:encapsulation=native", TOPOLOGY).wire.around_bytes == plain - 4
