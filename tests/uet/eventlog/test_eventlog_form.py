"""The event log's file and schema: what is written is read again, and wrong events are found."""

import copy
import dataclasses
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from tests.harness.uet.event_schema import violations
from tests.harness.uet.traced import config, write
from uet.eventlog.logging_endpoint import create
from uet.eventlog.schema import EVENTS, json_schema
from uet.eventlog.sequence import (
    Event,
    JsonSequence,
    TraceError,
    milliseconds,
    nanoseconds,
    read,
)

# -- the file ------------------------------------------------------------------------------------


def test_a_trace_is_a_json_sequence_of_which_a_kill_loses_one_event() -> None:
    writes: list[str] = []
    log: list[Event] = []
    sequence = JsonSequence(writes.append, name="node1/gpu0", title="a test", group_id="run-1")

    def both(event: dict[str, Any]) -> None:
        log.append(copy.deepcopy(event))
        sequence(event)

    fep = create(config("10.0.1.1"), seed=1, log=both)
    fep.post(write("10.0.1.2", 3_000, context="é\n"))
    fep.transmit(12_345_678, 10)
    assert len(writes) == 1 + len(log)
    assert all(w[0] == "\x1e" and w[-1] == "\n" and "\n" not in w[:-1] for w in writes)
    text = "".join(writes)
    first, events = read(text)
    assert events == log
    assert first["file_schema"] == "urn:ietf:params:qlog:file:sequential"
    assert first["serialization_format"] == "application/qlog+json-seq"
    trace = first["trace"]
    assert trace["vantage_point"] == {"name": "node1/gpu0", "type": "unknown"}
    assert trace["common_fields"]["reference_time"] == {
        "clock_type": "monotonic",
        "epoch": "unknown",
    }
    assert nanoseconds(events[-1]["time"]) == 12_345_678
    for cut in range(1, len(writes[-1])):
        assert read(text[:-cut]) == (first, events[:-1])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "separator"),
        ('{"a": 1}\n', "separator"),
        ("\x1e{}\n", "file schema"),
        ("\x1e{", "file schema"),
        ("\x1e{\n\x1e{}\n", "record 1"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(text: str, word: str) -> None:
    with pytest.raises(TraceError, match=word):
        read(text)


@pytest.mark.parametrize("ns", [0, 1, 999_999, 12_345_678_901, 2**51 - 1])
def test_times_come_back_to_the_nanosecond(ns: int) -> None:
    assert nanoseconds(json.loads(json.dumps(milliseconds(ns)))) == ns


def test_the_wall_clock_time_of_zero_is_in_the_first_record() -> None:
    writes: list[str] = []
    JsonSequence(writes.append, name="a", reference="2026-01-31T12:00:00.5Z")
    first, _ = read(writes[0])
    assert first["trace"]["common_fields"]["reference_time"] == {
        "clock_type": "monotonic",
        "epoch": "unknown",
        "wall_clock_time": "2026-01-31T12:00:00.5Z",
    }
    for wrong in ("2026-01-31T12:00:00", "noon"):
        with pytest.raises(ValueError, match=wrong):
            JsonSequence(writes.append, name="a", reference=wrong)
    assert len(writes) == 1


def test_no_number_is_wider_than_what_json_keeps() -> None:
    log: list[Event] = []
    fep = create(config("10.0.1.1"), seed=2**64 - 1, log=log.append)
    fep.post(dataclasses.replace(write("10.0.1.2", 10), key=2**64 - 2, offset=2**63))
    first, posted = (event["data"] for event in log[:2])
    assert first["endpoint_seed"] == str(2**64 - 1)
    assert "seed" not in first
    assert (posted["key"], posted["offset"]) == ("0xfffffffffffffffe", "0x8000000000000000")
    assert [v for event in log for v in violations(event)] == []


# -- the schema ----------------------------------------------------------------------------------


def test_the_schema_is_json_and_names_every_event() -> None:
    schema = json.loads(json.dumps(json_schema()))
    names = {each["properties"]["name"]["const"] for each in schema["oneOf"]}
    assert names == {f"uet:{name}" for name in EVENTS}


RTO = {"time": 1.0, "name": "uet:rto_expired", "data": {"pdc": 1, "psn": 5, "timeouts": 1}}
SENT = {
    "time": 1.0,
    "name": "uet:packet_sent",
    "data": {"raw": {"length": 90}, "header": {"type": "ACK", "sack_bitmap": "0x" + "0" * 16}},
}


@pytest.mark.parametrize(
    ("event", "path", "value", "rule"),
    [
        (RTO, ("time",), -1, "minimum"),
        (RTO, ("time",), "1", "type"),
        (RTO, ("data", "pdc"), 65_536, "maximum"),
        (RTO, ("data", "pdc"), True, "type"),
        (RTO, ("data", "psn"), 1.5, "type"),
        (RTO, ("data", "speed"), 1, "additionalProperties"),
        (RTO, ("extra",), 1, "additionalProperties"),
        (SENT, ("data", "raw"), {}, "required"),
        (SENT, ("data", "header", "type"), "ACKK", "anyOf"),
        (SENT, ("data", "header", "clear_psn_offset"), -32_769, "minimum"),
        (SENT, ("data", "header", "sack_bitmap"), "0x0", "pattern"),
        (SENT, ("data", "header", "flags"), ["syn", "fin"], "enum"),
    ],
)
def test_the_schema_refuses_what_is_wrong(
    event: dict[str, Any], path: tuple[str, ...], value: object, rule: str
) -> None:
    assert violations(event) == []
    wrong = copy.deepcopy(event)
    at: Any = wrong
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    (error,) = violations(wrong)
    assert isinstance(error, ValidationError)
    assert error.validator == rule


def test_an_event_has_a_name_of_the_schema() -> None:
    assert violations(RTO | {"name": "uet:rto"}) == ["uet:rto"]
    assert not Draft202012Validator(json_schema()).is_valid(RTO | {"name": "uet:rto"})
    assert Draft202012Validator(json_schema()).is_valid(RTO)
