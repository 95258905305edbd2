"""The line about a trial that failed says how far it had come, and who did not know."""

from __future__ import annotations

from emulator.run.faults.unfinished import footer

FAILED = {
    "collective": "weight_sync",
    "size_bytes": 4096,
    "delivered_messages": 3,
    "messages": 4,
    "unfinished_gpus": ["h0g0", "h1g0"],
}


def test_some_messages_were_delivered() -> None:
    assert footer(FAILED, "uet") == "uet, weight_sync 4096 B: 3 of 4 messages were delivered"


def test_all_were_delivered_and_some_operations_are_not_done() -> None:
    all_there = {**FAILED, "delivered_messages": 4, "cut_off_gpus": ["h0g0"]}
    assert footer(all_there) == (
        "weight_sync 4096 B: 4 of 4 messages were delivered, but h0g0, h1g0 had not heard of it; "
        "the faults cut off h0g0"
    )
